/*
 * Load and relocate shared objects, and find their symbols.  Like the loader of a PD, this loader
 * accepts an ELF file for this machine that imports only names in imports.c, and finds symbols with
 * the System V hash table.  For any other file, a message gives the reason for the failure.
 *
 * Source: System V ABI; relocations from the Hexagon ABI as in LLVM's ELFRelocs/Hexagon.def; the
 * kinds of program headers and relocations are those of the objects that vendors ship.
 */
#include "elf.h"
#include "shell.h"

enum { MODULE_NAME = 128, HEADERS = 16, PAGE = 1 << 16, FILE_PAGE = 4096 };
enum { EM_HEXAGON = 164, ET_DYN = 3, PF_W = 2, ARCH_MASK = 0xff };
enum { R_32 = 6, R_GLOB_DAT = 33, R_JMP_SLOT = 34, R_RELATIVE = 35 };
enum { R_DTPMOD_32 = 44, R_DTPREL_32 = 47 };
enum { STB_WEAK = 2, STT_TLS = 6 };

/* Tags of the dynamic section; larger tags are ignored. */
enum {
    DT_NULL = 0,
    DT_NEEDED = 1,
    DT_PLTRELSZ = 2,
    DT_HASH = 4,
    DT_STRTAB = 5,
    DT_SYMTAB = 6,
    DT_RELA = 7,
    DT_RELASZ = 8,
    DT_STRSZ = 10,
    DT_INIT = 12,
    DT_FINI = 13,
    DT_JMPREL = 23,
    DT_INIT_ARRAY = 25,
    DT_FINI_ARRAY = 26,
    DT_INIT_ARRAYSZ = 27,
    DT_FINI_ARRAYSZ = 28,
    DT_TAGS = 29,
};

struct module {
    char name[MODULE_NAME]; /* empty: this entry is free */
    uint8_t *memory, *base; /* start of the mapping; address of offset 0 of the image */
    uint32_t mapped, bytes;
    uint32_t fixed;        /* bytes of the image before its first writable page */
    uint32_t uses;         /* handles and running calls that use the module */
    const uint32_t *entry; /* the dynamic section: pairs of tag and value */
    uint32_t entries;
    uint32_t dynamic[DT_TAGS]; /* the values by tag */
    uint32_t symbols;
    tls_image thread_local;
};

static module modules[MODULES];
static lock table;

static bool equal(const char *a, const char *b)
{
    while (*a && *a == *b) {
        a++;
        b++;
    }
    return *a == *b;
}

/* Return the address of *offset* in the image of *m*, or NULL if the image does not contain *bytes*
 * bytes from there. */
static void *inside(const module *m, uint32_t offset, uint32_t bytes)
{
    return offset <= m->bytes && bytes <= m->bytes - offset ? m->base + offset : NULL;
}

/* --- reading the file ------------------------------------------------------------------------ */

static const char *wrong_header(const elf_header *h)
{
    static const uint8_t magic[6] = {0x7f, 'E', 'L', 'F', 1, 1};
    if (__builtin_memcmp(h->magic, magic, sizeof(magic))) {
        return "it is not a 32-bit ELF file";
    }
    if (h->machine != EM_HEXAGON || h->type != ET_DYN) {
        return "it is not a shared object for the Hexagon";
    }
    if ((h->flags & ARCH_MASK) > shared->machine.arch) {
        return "it is built for a newer Hexagon";
    }
    if (h->program_bytes != sizeof(elf_segment) || h->program_count > HEADERS) {
        return "its program headers have another size, or are too many";
    }
    return NULL;
}

/* Allocate memory for the image, with its writable part at the start of a qemu page (64 KiB): qemu
 * write-protects pages whose code it has translated, and discards the translation at every write.
 * */
static bool map_image(module *m, const elf_segment *segment, int count)
{
    m->fixed = m->bytes;
    for (int i = 0; i < count; i++) {
        uint32_t start = segment[i].address & -FILE_PAGE;
        if (segment[i].type == PT_LOAD && segment[i].flags & PF_W && start < m->fixed) {
            m->fixed = start;
        }
    }
    uint32_t shift = -m->fixed & (PAGE - 1);
    m->mapped = m->bytes + shift;
    int protection = PROT_READ | PROT_WRITE | PROT_EXEC;
    m->memory = sys_map(NULL, m->mapped, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    m->base = m->memory + shift;
    return m->bytes && m->memory;
}

/* Read the segments into memory and find the dynamic section. */
static const char *read_segments(module *m, int fd)
{
    elf_header h;
    elf_segment segment[HEADERS];
    if (!elf_read(fd, 0, &h, sizeof(h))) {
        return "it is too short";
    }
    const char *wrong = wrong_header(&h);
    if (wrong) {
        return wrong;
    }
    if (!elf_read(fd, h.program_offset, segment, h.program_count * (uint32_t) sizeof(*segment))) {
        return "its program headers are cut off";
    }
    for (int i = 0; i < h.program_count; i++) {
        uint32_t end = segment[i].address + segment[i].memory_bytes;
        if (end < segment[i].address || end > 1u << 30) {
            return "a segment is too large";
        }
        if (segment[i].type == PT_LOAD && end > m->bytes) {
            m->bytes = end;
        }
    }
    if (!map_image(m, segment, h.program_count)) {
        return "no memory is left for it";
    }
    const elf_segment *dynamic = NULL;
    for (int i = 0; i < h.program_count; i++) {
        const elf_segment *s = &segment[i];
        if (s->type == PT_LOAD && (s->file_bytes > s->memory_bytes ||
                                   !elf_read(fd, s->offset, m->base + s->address, s->file_bytes))) {
            return "a segment is cut off";
        }
        dynamic = s->type == PT_DYNAMIC ? s : dynamic;
        if (s->type == PT_TLS) {
            m->thread_local = (tls_image){inside(m, s->address, s->file_bytes), s->file_bytes,
                                          s->memory_bytes, s->alignment};
            if (!m->thread_local.start || s->file_bytes > s->memory_bytes ||
                s->alignment & (s->alignment - 1)) {
                return "its thread-local variables are damaged";
            }
        }
    }
    wrong = shared->machine.checksum ? checksum_wrong(fd, &h, segment, m->base) : NULL;
    wrong = !wrong && shared->machine.vtcm_traps ? vectors_watch(fd, &h, m->base) : wrong;
    if (wrong) {
        return wrong;
    }
    if (dynamic) {
        m->entry = inside(m, dynamic->address, dynamic->memory_bytes);
        m->entries = dynamic->memory_bytes / 8;
    }
    return m->entry ? NULL : "it has no dynamic section";
}

static void read_dynamic(module *m)
{
    for (uint32_t i = 0; i < m->entries && m->entry[2 * i] != DT_NULL; i++) {
        if (m->entry[2 * i] < DT_TAGS) {
            m->dynamic[m->entry[2 * i]] = m->entry[2 * i + 1];
        }
    }
}

/* --- symbols --------------------------------------------------------------------------------- */

static const char *symbol_name(const module *m, const elf_symbol *s)
{
    return (const char *) m->base + m->dynamic[DT_STRTAB] + s->name;
}

/* Check that the tables are inside the image, and symbol names inside the string table. */
static const char *check_tables(module *m)
{
    read_dynamic(m);
    const uint32_t *d = m->dynamic;
    const uint32_t *hash = d[DT_HASH] ? inside(m, d[DT_HASH], 8) : NULL;
    if (!hash || hash[0] == 0 || hash[0] > m->bytes / 4 || hash[1] > m->bytes / 16 ||
        !inside(m, d[DT_HASH], 8 + 4 * (hash[0] + hash[1]))) {
        return "it has no hash table (link with --hash-style=sysv)";
    }
    m->symbols = hash[1];
    const elf_symbol *symbol = inside(m, d[DT_SYMTAB], m->symbols * (uint32_t) sizeof(*symbol));
    const char *strings = inside(m, d[DT_STRTAB], d[DT_STRSZ]);
    if (!symbol || !strings || !d[DT_STRSZ] || strings[d[DT_STRSZ] - 1]) {
        return "its symbol table is damaged";
    }
    for (uint32_t i = 0; i < m->symbols; i++) {
        bool thread_local = (symbol[i].info & 15) == STT_TLS; /* its value is an offset */
        uint32_t most = thread_local ? m->thread_local.bytes : m->bytes;
        if (symbol[i].name >= d[DT_STRSZ] || (symbol[i].section && symbol[i].value > most)) {
            return "its symbol table is damaged";
        }
    }
    if (!inside(m, d[DT_RELA], d[DT_RELASZ]) || !inside(m, d[DT_JMPREL], d[DT_PLTRELSZ]) ||
        !inside(m, d[DT_INIT_ARRAY], d[DT_INIT_ARRAYSZ]) ||
        !inside(m, d[DT_FINI_ARRAY], d[DT_FINI_ARRAYSZ])) {
        return "its relocations are damaged";
    }
    return NULL;
}

static bool same_name(const char *symbol, const char *name, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (symbol[i] != name[i]) {
            return false;
        }
    }
    return symbol[bytes] == 0;
}

/* The hash of the System V ABI. */
static uint32_t hash_of(const char *name, size_t bytes)
{
    uint32_t h = 0;
    for (size_t i = 0; i < bytes; i++) {
        h = (h << 4) + (uint8_t) name[i];
        h = (h ^ (h & 0xf0000000u) >> 24) & 0x0fffffffu;
    }
    return h;
}

void *module_symbol(const module *m, const char *name, size_t bytes)
{
    const uint32_t *hash = (const uint32_t *) (m->base + m->dynamic[DT_HASH]);
    const uint32_t *bucket = hash + 2, *chain = bucket + hash[0];
    const elf_symbol *symbol = (const elf_symbol *) (m->base + m->dynamic[DT_SYMTAB]);
    uint32_t i = bucket[hash_of(name, bytes) % hash[0]];
    for (uint32_t steps = 0; i && i < m->symbols && steps < m->symbols; i = chain[i], steps++) {
        if (symbol[i].section && same_name(symbol_name(m, &symbol[i]), name, bytes)) {
            return m->base + symbol[i].value;
        }
    }
    return NULL;
}

bool module_tls(uint32_t number, tls_image *image)
{
    bool there = number && number <= MODULES && modules[number - 1].thread_local.bytes;
    if (there) {
        *image = modules[number - 1].thread_local;
    }
    return there;
}

/* --- relocation ------------------------------------------------------------------------------ */

/* Find the address that a relocation refers to; false, after a message, if the symbol is undefined.
 * */
static bool resolve(const module *m, uint32_t index, uint32_t *value)
{
    *value = 0;
    if (index == 0) {
        return true;
    }
    const elf_symbol *s = (const elf_symbol *) (m->base + m->dynamic[DT_SYMTAB]) + index;
    if (index < m->symbols && s->section) {
        *value = (uint32_t) m->base + s->value;
        return true;
    }
    const char *name = index < m->symbols ? symbol_name(m, s) : "(none)";
    *value = (uint32_t) import_find(name);
    if (*value || s->info >> 4 == STB_WEAK) {
        return true;
    }
    say("%s: undefined symbol %s", m->name, name);
    return false;
}

static uint32_t number_of(const module *m)
{
    return (uint32_t) (m - modules) + 1;
}

/* Return the offset of a thread-local variable of *m*, for symbol 0 the start of them. */
static uint32_t thread_offset(const module *m, uint32_t index)
{
    const elf_symbol *s = (const elf_symbol *) (m->base + m->dynamic[DT_SYMTAB]) + index;
    return index ? s->value : 0;
}

static const char *relocate(module *m, uint32_t offset, uint32_t bytes)
{
    const elf_relocation *r = (const elf_relocation *) (m->base + offset);
    for (uint32_t i = 0; i + sizeof(*r) <= bytes; i += sizeof(*r), r++) {
        uint32_t *word = inside(m, r->offset, 4), value;
        if (!word || r->offset & 3 || r->offset < m->fixed || !resolve(m, r->info >> 8, &value)) {
            return "a relocation is not possible";
        }
        switch (r->info & 0xff) {
        case R_RELATIVE:
            *word = (uint32_t) m->base + (uint32_t) r->addend;
            break;
        case R_32:
        case R_GLOB_DAT:
        case R_JMP_SLOT:
            *word = value + (uint32_t) r->addend;
            break;
        case R_DTPMOD_32:
            *word = number_of(m);
            break;
        case R_DTPREL_32:
            *word = thread_offset(m, r->info >> 8) + (uint32_t) r->addend;
            break;
        default:
            return "a relocation has an unknown type";
        }
    }
    return NULL;
}

/* --- loading --------------------------------------------------------------------------------- */

static void run_functions(const module *m, uint32_t single, uint32_t array, uint32_t array_bytes)
{
    if (m->dynamic[single]) {
        ((void (*)(void))(m->base + m->dynamic[single]))();
    }
    void (**function)(void) = (void (**)(void))(m->base + m->dynamic[array]);
    for (uint32_t i = 0; i < m->dynamic[array_bytes] / 4; i++) {
        function[i]();
    }
}

/* Libraries that every PD has; a skel that needs another one does not load.  Source: the skels of
 * qualcomm/fastrpc. */
static const char *const present[] = {"libc.so", "libgcc.so"};

static const char *check_needed(const module *m)
{
    for (uint32_t i = 0; i < m->entries && m->entry[2 * i] != DT_NULL; i++) {
        if (m->entry[2 * i] != DT_NEEDED) {
            continue;
        }
        uint32_t name = m->entry[2 * i + 1];
        const char *needed = (const char *) m->base + m->dynamic[DT_STRTAB] + name;
        if (name >= m->dynamic[DT_STRSZ] ||
            !(equal(needed, present[0]) || equal(needed, present[1]))) {
            return "it needs a library that this PD does not have";
        }
    }
    return NULL;
}

static const char *load_into(module *m, int fd)
{
    const char *wrong = read_segments(m, fd);
    wrong = wrong ? wrong : check_tables(m);
    wrong = wrong ? wrong : check_needed(m);
    wrong = wrong ? wrong : relocate(m, m->dynamic[DT_RELA], m->dynamic[DT_RELASZ]);
    wrong = wrong ? wrong : relocate(m, m->dynamic[DT_JMPREL], m->dynamic[DT_PLTRELSZ]);
    if (!wrong) {
        long code = PROT_READ | PROT_EXEC;
        sys_call(SYS_MPROTECT, (long) m->memory, m->base - m->memory + m->fixed, code, 0, 0, 0);
        run_functions(m, DT_INIT, DT_INIT_ARRAY, DT_INIT_ARRAYSZ);
    }
    return wrong;
}

static void discard(module *m)
{
    tls_module_ends(number_of(m));
    if (m->memory) {
        sys_unmap(m->memory, m->mapped);
    }
    __builtin_memset(m, 0, sizeof(*m));
}

/* Return the module called *name*, else a free entry, else NULL. */
static module *entry_for(const char *name, size_t bytes)
{
    module *free = NULL;
    for (int i = 0; i < MODULES; i++) {
        if (modules[i].name[0] && same_name(modules[i].name, name, bytes)) {
            return &modules[i];
        }
        if (!modules[i].name[0] && !free) {
            free = &modules[i];
        }
    }
    return free;
}

int module_load(const char *name, size_t bytes, int fd, module **loaded)
{
    lock_take(&table);
    module *m = bytes && bytes < MODULE_NAME ? entry_for(name, bytes) : NULL;
    const char *wrong = m ? NULL : "too many modules are loaded, or its name is too long";
    if (m && !m->name[0]) {
        __builtin_memcpy(m->name, name, bytes);
        wrong = load_into(m, fd);
        if (wrong) {
            discard(m);
        }
    }
    if (wrong) {
        say("cannot load %.*s: %s", (int) bytes, name, wrong);
    } else {
        m->uses++;
        *loaded = m;
    }
    lock_leave(&table);
    return wrong ? DSP_UNABLE_TO_LOAD : DSP_OK;
}

void module_keep(module *m)
{
    lock_take(&table);
    m->uses++;
    lock_leave(&table);
}

/* Unload a module after its last use, so that the next open starts with fresh data. */
void module_drop(module *m)
{
    lock_take(&table);
    if (--m->uses == 0) {
        run_functions(m, DT_FINI, DT_FINI_ARRAY, DT_FINI_ARRAYSZ);
        discard(m);
    }
    lock_leave(&table);
}
