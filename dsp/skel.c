/*
 * The methods of idl/npurt.idl.  The generated function npurt_skel_handle_invoke checks the sizes
 * of all buffers and then calls a method.
 */
#include "cache.h"
#include "hap.h"
#include "npurt.h"
#include "npurt_build.h"
#include "power.h"
#include "session.h"

enum { VTCM_MOST = 512 << 10, VTCM_LEAST = 64 << 10 }; /* bytes for each thread */

#define ECHO 0x9e3779b97f4a7c15ull

static uint32_t hvx_units(void)
{
    int units = qurt_hvx_get_units();
    return units > 0 ? (uint32_t) units >> 8 & 0xff : 0;
}

static session *session_of(remote_handle64 h)
{
    return (session *) (uintptr_t) h;
}

int npurt_open(const char *uri, remote_handle64 *h)
{
    (void) uri;
    session *session = malloc(sizeof *session);
    if (!session) {
        return DSP_E_NO_MEMORY;
    }
    __builtin_memset(session, 0, sizeof *session);
    uint32_t units = hvx_units();
    pool_start(&session->pool, units ? units : 1);
    vtcm_acquire(&session->vtcm, session->pool.threads, VTCM_MOST, VTCM_LEAST);
    session->power = power_vote(session);
    *h = (uintptr_t) session;
    return DSP_OK;
}

/* Close the session.  A queue that did not close may still run a batch: wait for the end of this
 * batch, and keep the memory of the session, in which later batches find no thread. */
int npurt_close(remote_handle64 h)
{
    session *session = session_of(h);
    int error = queue_close(session);
    lock_take(&session->lock);
    pool_stop(&session->pool);
    power_withdraw(session);
    vtcm_release(&session->vtcm);
    maps_clear(&session->maps);
    workspace_free(&session->work);
    lock_leave(&session->lock);
    if (!error) {
        free(session);
    }
    return error;
}

int npurt_echo(remote_handle64 h, uint64_t nonce, uint64_t *answer)
{
    (void) h;
    *answer = nonce ^ ECHO;
    return DSP_OK;
}

int npurt_info(remote_handle64 h, npurt_info_t *what)
{
    session *session = session_of(h);
    *what = (npurt_info_t){
        .protocol = NPURT_PROTOCOL,
        .arch = __HVX_ARCH__,
        .threads = session->pool.threads,
        .hvx_units = hvx_units(),
        .vtcm_bytes = session->vtcm.nbytes,
        .power = (uint32_t) session->power,
        .max_maps = MAPS_MAX,
        .build = NPURT_BUILD,
    };
    return DSP_OK;
}

int npurt_map(remote_handle64 h, int32_t fd, uint32_t nbytes)
{
    session *session = session_of(h);
    lock_take(&session->lock);
    int result = maps_add(&session->maps, fd, nbytes);
    lock_leave(&session->lock);
    return result;
}

int npurt_unmap(remote_handle64 h, int32_t fd)
{
    session *session = session_of(h);
    lock_take(&session->lock);
    int result = maps_remove(&session->maps, fd);
    lock_leave(&session->lock);
    return result;
}

void session_execute(session *session, const uint8_t *batch, uint32_t nbytes, npurt_reply *reply)
{
    lock_take(&session->lock);
    batch_read(&session->work.batch, batch, nbytes, &session->maps);
    execute(&session->work, &session->pool, &session->vtcm, reply);
    lock_leave(&session->lock);
}

int npurt_execute(remote_handle64 h, const uint8_t *batch, int batch_bytes, uint8_t *reply,
                  int reply_bytes)
{
    npurt_reply answer;
    if (reply_bytes < (int) sizeof answer) {
        return DSP_E_BAD_PARM;
    }
    session_execute(session_of(h), batch, (uint32_t) batch_bytes, &answer);
    __builtin_memcpy(reply, &answer, sizeof answer);
    return DSP_OK;
}

static uint64_t sum(const uint8_t *bytes, uint32_t nbytes)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < nbytes; i++) {
        total += bytes[i];
    }
    return total;
}

int npurt_checksum(remote_handle64 h, const uint8_t *data, int data_bytes, int32_t fd,
                   uint32_t offset, uint32_t nbytes, uint64_t *total)
{
    session *session = session_of(h);
    *total = sum(data, (uint32_t) data_bytes);
    if (nbytes == 0) {
        return DSP_OK;
    }
    lock_take(&session->lock);
    const uint8_t *mapped = maps_find(&session->maps, fd, offset, nbytes);
    int result = !mapped ? DSP_E_NO_SUCH_MAP : cache_take(mapped, nbytes) ? DSP_E_FAILED : DSP_OK;
    *total += result == DSP_OK ? sum(mapped, nbytes) : 0;
    lock_leave(&session->lock);
    return result;
}

int npurt_queue(remote_handle64 h, uint64_t id)
{
    return queue_open(session_of(h), id);
}

int npurt_unqueue(remote_handle64 h)
{
    return queue_close(session_of(h));
}
