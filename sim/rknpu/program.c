/*
 * Reads a list of 64-bit commands into registers: target << 48 | value << 16 | offset.
 *
 *     body      commands that write a register each, and fillers
 *     tail      next address (0: none) or a filler; next amount; a marker; the enable of the blocks
 *     the rest  fillers
 *
 * The register file keeps values of earlier tasks, so a list that omits a register works only by
 * luck.  strict=1 refuses such a list; with strict=0 the register keeps its old value.
 */
#include "npu.h"

#include <stdlib.h>
#include <string.h>

/* Bits 63..48 of a command.  Source: Mesa's registers.xml (enum target), bit 0 set in commands. */
enum {
    TARGET_NONE = 0x0000,
    TARGET_FILLER = 0x0001,
    TARGET_MARKER = 0x0041,
    TARGET_ENABLE = 0x0081,
    TARGET_PC = 0x0101,
    TARGET_CNA = 0x0201,
    TARGET_CORE = 0x0801,
    TARGET_DPU = 0x1001,
    TARGET_RDMA = 0x2001,
    TARGET_PPU = 0x4001,
    TARGET_PPU_RDMA = 0x8001,
};
enum { PC_NEXT_ADDRESS = 0x10, PC_NEXT_AMOUNT = 0x14, ENABLE_OFFSET = 0x08, S_POINTER = 0xE };

#define ANY UINT64_MAX
#define NONE (UINT64_MAX - 1)
#define HELD (UINT64_MAX - 2)
static const struct {
    enum block block;
    uint32_t offset, defined;
    uint64_t want[OPERATIONS];
    const char *name;
} ROWS[REGISTERS] = {
#define REGISTER(block, offset, name, defined, product, addition, activation, pooling)             \
    {block, offset, defined, {product, addition, activation, pooling}, #name},
#include "registers.inc"
#undef REGISTER
};

static int find(uint32_t target, uint32_t offset)
{
    switch (target << 16 | offset) {
#define REGISTER(block, offset, name, defined, product, addition, activation, pooling)             \
    case (uint32_t) TARGET_##block << 16 | (offset):                                               \
        return name;
#include "registers.inc"
#undef REGISTER
    default:
        return -1;
    }
}

bool refuse_register(struct why *why, enum reg reg, uint32_t value, const char *reason)
{
    return refuse(why, "register %#x %s = %#x: %s", ROWS[reg].offset, ROWS[reg].name, value,
                  reason);
}

uint8_t *scratch_get(struct scratch *scratch, size_t size)
{
    if (size > scratch->size) {
        free(scratch->bytes);
        scratch->size = round_up(size, PAGE);
        scratch->bytes = aligned_alloc(PAGE, scratch->size);
        scratch->size = scratch->bytes ? scratch->size : 0;
    }
    return scratch->bytes;
}

/* --- the list --------------------------------------------------------------------------------- */

/* Position in a list. */
enum stage { BODY, FILLED, ADDRESSED, COUNTED, MARKED, ENABLED };

struct reader {
    struct run *run;
    struct program *program;
    enum stage stage;
    uint32_t index;
};

static bool bad(const struct reader *reader, uint64_t word, const char *reason)
{
    return refuse(reader->run->why, "command %u, %#018llx: %s", reader->index,
                  (unsigned long long) word, reason);
}

/* Stores each write of LUT_ACCESS_DATA as the next entry of a table, from the entry that
 * LUT_ACCESS_CFG has set. */
static bool write_lut(struct reader *reader, enum reg reg, uint32_t value, uint64_t word)
{
    struct lut *lut = &reader->run->worker->lut;
    if (reg == DPU_LUT_ACCESS_CFG) {
        lut->next = value & 0x3FF;
        lut->table = value >> 16 & 1;
        lut->writing = value >> 17 & 1;
    } else if (reg == DPU_LUT_ACCESS_DATA && lut->writing) {
        if (lut->next >= LUT_ENTRIES) {
            return bad(reader, word, "a table of the LUT has 513 entries");
        }
        lut->entries[lut->table][lut->next++] = (uint16_t) value;
        lut->loaded[lut->table]++;
    }
    return true;
}

static bool write_register(struct reader *reader, uint64_t word)
{
    struct registers *registers = &reader->run->worker->registers;
    const uint32_t value = (uint32_t) (word >> 16);
    const int reg = find((uint32_t) (word >> 48), word & 0xFFFF);
    if (reader->stage > FILLED) {
        return bad(reader, word, "a register is written inside the tail");
    }
    if (reg < 0) {
        return bad(reader, word, "the block has no such register, or no known use of it");
    }
    if (value & ~ROWS[reg].defined) {
        return bad(reader, word, "undefined bits are set");
    }
    registers->value[reg] = value;
    registers->written[reg] = true;
    reader->stage = BODY;
    return write_lut(reader, (enum reg) reg, value, word);
}

static bool write_chain(struct reader *reader, uint32_t offset, uint32_t value, uint64_t word)
{
    if (offset == PC_NEXT_ADDRESS && reader->stage <= FILLED && !(value & 0xF)) {
        reader->program->next = value;
        reader->stage = ADDRESSED;
        return true;
    }
    if (offset == PC_NEXT_AMOUNT && (reader->stage == FILLED || reader->stage == ADDRESSED) &&
        value <= 0xFFFF) {
        reader->program->next_amount = value;
        reader->stage = COUNTED;
        return !value == !reader->program->next ||
               bad(reader, word, "a chain needs an address and an amount");
    }
    return bad(reader, word, "the tail is filler or next address, next amount, marker, enable");
}

static bool enable(struct reader *reader, uint32_t value, uint64_t word)
{
    if (reader->stage != MARKED) {
        return bad(reader, word, "enable without the marker before it");
    }
    if (value != ENABLE_SHORT && value != ENABLE_FULL && value != ENABLE_FLYING &&
        value != ENABLE_POOLING) {
        return bad(reader, word, "enable is not one of 0xd, 0x1d, 0x18, 0x60");
    }
    reader->program->enable = value;
    reader->program->length = reader->index + 1;
    reader->stage = ENABLED;
    return true;
}

static bool read_command(struct reader *reader, uint64_t word)
{
    const uint32_t target = (uint32_t) (word >> 48), offset = word & 0xFFFF;
    const uint32_t value = (uint32_t) (word >> 16);
    const bool filler = (target == TARGET_NONE || target == TARGET_FILLER) && !value && !offset;
    if (reader->stage == ENABLED) {
        return filler || bad(reader, word, "a command after the enable");
    }
    if (filler) {
        const bool body = reader->stage <= FILLED;
        reader->stage = body ? FILLED : reader->stage;
        return body || bad(reader, word, "a filler inside the tail");
    }
    if (target == TARGET_PC) {
        return write_chain(reader, offset, value, word);
    }
    if (target == TARGET_MARKER) {
        const bool right = reader->stage == COUNTED && !value && !offset;
        reader->stage = MARKED;
        return right || bad(reader, word, "the marker is misplaced or wrong");
    }
    if (target == TARGET_ENABLE && offset == ENABLE_OFFSET) {
        return enable(reader, value, word);
    }
    return write_register(reader, word);
}

/* Marks all registers as not written by the current list; their values stay, as on hardware. */
static void start_list(struct worker *worker)
{
    struct registers *registers = &worker->registers;
    memset(registers->written, 0, sizeof(registers->written));
    memset(worker->lut.loaded, 0, sizeof(worker->lut.loaded));
    worker->lut.writing = false;
    for (int reg = 0; reg < REGISTERS && !worker->warm; reg++) {
        const uint64_t usual = ROWS[reg].want[PRODUCT];
        registers->value[reg] = usual < HELD ? (uint32_t) usual : 0;
    }
    worker->warm = true;
}

bool program_read(struct run *run, uint32_t address, uint32_t words, struct program *program)
{
    struct reader reader = {.run = run, .program = program};
    uint64_t word;
    memset(program, 0, sizeof(*program));
    if (address % 16) {
        return refuse(run->why, "the list at %#x is not 16-byte aligned", address);
    }
    const uint8_t *list = dma(run, address, (uint64_t) words * sizeof(word), "the list");
    if (!list) {
        return false;
    }
    run->list = address;
    start_list(run->worker);
    for (; reader.index < words; reader.index++) {
        memcpy(&word, list + sizeof(word) * reader.index, sizeof(word));
        if (!read_command(&reader, word)) {
            return false;
        }
    }
    return reader.stage == ENABLED || refuse(run->why, "%u commands, and no enable", words);
}

/* --- required writes and constants ----------------------------------------------------------- */

static bool needed(int reg, enum operation operation, bool rdma)
{
    return ROWS[reg].want[operation] != NONE && ROWS[reg].want[operation] != HELD &&
           (ROWS[reg].block != RDMA || rdma);
}

bool program_complete(const struct run *run, enum operation operation, bool rdma)
{
    for (int reg = 0; reg < REGISTERS && settings.strict; reg++) {
        if (needed(reg, operation, rdma) && !run->worker->registers.written[reg]) {
            return refuse(run->why,
                          "register %#x %s is not written: the task would use the previous task's "
                          "value (strict=0 allows it)",
                          ROWS[reg].offset, ROWS[reg].name);
        }
    }
    return true;
}

bool program_constants(const struct run *run, enum operation operation, bool rdma)
{
    const struct registers *registers = &run->worker->registers;
    for (int reg = 0; reg < REGISTERS; reg++) {
        const uint64_t want = ROWS[reg].want[operation];
        const uint32_t value = registers->value[reg];
        if ((reg == CNA_S_POINTER || reg == CORE_S_POINTER) && registers->written[reg] &&
            value != S_POINTER) {
            return refuse_register(run->why, (enum reg) reg, value, "the kernels write 0xe");
        }
        if (want == HELD && value) {
            return refuse_register(run->why, (enum reg) reg, value,
                                   "not known to have no effect here");
        }
        if (needed(reg, operation, rdma) && want != ANY && !run->judged[reg] && value != want) {
            return refuse_register(run->why, (enum reg) reg, value,
                                   "another value is not known to work");
        }
    }
    return true;
}
