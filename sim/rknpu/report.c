/*
 * Messages and counters.
 *
 * Times are estimates of the model in cost.c, and every output labels them as such.
 */
#include "npu.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const DRIVER_NAMES[DRIVERS] = {"rocket", "rknpu"};

enum { LAST_TASKS = 32, REASONS = 8 };
struct tally {
    uint64_t tasks, words, macs, mac_cycles, features, weights, outputs;
    double ns;
};
static struct {
    uint64_t submits[DRIVERS], jobs[DRIVERS], switches;
    uint64_t refused, dropped; /* jobs, by the NPU; by the driver */
    struct tally cores[DRIVERS][CORES];
    struct {
        enum driver driver;
        int core;
        struct cost cost;
    } last[LAST_TASKS]; /* a ring */
    uint64_t last_count;
    char why[WHY_SIZE];
    struct {
        char text[WHY_SIZE];
        uint64_t times;
    } reasons[REASONS]; /* the first different reasons */
} counters;

bool refuse(struct why *why, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why->text, sizeof(why->text), format, arguments);
    va_end(arguments);
    return false;
}

void sim_log(int level, const char *format, ...)
{
    char line[2 * WHY_SIZE];
    if (level > settings.log) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    fprintf(stderr, "rknpu-sim: %s\n", line);
}

void report_reset(void)
{
    memset(&counters, 0, sizeof(counters));
}

void report_submit(enum driver driver, int jobs)
{
    counters.submits[driver]++;
    counters.jobs[driver] += (uint64_t) jobs;
}

void report_switch(void)
{
    counters.switches++;
}

void report_task(enum driver driver, int core, uint32_t words, const struct cost *cost)
{
    struct tally *tally = &counters.cores[driver][core];
    tally->tasks++;
    tally->words += words;
    tally->macs += cost->macs;
    tally->mac_cycles += cost->mac_cycles;
    tally->features += cost->features;
    tally->weights += cost->weights;
    tally->outputs += cost->outputs;
    tally->ns += cost->ns;
    const size_t place = counters.last_count++ % LAST_TASKS;
    counters.last[place].driver = driver;
    counters.last[place].core = core;
    counters.last[place].cost = *cost;
    sim_log(2, "%s core %d: %s, %" PRIu64 " MAC cycles, %.1f us (model)", DRIVER_NAMES[driver],
            core, cost->shape, cost->mac_cycles, cost->ns / 1e3);
}

void report_overhead(enum driver driver, int core, double ns)
{
    counters.cores[driver][core].ns += ns;
}

/* Counts a reason without the number of the refused task, so that equal reasons of different tasks
 * are counted together. */
static void count_reason(const char *why)
{
    const char *rest = strncmp(why, "task ", 5) ? NULL : strstr(why, ": ");
    const char *reason = rest ? rest + 2 : why;
    for (int i = 0; i < REASONS; i++) {
        if (!counters.reasons[i].times || !strcmp(counters.reasons[i].text, reason)) {
            snprintf(counters.reasons[i].text, WHY_SIZE, "%s", reason);
            counters.reasons[i].times++;
            return;
        }
    }
}

void report_refused(enum driver driver, int core, const char *why)
{
    count_reason(why);
    counters.refused++;
    snprintf(counters.why, sizeof(counters.why), "%s", why);
    sim_log(1, "%s core %d hangs: %s", DRIVER_NAMES[driver], core, why);
}

void report_dropped(int error)
{
    char why[WHY_SIZE];
    counters.dropped++;
    snprintf(why, sizeof(why), "SUBMIT returned 0, but the driver dropped the job (errno %d)",
             error);
    count_reason(why);
    sim_log(1, "rocket: %s", why);
}

/* --- the report as JSON -------------------------------------------------------------------- */

struct text {
    char *to;
    size_t size, length;
};

static void put(struct text *text, const char *format, ...) PRINTF(2, 3);
static void put(struct text *text, const char *format, ...)
{
    va_list arguments;
    const bool room = text->length < text->size;
    va_start(arguments, format);
    text->length += (size_t) vsnprintf(room ? text->to + text->length : NULL,
                                       room ? text->size - text->length : 0, format, arguments);
    va_end(arguments);
}

static void put_string(struct text *text, const char *string)
{
    put(text, "\"");
    for (; *string; string++) {
        const unsigned char c = (unsigned char) *string;
        put(text, c < ' ' || c == '"' || c == '\\' ? "\\u%04x" : "%c", c);
    }
    put(text, "\"");
}

/* Returns the share of the time in which the MAC array works: 1024 int8 products a cycle, fewer of
 * other types. */
static double utilisation(double cycles, double ns, enum driver driver)
{
    return ns > 0 ? cycles / (ns * settings.mhz[driver] / 1e3) : 0;
}

static void put_core(struct text *text, enum driver driver, int core)
{
    const struct tally *t = &counters.cores[driver][core];
    put(text, "{\"driver\": \"%s\", \"core\": %d, \"tasks\": %" PRIu64 ", \"words\": %" PRIu64,
        DRIVER_NAMES[driver], core, t->tasks, t->words);
    put(text, ", \"macs\": %" PRIu64 ", \"mac_cycles\": %" PRIu64, t->macs, t->mac_cycles);
    put(text, ", \"bytes\": {\"features\": %" PRIu64 ", \"weights\": %" PRIu64, t->features,
        t->weights);
    put(text, ", \"outputs\": %" PRIu64 "}, \"model_ns\": %.0f", t->outputs, t->ns);
    put(text, ", \"model_mac_utilisation\": %.4f}",
        utilisation((double) t->mac_cycles, t->ns, driver));
}

static void put_last(struct text *text)
{
    const uint64_t first = counters.last_count > LAST_TASKS ? counters.last_count - LAST_TASKS : 0;
    for (uint64_t i = first; i < counters.last_count; i++) {
        const size_t place = i % LAST_TASKS;
        const struct cost *cost = &counters.last[place].cost;
        const enum driver driver = counters.last[place].driver;
        put(text, "%s{\"driver\": \"%s\", \"core\": %d, \"task\": ", i > first ? ", " : "",
            DRIVER_NAMES[driver], counters.last[place].core);
        put_string(text, cost->shape);
        put(text, ", \"mac_cycles\": %" PRIu64 ", \"bytes\": %" PRIu64, cost->mac_cycles,
            cost->features + cost->weights + cost->outputs);
        put(text, ", \"model_ns\": %.0f, \"model_mac_utilisation\": %.4f}", cost->ns,
            utilisation((double) cost->mac_cycles, cost->ns, driver));
    }
}

static size_t write_report(char *json, size_t size)
{
    struct text text = {json, size, 0};
    put(&text, "{\"note\": \"simulated; times are a model's estimate, not measured\"");
    put(&text, ", \"core_count\": %d, \"settings_refused\": ", settings.cores);
    put_string(&text, settings_refused);
    put(&text, ", \"submits\": {\"rocket\": %" PRIu64 ", \"rknpu\": %" PRIu64 "}",
        counters.submits[ROCKET], counters.submits[RKNPU]);
    put(&text, ", \"jobs\": {\"rocket\": %" PRIu64 ", \"rknpu\": %" PRIu64 "}",
        counters.jobs[ROCKET], counters.jobs[RKNPU]);
    put(&text, ", \"domain_switches\": %" PRIu64, counters.switches);
    put(&text, ", \"refused\": %" PRIu64 ", \"last_refusal\": ", counters.refused);
    put_string(&text, counters.why);
    put(&text, ", \"reasons\": [");
    for (int i = 0; i < REASONS && counters.reasons[i].times; i++) {
        put(&text, "%s{\"times\": %" PRIu64 ", \"why\": ", i ? ", " : "",
            counters.reasons[i].times);
        put_string(&text, counters.reasons[i].text);
        put(&text, "}");
    }
    put(&text, "], \"cores\": [");
    const char *comma = "";
    for (int i = 0; i < DRIVERS * CORES; i++) {
        if (counters.cores[i / CORES][i % CORES].ns > 0) { /* it has run a segment */
            put(&text, "%s", comma);
            put_core(&text, (enum driver)(i / CORES), i % CORES);
            comma = ", ";
        }
    }
    put(&text, "], \"last_tasks\": [");
    put_last(&text);
    put(&text, "]}");
    return text.length;
}

size_t rknpu_sim_report(char *json, size_t size)
{
    pthread_mutex_lock(&sim_lock);
    const size_t length = write_report(json, size);
    pthread_mutex_unlock(&sim_lock);
    return length;
}

/* Prints the refused jobs, because a program that checks only its results may not notice stale
 * ones. */
static void say_what_was_refused(void)
{
    const uint64_t refused = counters.refused + counters.dropped;
    uint64_t told = 0;
    if (!refused) {
        return;
    }
    sim_log(1, "of %" PRIu64 " jobs %" PRIu64 " were refused, and their results are stale:",
            counters.jobs[ROCKET] + counters.jobs[RKNPU], refused);
    for (int i = 0; i < REASONS && counters.reasons[i].times; i++) {
        told += counters.reasons[i].times;
        sim_log(1, "%8" PRIu64 " x %s", counters.reasons[i].times, counters.reasons[i].text);
    }
    if (told < refused) {
        sim_log(1, "%8" PRIu64 " x other reasons", refused - told);
    }
}

void report_at_exit(void)
{
    static char json[32768];
    if (pthread_mutex_trylock(&sim_lock)) {
        return;
    }
    say_what_was_refused();
    write_report(json, sizeof(json));
    pthread_mutex_unlock(&sim_lock);
    if (!*settings.report) {
        return;
    }
    FILE *out = strcmp(settings.report, "-") ? fopen(settings.report, "w") : stderr;
    if (out) {
        fprintf(out, "%s\n", json);
        fflush(out);
    }
}
