/* Load npurt's simulator as the DSP: dsp_side.so in this library's folder, so named because the
 * program also loads the real libcdsprpc. */
#define _GNU_SOURCE
#include "kernel.h"
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dsp_functions dsp;

static void *open_beside(void)
{
    Dl_info here;
    char path[PATH_MAX], beside[PATH_MAX + 16];
    if (!dladdr((void *) open_beside, &here) || !realpath(here.dli_fname, path)) {
        return NULL;
    }
    snprintf(beside, sizeof(beside), "%.*s/dsp_side.so", (int) (strrchr(path, '/') - path), path);
    return dlopen(beside, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
}

void dsp_load(void)
{
    const struct {
        void *to;
        const char *name;
    } names[] = {
        {&dsp.open, "remote_handle64_open"},     {&dsp.invoke, "remote_handle64_invoke"},
        {&dsp.close, "remote_handle64_close"},   {&dsp.session, "remote_session_control"},
        {&dsp.control, "remote_handle_control"}, {&dsp.map, "fastrpc_mmap"},
        {&dsp.unmap, "fastrpc_munmap"},          {&dsp.queue_create, "dspqueue_create"},
        {&dsp.queue_close, "dspqueue_close"},    {&dsp.queue_export, "dspqueue_export"},
        {&dsp.queue_write, "dspqueue_write"},    {&dsp.queue_read, "dspqueue_read"},
        {&dsp.process, "npurt_sim_process"},
    };
    void *library = open_beside();
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        void *at = library ? dlsym(library, names[i].name) : NULL;
        if (!at) {
            fprintf(stderr, "fastrpc_kernel: no DSP: %s\n", dlerror());
            abort();
        }
        memcpy(names[i].to, &at, sizeof(at));
    }
}

int dsp_info(uint32_t attribute, uint32_t *value)
{
    struct {
        uint32_t domain, attribute, value;
    } ask = {CDSP, attribute, 0};
    int code = dsp.control(2, &ask, sizeof(ask));
    *value = ask.value;
    return code;
}

/* Return whether the DSP's node exists.  While the DSP restarts or is down, the node does not exist
 * and the query of the architecture fails. */
bool dsp_present(void)
{
    uint32_t arch;
    return dsp_info(6, &arch) == 0;
}
