/* Modules of a DSP process: skels, which run in the simulator, the module that serves dspqueue, and
 * the one with which a daemon says that it serves files. */
#define _GNU_SOURCE
#include "kernel.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_URI "file:///"
enum { NAME = 300 };

static int free_place(const process *p)
{
    int i = 0;
    while (i < MODULES && p->modules[i].used) {
        i++;
    }
    return i;
}

/* Open the skel of a URI in the session of the process, even if the URI names another session. */
static int open_skel(process *p, const char *uri, uint64_t *handle)
{
    char *text = malloc(strlen(uri) + 40);
    if (!text) {
        return DSP(E_UNABLETOLOAD);
    }
    char *end = stpncpy(text, uri, strcspn(uri, "&"));
    for (const char *at = strchr(uri, '&'); at; at = strchr(at + 1, '&')) {
        if (strncmp(at, "&_dom=", 6) != 0 && strncmp(at, "&_session=", 10) != 0) {
            end = stpncpy(end, at, strcspn(at + 1, "&") + 1);
        }
    }
    sprintf(end, "&_dom=cdsp&_session=%d", p->domain / DOMAINS);
    int code = dsp.open(text, handle);
    say("open %s: %#x", text, (unsigned) code);
    free(text);
    return code;
}

/* Open a module; if that fails, return the DSP's code. */
static int open_module(process *p, const char *uri, int32_t *handle)
{
    char name[NAME] = "";
    int i = free_place(p);
    if (i == MODULES) {
        return DSP(E_UNABLETOLOAD);
    }
    if (strncmp(uri, FILE_URI, strlen(FILE_URI)) == 0) {
        const char *from = uri + strlen(FILE_URI);
        snprintf(name, sizeof(name), "%.*s", (int) strcspn(from, "?"), from);
    }
    module *m = &p->modules[i];
    *m = (module){.kind = strcmp(name, "libdspqueue_rpc_skel.so") == 0 ? QUEUES
                          : strcmp(uri, "adsp_default_listener") == 0  ? DEFAULT_LISTENER
                                                                       : SKEL};
    /* Refuse a skel that the CPU does not find; a malformed URI goes to the simulator, which
     * refuses it. */
    if (m->kind == SKEL && *name && strchr(uri, '?') && !listener_finds(p, name)) {
        return DSP(E_UNABLETOLOAD);
    }
    int code = m->kind == SKEL ? open_skel(p, uri, &m->handle) : 0;
    m->used = code == 0;
    *handle = m->used ? FIRST_MODULE + i : 0;
    return code;
}

static int close_module(process *p, uint32_t handle)
{
    module *m = &p->modules[(handle - FIRST_MODULE) % MODULES];
    if (handle < FIRST_MODULE || handle >= FIRST_MODULE + MODULES || !m->used) {
        return DSP(E_INVHANDLE);
    }
    m->used = false;
    return m->kind == SKEL ? dsp.close(m->handle) : 0;
}

int remotectl(process *p, uint32_t method, argument *arguments)
{
    if (method == REMOTECTL_OPEN) {
        int32_t *out = arguments[2].buffer.at;
        out[0] = 0;
        out[1] = open_module(p, arguments[1].buffer.at, &out[0]);
        snprintf(arguments[3].buffer.at, arguments[3].buffer.bytes, "%s",
                 out[1] ? "the module does not load" : "");
    } else if (method == REMOTECTL_CLOSE) {
        const uint32_t *in = arguments[0].buffer.at;
        *(int32_t *) arguments[1].buffer.at = close_module(p, *in);
    }
    return 0; /* the other methods (heap, power) have no effect */
}

int module_call(process *p, uint32_t handle, uint32_t scalars, argument *arguments)
{
    const module *m = &p->modules[(handle - FIRST_MODULE) % MODULES];
    if (handle >= FIRST_MODULE + MODULES || !m->used) {
        return DSP(E_INVHANDLE);
    }
    return m->kind == QUEUES ? queue_call(p, scalars >> 24 & 31, arguments)
           : m->kind == SKEL ? dsp.invoke(m->handle, scalars, arguments)
                             : 0;
}
