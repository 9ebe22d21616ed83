/*
 * Unaligned vector loads and stores to VTCM, which a DSP may refuse, end the PD with the setting
 * `vtcm_traps`.
 *
 * The loader replaces the first word of each packet with such an instruction by a jump to a stub.
 * The stub checks the address, runs a copy of the packet and jumps back.  An end of a hardware loop
 * stays correct in the copy, because it is a mark in the packet and the start of the loop is in a
 * register.  The loader refuses a file in which such a packet has a call or a far branch.
 *
 * Source of the instruction words: LLVM, HexagonDepInstrFormats.td and HexagonDepInstrInfo.td.
 */
#include "elf.h"
#include "hap.h"

enum { SHF_EXECINSTR = 4, PACKET = 4, STUB_WORDS = 15, REACH = 8 << 20 };
enum { CHECK_WORDS = 7, SITE = STUB_WORDS - 1 }; /* of a stub: its check; the word for the check */
enum { UNKNOWN = 1 };                            /* no branch has only this bit */

/* --- the check ------------------------------------------------------------------------------- */

/* Check an access at the address in a register plus a number of vectors.  `back` is the last
 * packet of a stub's check, of two words.  This function has no loop, because hardware loops of the skel may be active. */
__attribute__((used)) void vectors_check(const uint32_t *registers, const uint32_t *back)
{
    int32_t site = (int32_t) back[SITE - (CHECK_WORDS - 2)];
    uint32_t address = registers[site & 31] + (uint32_t) (site >> 5) * 128u;
    if (address % 128 && (vtcm_contains(address) || vtcm_contains(address + 127))) {
        die("an unaligned vector access to VTCM, at %p", (void *) address);
    }
}

/* Call vectors_check() with the values of all registers, and change only r28 and r31, which the stub
 * restores. */
__attribute__((naked, used)) void vectors_enter(void)
{
    __asm__ volatile("{ memd(r29+#-144) = r1:0; memd(r29+#-136) = r3:2 }\n"
                     "{ memd(r29+#-128) = r5:4; memd(r29+#-120) = r7:6 }\n"
                     "{ memd(r29+#-112) = r9:8; memd(r29+#-104) = r11:10 }\n"
                     "{ memd(r29+#-96) = r13:12; memd(r29+#-88) = r15:14 }\n"
                     "{ memd(r29+#-80) = r17:16; memd(r29+#-72) = r19:18 }\n"
                     "{ memd(r29+#-64) = r21:20; memd(r29+#-56) = r23:22 }\n"
                     "{ memd(r29+#-48) = r25:24; memd(r29+#-40) = r27:26 }\n"
                     "{ r28 = memw(r29+#-4) }\n"
                     "{ memd(r29+#-32) = r29:28; memw(r29+#-24) = r30 }\n"
                     "{ r0 = p3:0; r1 = r31 }\n"
                     "{ memw(r29+#-20) = r0; memw(r29+#-16) = r1 }\n"
                     "{ r0 = add(r29,#-144); r29 = add(r29,#-144) }\n"
                     "{ call vectors_check }\n"
                     "{ r29 = add(r29,#144) }\n"
                     "{ r0 = memw(r29+#-20); r31 = memw(r29+#-16) }\n"
                     "{ p3:0 = r0 }\n"
                     "{ r1:0 = memd(r29+#-144); r3:2 = memd(r29+#-136) }\n"
                     "{ r5:4 = memd(r29+#-128); r7:6 = memd(r29+#-120) }\n"
                     "{ r9:8 = memd(r29+#-112); r11:10 = memd(r29+#-104) }\n"
                     "{ r13:12 = memd(r29+#-96); r15:14 = memd(r29+#-88) }\n"
                     "{ jumpr r31 }\n");
}

/* The start of each stub.  A skel's memory below its stack pointer is free. */
__attribute__((naked, used)) void vectors_stub(void)
{
    __asm__ volatile("{ memw(r29+#-8) = r31; memw(r29+#-4) = r28 }\n"
                     "{ r28 = ##vectors_enter }\n"
                     "{ callr r28 }\n"
                     "{ r31 = memw(r29+#-8); r28 = memw(r29+#-4) }\n");
}

/* --- packets --------------------------------------------------------------------------------- */

static bool ends_packet(uint32_t word)
{
    uint32_t parse = word >> 14 & 3; /* 3: the last instruction; 0: two short ones, also last */
    return parse == 3 || parse == 0;
}

/* Return whether an instruction accesses a vector at any address: vmemu. */
static bool is_unaligned(uint32_t word)
{
    uint32_t kind = word >> 5 & 7;
    if (!(word >> 14 & 3)) { /* two short instructions */
        return false;
    }
    switch (word >> 21) {
    case 0x140: /* load: base and offset, or with the base increased by a number or register */
    case 0x148:
    case 0x158:
    case 0x141: /* store */
    case 0x149:
    case 0x159:
        return kind == 7;
    case 0x145: /* store under a condition; the condition is not looked at */
    case 0x14d:
    case 0x15d:
        return kind >= 6;
    default:
        return false;
    }
}

/* Return the word of a stub for the check: register and offset, which only some forms have. */
static uint32_t site_of(uint32_t word)
{
    int32_t offset = (int32_t) ((word >> 10 & 8) | (word >> 8 & 7));
    bool based = (word >> 24 & 15) == 8;
    return (word >> 16 & 31) | (uint32_t) (based ? (offset ^ 8) - 8 : 0) << 5;
}

/* Return the bits of a direct branch's word that hold its distance, or 0 if it is no branch.  Call
 * a branch UNKNOWN if it uses its own place in another way: calls, starts of loops, sums of pc. */
static uint32_t distance_bits(uint32_t word)
{
    uint32_t group = word >> 28, kind = word >> 24;
    if (kind >> 3 == 2 || kind >> 3 == 4) { /* a comparison and a jump */
        return 0x003000fe;
    }
    if (kind == 0x58 || kind == 0x59) { /* jump */
        return 0x01ff3ffe;
    }
    if (kind == 0x5c) { /* jump on a predicate */
        return 0x00df20fe;
    }
    bool register_jump = kind == 0x52 || kind == 0x53;
    bool elsewhere = group == 5 || group == 6 || !(word >> 14 & 3);
    return elsewhere && !register_jump ? UNKNOWN : 0;
}

/* Return the number of words that a branch jumps. */
static int32_t distance_of(uint32_t word, uint32_t bits)
{
    uint32_t value = 0, width = 0;
    for (uint32_t bit = 0; bit < 32; bit++) {
        if (bits >> bit & 1) {
            value |= (word >> bit & 1) << width++;
        }
    }
    uint32_t sign = 1u << (width - 1);
    return (int32_t) (value ^ sign) - (int32_t) sign;
}

static uint32_t with_distance(uint32_t word, uint32_t bits, uint32_t distance)
{
    for (uint32_t bit = 0; bit < 32; bit++) {
        if (bits >> bit & 1) {
            word = (word & ~(1u << bit)) | (distance & 1) << bit;
            distance >>= 1;
        }
    }
    return word;
}

static uint32_t jump(const uint32_t *from, const uint32_t *to)
{
    return with_distance(0x5800c000u, 0x01ff3ffe, (uint32_t) (to - from));
}

/* --- a file's code --------------------------------------------------------------------------- */

typedef struct {
    uint32_t *at; /* NULL: count only */
    uint32_t count;
} stubs;

/* Copy a packet to a stub.  Branches lead to jumps behind the copy, which reach further. */
static void copy(uint32_t *stub, const uint32_t *packet, uint32_t words, uint32_t site)
{
    __builtin_memcpy(stub, (const void *) vectors_stub, CHECK_WORDS * sizeof(*stub));
    uint32_t *to = stub + CHECK_WORDS, *after = to + words;
    *after = jump(after, packet + words);
    for (uint32_t i = 0; i < words; i++) {
        uint32_t bits = distance_bits(packet[i]);
        to[i] = packet[i];
        if (bits) {
            after++;
            *after = jump(after, packet + distance_of(packet[i], bits));
            to[i] = with_distance(packet[i], bits, (uint32_t) (after - to));
        }
    }
    stub[SITE] = site;
}

static const char *divert(stubs *made, uint32_t *packet, uint32_t words, uint32_t site)
{
    bool branch = false, constant = false; /* a long constant may be the distance of a branch */
    for (uint32_t i = 0; i < words; i++) {
        uint32_t bits = distance_bits(packet[i]);
        branch |= bits != 0;
        constant |= packet[i] >> 28 == 0;
        if (bits == UNKNOWN || (branch && constant)) {
            return "a packet with an unaligned vector access cannot be copied";
        }
    }
    if (made->at) {
        uint32_t *stub = made->at + made->count * STUB_WORDS;
        copy(stub, packet, words, site);
        packet[0] = jump(packet, stub);
    }
    made->count++;
    return NULL;
}

static const char *scan(stubs *made, uint32_t *code, const uint32_t *end)
{
    while (code < end) {
        uint32_t words = 0, found = 0;
        do {
            found = is_unaligned(code[words]) ? code[words] : found;
            words++;
        } while (!ends_packet(code[words - 1]) && words < PACKET && code + words < end);
        const char *wrong = found ? divert(made, code, words, site_of(found)) : NULL;
        if (wrong) {
            return wrong;
        }
        code += words;
    }
    return NULL;
}

static const char *scan_sections(int fd, const elf_header *h, uint8_t *base, stubs *made)
{
    for (uint32_t i = 0; i < h->section_count; i++) {
        elf_section s;
        if (!elf_read(fd, h->section_offset + i * (uint32_t) sizeof(s), &s, sizeof(s))) {
            return "its section headers are cut off";
        }
        uint32_t *code = (uint32_t *) (base + s.address);
        const char *wrong =
            s.flags & SHF_EXECINSTR ? scan(made, code, code + s.bytes / sizeof(*code)) : NULL;
        if (wrong) {
            return wrong;
        }
    }
    return NULL;
}

const char *vectors_watch(int fd, const elf_header *h, uint8_t *base)
{
    stubs made = {0};
    const char *wrong = scan_sections(fd, h, base, &made);
    if (wrong || !made.count) {
        return wrong;
    }
    uint32_t bytes = made.count * STUB_WORDS * (uint32_t) sizeof(*made.at);
    int protection = PROT_READ | PROT_WRITE | PROT_EXEC;
    uint8_t *memory = sys_map(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    uint32_t distance = (uint32_t) (memory < base ? base - memory : memory - base);
    if (!memory || distance > REACH / 2) {
        return "no memory near it is left for checks of vector accesses";
    }
    made = (stubs){.at = (uint32_t *) memory};
    return scan_sections(fd, h, base, &made);
}
