/*
 * Settings, from NPURT_SIM_RKNPU in the environment or rknpu_sim_set() in the process.
 *
 * An unknown setting is an error, so that no test runs without the fault that it sets.
 */
#include "driver.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct settings settings = {
    .strict = true,
    .coherent = true,
    .cores = CORES,
    .log = 1,
    .version = 908,
    .mhz = {[ROCKET] = 200, [RKNPU] = 1000}, /* as the stock drivers set the clock */
    .core_gbs = 11.1, /* gregordinary, rk-llama.cpp: measured on LPDDR5 boards */
    .total_gbs = 27.5,
    .nodes = "accel0,renderD128,card1",
};

char settings_refused[WHY_SIZE];

enum kind { FLAG, INT, ADDRESS, SIZE, REAL, TEXT };
static const struct {
    const char *key;
    enum kind kind;
    void *value;
    double low, high; /* limits; for TEXT, high is the size */
} KEYS[] = {
    {"strict", FLAG, &settings.strict, 0, 1},
    {"coherent", FLAG, &settings.coherent, 0, 1},
    {"guard", FLAG, &settings.guard, 0, 1},
    {"cores", INT, &settings.cores, 1, CORES},
    {"log", INT, &settings.log, 0, 2},
    {"hang_ms", REAL, &settings.hang_ms, 0, 60000},
    {"iova_base", ADDRESS, &settings.iova_base, 0, 0xF0000000},
    {"version", ADDRESS, &settings.version, 1, 99999},
    {"memory", SIZE, &settings.memory, 0, 1e12},
    {"space", SIZE, &settings.space, 0, 1e12},
    {"rocket_mhz", REAL, &settings.mhz[ROCKET], 1, 10000},
    {"rknpu_mhz", REAL, &settings.mhz[RKNPU], 1, 10000},
    {"core_gbs", REAL, &settings.core_gbs, 0.01, 10000},
    {"total_gbs", REAL, &settings.total_gbs, 0.01, 10000},
    {"nodes", TEXT, settings.nodes, 0, sizeof(settings.nodes)},
    {"report", TEXT, settings.report, 0, sizeof(settings.report)},
};

static int set_number(size_t row, const char *text, char *why, size_t size)
{
    char *end;
    errno = 0;
    double value = KEYS[row].kind == REAL ? strtod(text, &end) : (double) strtoll(text, &end, 0);
    if (KEYS[row].kind == SIZE && end != text && *end) {
        const char *units = "KMG", *unit = strchr(units, *end++);
        for (long i = unit ? unit - units : -1; i >= 0; i--) {
            value *= 1024;
        }
        end = unit ? end : (char *) text; /* an unknown unit */
    }
    if (end == text || *end || errno || !(value >= KEYS[row].low && value <= KEYS[row].high)) {
        snprintf(why, size, "%s=%s: expected a number from %g to %g", KEYS[row].key, text,
                 KEYS[row].low, KEYS[row].high);
        return -1;
    }
    if (KEYS[row].kind == FLAG) {
        *(bool *) KEYS[row].value = value != 0;
    } else if (KEYS[row].kind == INT) {
        *(int *) KEYS[row].value = (int) value;
    } else if (KEYS[row].kind == SIZE) {
        *(uint64_t *) KEYS[row].value = (uint64_t) value;
    } else if (KEYS[row].kind == ADDRESS) {
        *(uint32_t *) KEYS[row].value = (uint32_t) value;
    } else {
        *(double *) KEYS[row].value = value;
    }
    return 0;
}

static int set_one(const char *key, const char *text, char *why, size_t size)
{
    if (!strcmp(key, "fault")) {
        return fault_arm(text, why, size);
    }
    if (!strcmp(key, "reload") && !strcmp(text, "1")) {
        device_reload();
        return 0;
    }
    if (!strcmp(key, "counters") && !strcmp(text, "0")) {
        report_reset();
        return 0;
    }
    for (size_t row = 0; row < sizeof(KEYS) / sizeof(*KEYS); row++) {
        if (strcmp(key, KEYS[row].key)) {
            continue;
        }
        if (KEYS[row].kind != TEXT) {
            return set_number(row, text, why, size);
        }
        if (strlen(text) >= KEYS[row].high) {
            snprintf(why, size, "%s is longer than %g bytes", key, KEYS[row].high - 1);
            return -1;
        }
        strcpy(KEYS[row].value, text);
        return 0;
    }
    snprintf(why, size, "unknown setting %s=%s", key, text);
    return -1;
}

int settings_apply(const char *text, char *why, size_t size)
{
    char copy[1024], *rest = copy;
    if (strlen(text) >= sizeof(copy)) {
        snprintf(why, size, "settings are longer than %zu bytes", sizeof(copy) - 1);
        return -1;
    }
    strcpy(copy, text);
    for (char *word; (word = strtok_r(rest, " \t\n", &rest));) {
        char *equals = strchr(word, '=');
        if (!equals) {
            snprintf(why, size, "%s: expected key=value", word);
            return -1;
        }
        *equals = 0;
        if (set_one(word, equals + 1, why, size)) {
            return -1;
        }
    }
    return 0;
}

void settings_from_environment(void)
{
    const char *text = getenv("NPURT_SIM_RKNPU");
    if (text && settings_apply(text, settings_refused, sizeof(settings_refused))) {
        fprintf(stderr, "rknpu-sim: NPURT_SIM_RKNPU: %s\n", settings_refused);
    }
}

int rknpu_sim_set(const char *text, char *why, size_t size)
{
    pthread_mutex_lock(&sim_lock);
    const int error = settings_apply(text, why, size);
    sim_changed();
    pthread_mutex_unlock(&sim_lock);
    return error;
}

int settings_driver_of(const char *path)
{
    const char *name = NULL;
    enum driver driver = ROCKET;
    if (!strncmp(path, "/dev/accel/accel", 16)) {
        name = path + 11;
    } else if (!strncmp(path, "/dev/dri/renderD", 16) || !strncmp(path, "/dev/dri/card", 13)) {
        name = path + 9;
        driver = RKNPU;
    }
    if (!name || *settings_refused) {
        return -1;
    }
    const size_t length = strlen(name);
    for (const char *node = settings.nodes; *node; node += strcspn(node, ",")) {
        node += *node == ',';
        if (strcspn(node, ",") == length && !strncmp(node, name, length)) {
            return driver;
        }
    }
    return -1;
}
