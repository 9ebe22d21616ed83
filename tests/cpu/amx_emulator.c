/*
 * Emulates AMX on a machine without it: linked into a program, it executes the program's tile
 * instructions in software.
 *
 * Such a machine raises SIGILL at each tile instruction.  The handler decodes the instruction,
 * changes tiles and the memory of the interrupted program as the manual says, and continues after
 * the instruction.  A use that the manual forbids ends the program with status 70 and a message: a
 * tile is used before it is configured, shapes do not fit together, or a reserved field is set.  At
 * exit the emulator prints the number of executed instructions to stderr.
 *
 * On a machine with AMX, nothing is caught after the program has requested tiles from the kernel.
 * Before that request, the CPU executes the instructions that only configure tiles; a ud2 in front
 * of such an instruction makes the emulator catch it.
 *
 * Source: Intel SDM vol. 2: 2.3 (VEX), LDTILECFG, TILELOADD, TILESTORED, TDPBSSD/SUD/USD/UUD,
 * TILEZERO, TILERELEASE; their exception classes AMX-E1 to E6.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

enum { TILES = 8, MAX_ROWS = 16, MAX_BYTES = 64, REFUSED = 70 };
enum { NP, P66, PF3, PF2 }; /* VEX.pp */

/* The 64 bytes that ldtilecfg reads. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tile_config;

static _Thread_local struct {
    tile_config config;
    uint8_t tiles[TILES][MAX_ROWS][MAX_BYTES];
} state;

static _Atomic long executed;

_Noreturn static void refuse(const char *why)
{
    static const char name[] = "amx_emulator: ";
    if (write(2, name, sizeof name - 1) < 0 || write(2, why, strlen(why)) < 0 ||
        write(2, "\n", 1) < 0) {
        _exit(REFUSED + 1);
    }
    _exit(REFUSED);
}

static void demand(int holds, const char *why)
{
    if (!holds) {
        refuse(why);
    }
}

/* One VEX instruction, decoded. */
typedef struct {
    int pp, opcode, mod, reg, rm, vvvv;
    uint8_t *base;    /* of a memory operand, displacement added */
    int64_t index;    /* index register times scale */
    int length, trap; /* bytes of the instruction, and of ud2 before it */
} instruction;

/* Register `number` of the interrupted program. */
static int64_t reg(const ucontext_t *c, int number)
{
    static const int where[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                  REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                  REG_R12, REG_R13, REG_R14, REG_R15};
    return c->uc_mcontext.gregs[where[number]];
}

static instruction decode(const ucontext_t *c)
{
    const uint8_t *p = (const uint8_t *) c->uc_mcontext.gregs[REG_RIP];
    const int trap = p[0] == 0x0F && p[1] == 0x0B ? 2 : 0;
    p += trap;
    demand(p[0] == 0xC4 && (p[1] & 31) == 2 && !(p[2] & 0x84), "not a tile instruction");
    const int x = p[1] & 0x40 ? 0 : 8, b = p[1] & 0x20 ? 0 : 8;
    instruction i = {.pp = p[2] & 3,
                     .opcode = p[3],
                     .mod = p[4] >> 6,
                     .reg = p[4] >> 3 & 7,
                     .rm = p[4] & 7,
                     .vvvv = ~(p[2] >> 3) & 15,
                     .length = 5,
                     .trap = trap};
    demand(p[1] & 0x80, "there are eight tiles");
    if (i.mod == 3) {
        demand(!x && !b, "there are eight tiles");
        return i;
    }
    int64_t base = 0, wide = i.mod == 2;
    if (i.rm == 4) {
        const int sib = p[i.length++], index = (sib >> 3 & 7) | x;
        i.index = index == 4 ? 0 : (int64_t) ((uint64_t) reg(c, index) << (sib >> 6));
        wide |= i.mod == 0 && (sib & 7) == 5;
        base = i.mod == 0 && (sib & 7) == 5 ? 0 : reg(c, (sib & 7) | b);
    } else if (i.mod == 0 && i.rm == 5) {
        wide = 1;
        base = (int64_t) p + i.length + 4; /* relative to the next instruction */
    } else {
        base = reg(c, i.rm | b);
    }
    if (wide) {
        int32_t displacement;
        memcpy(&displacement, p + i.length, 4);
        base += displacement;
        i.length += 4;
    } else if (i.mod == 1) {
        base += (int8_t) p[i.length++];
    }
    i.base = (uint8_t *) base;
    return i;
}

static int rows_of(int tile)
{
    demand(state.config.palette == 1, "a tile is used before ldtilecfg");
    demand(tile < TILES, "there are eight tiles");
    demand(state.config.rows[tile], "the tile is not configured");
    return state.config.rows[tile];
}

static int bytes_of(int tile)
{
    rows_of(tile);
    return state.config.bytes[tile];
}

static void load_config(const uint8_t *from)
{
    tile_config config;
    memcpy(&config, from, sizeof config);
    demand(config.palette <= 1, "no such palette");
    demand(!config.start_row, "a start row is left over");
    for (size_t i = 0; i < sizeof config.reserved; i++) {
        demand(!config.reserved[i], "a reserved byte of the configuration is set");
    }
    for (int t = 0; t < 16; t++) {
        demand(t < TILES || (!config.bytes[t] && !config.rows[t]), "there are eight tiles");
        demand(config.bytes[t] <= MAX_BYTES && config.rows[t] <= MAX_ROWS, "the tile is too large");
        demand(!config.bytes[t] == !config.rows[t], "a tile has rows and no columns, or no rows");
    }
    memset(&state, 0, sizeof state);
    if (config.palette) {
        state.config = config;
    }
}

static void load(const instruction *i)
{
    const int rows = rows_of(i->reg), bytes = bytes_of(i->reg);
    memset(state.tiles[i->reg], 0, sizeof state.tiles[i->reg]);
    for (int r = 0; r < rows; r++) {
        memcpy(state.tiles[i->reg][r], i->base + r * i->index, (size_t) bytes);
    }
}

static void store(const instruction *i)
{
    const int rows = rows_of(i->reg), bytes = bytes_of(i->reg);
    for (int r = 0; r < rows; r++) {
        memcpy(i->base + r * i->index, state.tiles[i->reg][r], (size_t) bytes);
    }
}

static int value(uint8_t byte, int is_signed)
{
    return is_signed ? (int8_t) byte : byte;
}

/* c += a . b, four bytes of each at a time. */
static void multiply(int c, int a, int b, int a_signed, int b_signed)
{
    const int m = rows_of(c), n = bytes_of(c), k = bytes_of(a);
    demand(c != a && a != b && c != b, "a product needs three different tiles");
    demand(n % 4 == 0 && k % 4 == 0 && bytes_of(b) % 4 == 0, "columns are not whole elements");
    demand(rows_of(a) == m, "the rows of the sums and of the first factor differ");
    demand(bytes_of(b) == n, "the columns of the sums and of the second factor differ");
    demand(rows_of(b) == k / 4, "the columns of the first factor and rows of the second differ");
    for (int row = 0; row < m; row++) {
        for (int column = 0; column < n; column++) {
            uint32_t sum;
            uint8_t *to = state.tiles[c][row] + column / 4 * 4;
            memcpy(&sum, to, 4);
            if (column % 4) {
                continue;
            }
            for (int i = 0; i < k; i++) {
                const int left = value(state.tiles[a][row][i], a_signed);
                const int right = value(state.tiles[b][i / 4][column + i % 4], b_signed);
                sum += (uint32_t) (left * right);
            }
            memcpy(to, &sum, 4);
        }
    }
}

static void execute(const instruction *i)
{
    const int memory = i->mod != 3;
    if (i->opcode == 0x5E && !memory) {
        multiply(i->reg, i->rm, i->vvvv, i->pp == PF2 || i->pp == PF3,
                 i->pp == PF2 || i->pp == P66);
        return;
    }
    demand(i->vvvv == 0, "VEX.vvvv is in use");
    if (i->opcode == 0x4B && memory) {
        demand(i->rm == 4 && i->pp != NP, "not a tile instruction");
        (i->pp == PF3 ? store : load)(i);
    } else if (i->opcode == 0x49 && memory) {
        demand(i->reg == 0 && (i->pp == NP || i->pp == P66), "not a tile instruction");
        if (i->pp == NP) {
            load_config(i->base);
        } else {
            memcpy(i->base, &state.config, sizeof state.config);
        }
    } else if (i->opcode == 0x49 && i->pp == NP && i->reg == 0 && i->rm == 0) {
        memset(&state, 0, sizeof state); /* tilerelease */
    } else if (i->opcode == 0x49 && i->pp == PF2 && i->rm == 0) {
        rows_of(i->reg);
        memset(state.tiles[i->reg], 0, sizeof state.tiles[i->reg]);
    } else {
        refuse("not a tile instruction");
    }
}

static void on_sigill(int number, siginfo_t *info, void *context)
{
    ucontext_t *c = context;
    (void) number;
    (void) info;
    const instruction i = decode(c);
    execute(&i);
    c->uc_mcontext.gregs[REG_RIP] += i.length + i.trap;
    executed++;
}

static void say(void)
{
    fprintf(stderr, "amx_emulator: %ld instructions\n", executed);
}

__attribute__((constructor)) static void install(void)
{
    struct sigaction action = {.sa_sigaction = on_sigill, .sa_flags = SA_SIGINFO};
    _Static_assert(sizeof(tile_config) == 64, "what ldtilecfg reads");
    if (sigaction(SIGILL, &action, NULL) || atexit(say)) {
        refuse("cannot catch SIGILL");
    }
}
