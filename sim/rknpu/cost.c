/*
 * An estimate of what a task would take: a model fitted to published figures, not a measurement.
 *
 * Within about 20 % of the points it was compared with: int4 rows, int8 128x1024x8192, fp16
 * 256x512x128 at three clocks (happyme531, gregordinary, ork-driver).  Not modelled: CBUF stalls,
 * IOMMU misses, the interrupt between two tasks of one rocket job.
 */
#include "npu.h"

#include <stdio.h>

static const double MAC_EFFICIENCY = 0.88; /* happyme531, rk-llama.cpp: of the peak */
static const double BYTES_PER_CYCLE = 16;  /* of one core's bus */
static const double SUBMIT_NS[DRIVERS] = {[ROCKET] = 52e3, [RKNPU] = 33e3}; /* gregordinary */

double cost_submit_ns(enum driver driver)
{
    return SUBMIT_NS[driver];
}

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* Bytes a ns that one core gets when `cores` of them work. */
static double bandwidth(enum driver driver, int cores)
{
    const double bus = BYTES_PER_CYCLE * settings.mhz[driver] / 1e3;
    return smaller(smaller(settings.core_gbs, bus), settings.total_gbs / cores);
}

void cost_matmul(const struct matmul *mm, enum driver driver, int cores, bool chained,
                 struct cost *cost)
{
    const struct format *f = mm->format;
    const uint64_t m = (uint64_t) mm->width * mm->height;
    const double bytes = bandwidth(driver, cores);
    cost->macs = m * mm->k * mm->n;
    cost->mac_cycles = m * div_up(mm->n, f->group) * div_up(mm->k, f->k_tile);
    cost->features = mm->data_reuse ? 0 : m * mm->k * f->bits / 8;
    cost->weights = mm->weight_reuse ? 0 : (uint64_t) mm->k * mm->n * f->bits / 8;
    cost->outputs = m * mm->n * mm->out_bytes;
    const double mac = (double) cost->mac_cycles / (MAC_EFFICIENCY * settings.mhz[driver] / 1e3);
    const double features = (double) cost->features / bytes;
    const double weights = (double) cost->weights / bytes;
    const double outputs = (double) cost->outputs / bytes;
    cost->ns = chained ? larger(mac, features + weights + outputs)
                       : features + larger(mac, weights) + outputs;
    snprintf(cost->shape, sizeof(cost->shape), "%s m %llu k %u n %u", f->name,
             (unsigned long long) m, mm->k, mm->n);
}

void cost_flying(uint64_t elements, enum driver driver, int cores, struct cost *cost)
{
    cost->features = 2 * 4 * elements;
    cost->outputs = 4 * elements;
    cost->ns = (double) (cost->features + cost->outputs) / bandwidth(driver, cores);
    snprintf(cost->shape, sizeof(cost->shape), "int32 add of %llu", (unsigned long long) elements);
}
