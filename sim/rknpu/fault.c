/*
 * Injects faults: "effect@call:n" for the n-th such call from now on, with "+" also at later calls.
 *
 *     timeout@submit:3     the third job hangs          stale@submit     its output is not written
 *     flip@submit:2        one bit of its output flips  wedge@submit     all jobs hang until reset
 *     dead@submit:5        the node is gone             ebusy@prep:1+    an errno, of any call
 */
#include "sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const CALL_NAMES[CALLS] = {"open", "create", "map",    "destroy", "sync",
                                              "prep", "fini",   "submit", "action"};
static const struct {
    const char *name;
    enum effect effect;
    int error;
} EFFECTS[] = {
    {"timeout", HANG, 0},
    {"stale", STALE, 0},
    {"flip", FLIP, 0},
    {"dead", DEAD, 0},
    {"wedge", WEDGE, 0},
    {"ebusy", FAIL, EBUSY},
    {"enomem", FAIL, ENOMEM},
    {"efault", FAIL, EFAULT},
    {"einval", FAIL, EINVAL},
    {"eio", FAIL, EIO},
    {"enodev", FAIL, ENODEV},
    {"eacces", FAIL, EACCES},
    {"enospc", FAIL, ENOSPC},
    {"eintr", FAIL, EINTR},
    {"enoent", FAIL, ENOENT},
    {"emfile", FAIL, EMFILE},
    {"etimedout", FAIL, ETIMEDOUT},
};

enum { ARMED = 16 };
static struct {
    struct fault fault;
    enum call call;
    unsigned long left; /* calls until the fault occurs; 0: a free entry */
    bool repeat;
} armed[ARMED];

static int find_call(const char *name, size_t length)
{
    for (int call = 0; call < CALLS; call++) {
        if (strlen(CALL_NAMES[call]) == length && !strncmp(CALL_NAMES[call], name, length)) {
            return call;
        }
    }
    return -1;
}

static bool find_effect(const char *name, size_t length, struct fault *fault)
{
    for (size_t i = 0; i < sizeof(EFFECTS) / sizeof(*EFFECTS); i++) {
        if (strlen(EFFECTS[i].name) == length && !strncmp(EFFECTS[i].name, name, length)) {
            *fault = (struct fault){EFFECTS[i].effect, EFFECTS[i].error};
            return true;
        }
    }
    return false;
}

int fault_arm(const char *text, char *why, size_t size)
{
    int place = 0;
    while (place < ARMED && armed[place].left) {
        place++;
    }
    if (place == ARMED) {
        snprintf(why, size, "fault=%s: %d faults are set already", text, ARMED);
        return -1;
    }
    const size_t effect = strcspn(text, "@:");
    const char *name = text[effect] == '@' ? text + effect + 1 : "submit";
    const size_t length = strcspn(name, ":");
    const char *nth = strchr(text, ':');
    char *end = "";
    const unsigned long left = nth ? strtoul(nth + 1, &end, 10) : 1;
    const int call = find_call(name, text[effect] == '@' ? length : strlen(name));
    if (!find_effect(text, effect, &armed[place].fault) || call < 0 || !left ||
        (*end && strcmp(end, "+")) || (armed[place].fault.effect != FAIL && call != CALL_SUBMIT)) {
        snprintf(why, size,
                 "fault=%s: expected effect@call:n; timeout, stale, flip, dead and wedge "
                 "are faults of submit",
                 text);
        return -1;
    }
    armed[place].call = (enum call) call;
    armed[place].repeat = *end == '+';
    armed[place].left = left;
    return 0;
}

void fault_clear(void)
{
    memset(armed, 0, sizeof(armed));
}

struct fault fault_at(enum call call)
{
    struct fault strikes = {NO_EFFECT, 0};
    for (int i = 0; i < ARMED; i++) {
        if (!armed[i].left || armed[i].call != call || --armed[i].left) {
            continue;
        }
        strikes = armed[i].fault;
        armed[i].left = armed[i].repeat;
    }
    return strikes;
}
