/* ELF files of 32 bits.  Source: System V ABI, chapters 4 and 5. */
#ifndef ELF_H
#define ELF_H

#include <stdbool.h>
#include <stdint.h>

enum { PT_LOAD = 1, PT_DYNAMIC = 2, PT_TLS = 7 };

typedef struct {
    uint8_t magic[16];
    uint16_t type, machine;
    uint32_t version, entry, program_offset, section_offset, flags;
    uint16_t header_bytes, program_bytes, program_count;
    uint16_t section_bytes, section_count, section_names;
} elf_header;

typedef struct {
    uint32_t type, offset, address, physical, file_bytes, memory_bytes, flags, alignment;
} elf_segment;

typedef struct {
    uint32_t name, value, bytes;
    uint8_t info, other;
    uint16_t section;
} elf_symbol;

typedef struct {
    uint32_t offset, info;
    int32_t addend;
} elf_relocation;

typedef struct {
    uint32_t name, type, flags, address, offset, bytes, link, info, alignment, entry_bytes;
} elf_section;

/* Read a part of a file; false: the file ends before. */
bool elf_read(int fd, uint32_t offset, void *to, uint32_t bytes);

/* Check the checksum of a file with the headers *h* and *segment*, whose segments are loaded at
 * *base*.  Return the reason why a DSP that requires the checksum refuses the file, or NULL. */
const char *checksum_wrong(int fd, const elf_header *h, const elf_segment *segment,
                           const uint8_t *base);

/* vectors.c: make unaligned vector accesses to VTCM end the PD, in the code of a file that is loaded
 * at *base*.  Return the reason why this is not possible, or NULL. */
const char *vectors_watch(int fd, const elf_header *h, uint8_t *base);

#endif
