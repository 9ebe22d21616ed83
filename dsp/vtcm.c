/*
 * Acquires VTCM through the compute resource manager.
 *
 * This file uses only functions of the oldest firmware with a manager, because some loaders refuse
 * the newer attr_init_v2.  Each function may be missing.  The file acquires VTCM without waiting:
 * an owner holds VTCM for a long time, and public reports say that acquire with a timeout
 * hangs.
 */
#include "vtcm.h"
#include "hap.h"

static int has_manager(void)
{
    return compute_resource_attr_init && compute_resource_attr_set_vtcm_param &&
           compute_resource_acquire && compute_resource_attr_get_vtcm_ptr &&
           compute_resource_release;
}

static void acquire(vtcm *vtcm, uint32_t nbytes)
{
    compute_res_attr_t attr = {{0}};
    if (compute_resource_attr_init(&attr) ||
        compute_resource_attr_set_vtcm_param(&attr, nbytes, 0)) {
        return;
    }
    vtcm->context = compute_resource_acquire(&attr, 0);
    if (vtcm->context == 0) {
        return;
    }
    vtcm->address = compute_resource_attr_get_vtcm_ptr(&attr);
    vtcm->nbytes = nbytes;
    if (vtcm->address == NULL || (uintptr_t) vtcm->address % 128) {
        vtcm_release(vtcm);
    }
}

void vtcm_acquire(vtcm *vtcm, uint32_t threads, uint32_t most, uint32_t least)
{
    if (!has_manager()) {
        return;
    }
    for (; threads && most >= least && !vtcm->address; most /= 2) {
        acquire(vtcm, threads * most);
        vtcm->slot = vtcm->nbytes ? most : 0;
    }
}

void vtcm_release(vtcm *vtcm)
{
    if (vtcm->context) {
        /* the result is not used: VTCM that stays acquired is released with the process */
        compute_resource_release(vtcm->context);
    }
    vtcm->context = 0;
    vtcm->address = NULL;
    vtcm->nbytes = vtcm->slot = 0;
}
