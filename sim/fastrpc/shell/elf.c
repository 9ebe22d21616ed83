/*
 * The section with a checksum, without which some DSPs load no object (SA8797P, a v81).
 *
 * Source: its layout in the 28 libraries of Debian's hexagon-dsp-binaries that have it, from their
 * section headers; the message of a DSP without it is in hexagon-mlir #87.
 */
#include "elf.h"
#include "sys.h"

enum { MAGIC = 0x56495753, POLYNOMIAL = (int) 0xedb88320 }; /* MAGIC: "SWIV" */
static const uint32_t checksum_type = 0xd3574956;

bool elf_read(int fd, uint32_t offset, void *to, uint32_t bytes)
{
    int64_t at;
    if (sys_call(SYS_LLSEEK, fd, 0, (long) offset, (long) &at, 0, 0) < 0) {
        return false;
    }
    for (uint32_t done = 0; done < bytes;) {
        long got = sys_call(SYS_READ, fd, (long) to + (long) done, (long) (bytes - done), 0, 0, 0);
        if (got <= 0) {
            return false;
        }
        done += (uint32_t) got;
    }
    return true;
}

static uint32_t crc32(uint32_t crc, const uint8_t *at, uint32_t bytes)
{
    for (; bytes; bytes--, at++) {
        crc ^= *at;
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc & 1 ? (uint32_t) POLYNOMIAL : 0);
        }
    }
    return crc;
}

const char *checksum_wrong(int fd, const elf_header *h, const elf_segment *segment,
                           const uint8_t *base)
{
    elf_section section;
    uint32_t content[4]; /* magic, checksum, two words of unknown meaning */
    uint32_t last = h->section_offset + (h->section_count - 1u) * (uint32_t) sizeof(section);
    if (!h->section_count || h->section_bytes != sizeof(section) ||
        !elf_read(fd, last, &section, sizeof(section)) || section.type != checksum_type) {
        return "section header for CRC segment not found";
    }
    if (section.bytes != sizeof(content) ||
        !elf_read(fd, section.offset, content, sizeof(content)) || content[0] != MAGIC) {
        return "its section with the checksum is damaged";
    }
    uint32_t crc = ~0u;
    for (int i = 0; i < h->program_count; i++) {
        if (segment[i].type == PT_LOAD) {
            crc = crc32(crc, base + segment[i].address, segment[i].memory_bytes);
        }
    }
    return ~crc == content[1] ? NULL : "its checksum is wrong";
}
