/*
 * Settings and injected faults, from NPURT_SIM_FASTRPC (read once) and npurt_sim_control.  Both
 * hold words separated by commas or blanks: `arch=v73,vtcm=4M,crash=3+`.
 */
#include "sim.h"
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD = 128, KIB = 10, MIB = 20, GIB = 30 };

/* One row per DSP version.  VTCM is that of the first SoC with this version, according to
 * ExecuTorch qc_schema (QCM6490, SM8450, SM8550, SM8650, SM8750, SM8850).  HVX contexts are 6 and 8
 * for v79 and v81 (source: MNN), 2 for v65 and 4 for the others.  The address space is the most
 * that ggml-hexagon maps. */
static const struct {
    uint32_t arch, hvx, vtcm, space;
} archs[] = {
    {0x65, 2, 256u << KIB, 3000u << MIB}, {0x66, 4, 256u << KIB, 3000u << MIB},
    {0x68, 4, 2u << MIB, 3000u << MIB},   {0x69, 4, 8u << MIB, 3000u << MIB},
    {0x73, 4, 8u << MIB, 3000u << MIB},   {0x75, 4, 8u << MIB, 3200u << MIB},
    {0x79, 6, 8u << MIB, 3200u << MIB},   {0x81, 8, 8u << MIB, 3200u << MIB},
};

typedef struct {
    uint64_t left; /* calls until the fault occurs; 0: not set */
    bool stays;    /* the fault also occurs at every later call */
    uint32_t argument;
} fault;

static const struct {
    const char *name;
    uint32_t argument; /* used if the setting gives none */
} fault_words[FAULTS] = {
    [FAULT_START] = {"start", 0xffffffffu},
    [FAULT_OPEN] = {"open", (uint32_t) DSP_EUNABLETOLOAD},
    [FAULT_WRONG_ARCH] = {"wrong_arch", 0},
    [FAULT_NO_SYMBOL] = {"no_symbol", 0},
    [FAULT_NO_MEMORY] = {"no_memory", 0},
    [FAULT_BAD_MEMORY] = {"bad_memory", 0},
    [FAULT_MAP] = {"map", AEE_EFAILED},
    [FAULT_INVOKE] = {"invoke", (uint32_t) DSP_EBADSTATE},
    [FAULT_DELAY] = {"delay", 1000},
    [FAULT_CRASH] = {"crash", 0},
    [FAULT_SSR] = {"ssr", 200},
    [FAULT_WRONG_BYTE] = {"wrong_byte", 0},
    [FAULT_QUEUE_CREATE] = {"queue_create", AEE_EUNSUPPORTED},
    [FAULT_QUEUE_READ] = {"queue_read", AEE_EINTERRUPTED},
};

static sim_settings current;
static fault faults[FAULTS];
static bool loaded;
static char misunderstood[WORD]; /* the unknown word in NPURT_SIM_FASTRPC; "": there is none */

/* --- messages -------------------------------------------------------------------------------- */

static pthread_mutex_t saying = PTHREAD_MUTEX_INITIALIZER;
static char last[1024];
static bool topical; /* `last` was reported after the newest process start */

void report(const char *format, ...)
{
    char text[sizeof(last)];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof(text), format, values);
    va_end(values);
    pthread_mutex_lock(&saying);
    topical = true;
    if (strcmp(text, last) != 0) {
        fprintf(stderr, "libcdsprpc_sim: %s\n", text);
        memcpy(last, text, sizeof(last));
    }
    pthread_mutex_unlock(&saying);
}

void report_forget(void)
{
    pthread_mutex_lock(&saying);
    topical = false;
    pthread_mutex_unlock(&saying);
}

void report_reset(void)
{
    pthread_mutex_init(&saying, NULL);
}

size_t npurt_sim_error(char *text, size_t bytes)
{
    pthread_mutex_lock(&saying);
    const char *said = topical ? last : "";
    size_t length = strlen(said);
    if (text && bytes) {
        snprintf(text, bytes, "%s", said);
    }
    pthread_mutex_unlock(&saying);
    return length;
}

/* --- words ----------------------------------------------------------------------------------- */

/* Read a number such as 12, 0x1f or 2M; false: *text* is not a number. */
static bool read_number(const char *text, uint64_t *number)
{
    if (!isdigit((unsigned char) *text)) {
        return false;
    }
    char *end;
    errno = 0;
    *number = strtoull(text, &end, 0);
    int shift = *end == 'K' ? KIB : *end == 'M' ? MIB : *end == 'G' ? GIB : 0;
    if (errno || *number >> (63 - shift)) {
        return false;
    }
    *number <<= shift;
    return end[shift != 0] == 0;
}

static bool set_arch(const char *value)
{
    char *end;
    uint32_t arch = *value == 'v' ? (uint32_t) strtoul(value + 1, &end, 16) : 0;
    for (size_t i = 0; i < sizeof(archs) / sizeof(archs[0]); i++) {
        if (archs[i].arch == arch && *end == 0) {
            current.machine.arch = arch;
            current.machine.hvx = archs[i].hvx;
            current.machine.vtcm = archs[i].vtcm;
            current.machine.space = archs[i].space;
            return true;
        }
    }
    return false;
}

static bool set_flag(bool *flag, const char *value)
{
    *flag = *value == '1';
    return (*value == '0' || *value == '1') && value[1] == 0;
}

static bool set_word(uint32_t *word, const char *value, uint64_t most)
{
    uint64_t number;
    bool good = read_number(value, &number) && number <= most;
    *word = good ? (uint32_t) number : *word;
    return good;
}

static bool set_name(char name[LINK_NAME], const char *value)
{
    return snprintf(name, LINK_NAME, "%s", value) < LINK_NAME;
}

/* Read NTH or NTH+: the number of a call, and whether later calls are meant too. */
static bool read_turn(char *text, uint64_t *nth, bool *stays)
{
    size_t length = strlen(text);
    *stays = length && text[length - 1] == '+';
    text[length - *stays] = 0;
    return read_number(text, nth);
}

/* Set the call that fails from a value of the form NAME[:NTH[+]]; without a number, all calls. */
static bool set_failure(link_machine *m, const char *value)
{
    char text[WORD];
    snprintf(text, sizeof(text), "%s", value);
    char *turn = strchr(text, ':');
    uint64_t nth = 1;
    bool stays = true;
    if (turn) {
        *turn = 0;
    }
    if ((turn && !read_turn(turn + 1, &nth, &stays)) || nth >> 32 || !set_name(m->fails, text)) {
        return false;
    }
    m->fails_first = (uint32_t) nth;
    m->fails_last = stays ? UINT32_MAX : (uint32_t) nth;
    return true;
}

static bool set_flag_word(uint32_t *word, const char *value)
{
    return set_word(word, value, 1);
}

/* Set a fault from a value of the form NTH[+][:ARGUMENT]. */
static bool set_fault(fault *f, const char *value, uint32_t argument)
{
    char text[WORD];
    snprintf(text, sizeof(text), "%s", value);
    char *after = strchr(text, ':');
    uint64_t nth, given = argument;
    if (after) {
        *after = 0;
    }
    bool stays;
    if (!read_turn(text, &nth, &stays) || (after && !read_number(after + 1, &given)) ||
        given >> 32) {
        return false;
    }
    *f = (fault){nth, stays, (uint32_t) given};
    return true;
}

static void set_defaults(void)
{
    memset(misunderstood, 0, sizeof(misunderstood));
    memset(faults, 0, sizeof(faults));
    current = (sim_settings){.present = true, .unsigned_pd = true, .coherent = true};
    current.rpcmem = 8ull << GIB;
    current.machine = (link_machine){.version = LINK_VERSION, .stack = 16u << KIB, .power = 1};
    set_arch("v68");
}

static bool set_value(const char *key, const char *value)
{
    link_machine *m = &current.machine;
    for (int i = 0; i < FAULTS; i++) {
        if (strcmp(key, fault_words[i].name) == 0) {
            return set_fault(&faults[i], value, fault_words[i].argument);
        }
    }
    return (strcmp(key, "arch") == 0 && set_arch(value)) ||
           (strcmp(key, "hvx") == 0 && set_word(&m->hvx, value, 16)) ||
           (strcmp(key, "vtcm") == 0 && set_word(&m->vtcm, value, 64u << MIB)) ||
           (strcmp(key, "space") == 0 && set_word(&m->space, value, 3500u << MIB)) ||
           (strcmp(key, "rpcmem") == 0 && read_number(value, &current.rpcmem)) ||
           (strcmp(key, "coherent") == 0 && set_flag(&current.coherent, value)) ||
           (strcmp(key, "power") == 0 && set_flag_word(&m->power, value)) ||
           (strcmp(key, "shadow") == 0 && set_flag_word(&m->shadow, value)) ||
           (strcmp(key, "vtcm_traps") == 0 && set_flag_word(&m->vtcm_traps, value)) ||
           (strcmp(key, "checksum") == 0 && set_flag_word(&m->checksum, value)) ||
           (strcmp(key, "without") == 0 && set_name(m->without, value)) ||
           (strcmp(key, "fails") == 0 && set_failure(m, value)) ||
           (strcmp(key, "queue_stuck") == 0 && set_flag_word(&m->queue_stuck, value)) ||
           (strcmp(key, "present") == 0 && set_flag(&current.present, value)) ||
           (strcmp(key, "signed") == 0 && set_flag(&current.signed_pd, value)) ||
           (strcmp(key, "unsigned") == 0 && set_flag(&current.unsigned_pd, value)) ||
           (strcmp(key, "log") == 0 && set_flag(&current.log, value));
}

static bool set_one(char *word)
{
    char *value = strchr(word, '=');
    if (value) {
        *value = 0;
        bool good = set_value(word, value + 1);
        *value = '=';
        return good;
    }
    if (strcmp(word, "reset") == 0) {
        set_defaults();
        queues_reset();
        return true;
    }
    current.faithful = strcmp(word, "faithful") == 0;
    return current.faithful || strcmp(word, "strict") == 0;
}

/* Apply a list of settings.  If a setting is wrong, apply none, copy the wrong one to *word* and
 * return false. */
static bool set_all(const char *text, char word[WORD])
{
    sim_settings old = current;
    fault old_faults[FAULTS];
    memcpy(old_faults, faults, sizeof(faults));
    while (*text) {
        size_t length = strcspn(text, ", \t\n");
        snprintf(word, WORD, "%.*s", (int) length, text);
        if (length >= WORD || (length && !set_one(word))) {
            current = old;
            memcpy(faults, old_faults, sizeof(faults));
            return false;
        }
        text += length + (text[length] != 0);
    }
    return true;
}

/* --- interface of sim.h --------------------------------------------------------------------------
 * */

const sim_settings *settings(void)
{
    if (!loaded) {
        const char *text = getenv("NPURT_SIM_FASTRPC");
        loaded = true;
        char word[WORD];
        set_defaults();
        if (!set_all(text ? text : "", word)) {
            memcpy(misunderstood, word, sizeof(misunderstood));
        }
    }
    return &current;
}

bool settings_understood(void)
{
    settings();
    if (*misunderstood) {
        report("unknown setting: %s\n  remedy: correct NPURT_SIM_FASTRPC, see docs/simulators.md",
               misunderstood);
    }
    return !*misunderstood;
}

bool fault_due(sim_fault which, uint32_t *argument)
{
    settings();
    fault *f = &faults[which];
    if (f->left == 0) {
        return false;
    }
    f->left--;
    if (f->left) {
        return false;
    }
    f->left = f->stays;
    *argument = f->argument;
    return true;
}

static uint32_t told;

uint32_t settings_told(void)
{
    return load(&told);
}

int npurt_sim_control(const char *text)
{
    char word[WORD];
    pthread_mutex_lock(&sim_lock);
    __atomic_fetch_add(&told, 1, __ATOMIC_SEQ_CST);
    settings();
    bool good = text && set_all(text, word);
    if (good) {
        queues_stuck(current.machine.queue_stuck);
    } else if (text) {
        report("unknown setting: %s; see docs/simulators.md", word);
    }
    pthread_mutex_unlock(&sim_lock);
    return good ? AEE_SUCCESS : AEE_EBADPARM;
}
