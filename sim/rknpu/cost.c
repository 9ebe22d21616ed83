/*
 * Estimates the time of a task with a model fitted to published figures; it is not a measurement.
 *
 * It shares no code with npurt/rknpu/plan/cost.py, but uses the same figures: middle values of
 * published measurements (happyme531, marfrit/rk-llama.cpp, npu-notes, rknpu-submit, RockNPU).
 * Single measurements differ from the estimate by up to 25 %, those of dependent tasks by up to 50
 * %. IOMMU misses and other users of the memory are not modelled.
 */
#include "npu.h"

#include <stdio.h>

static const double MAC_EFFICIENCY = 0.85; /* share of the MAC array's peak while it multiplies */
static const double BYTES_PER_CYCLE = 16;  /* bus of one core */
static const uint32_t BANK_BYTES = 32768;  /* size of a CBUF bank */
static const double SUBMIT_NS[DRIVERS] = {[ROCKET] = 52e3, [RKNPU] = 50e3};
/* Time between two tasks: an interrupt with rocket, a chain with rknpu. */
static const double NEXT_NS[DRIVERS] = {[ROCKET] = 60e3, [RKNPU] = 10e3};

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

/* Returns the bandwidth of one core, in bytes per ns, while `cores` cores work. */
static double bandwidth(enum driver driver, int cores)
{
    const double bus = BYTES_PER_CYCLE * settings.mhz[driver] / 1e3;
    return smaller(smaller(settings.core_gbs, bus), settings.total_gbs / cores);
}

/* Returns whether the weight banks hold two groups of kernels. */
static bool holds_two_groups(const struct matmul *mm)
{
    const uint32_t group = mm->format->group * mm->kernel_bytes;
    return (mm->banks >> 4) >= 2 * div_up(group, BANK_BYTES);
}

void cost_matmul(const struct matmul *mm, enum driver driver, int cores, bool chained, bool first,
                 struct cost *cost)
{
    const struct format *f = mm->format;
    const uint64_t m = (uint64_t) mm->pixels_x * mm->pixels_y;
    const uint64_t taps = mm->kernel_width * mm->kernel_height;
    const uint64_t tiles = mm->depthwise ? 1 : div_up(mm->k, f->k_tile);
    const double bytes = bandwidth(driver, cores);
    cost->macs = m * taps * (mm->depthwise ? 1 : mm->k) * mm->n;
    cost->mac_cycles = m * taps * div_up(mm->n, mm->group) * tiles;
    cost->features = mm->data_reuse ? 0 : (uint64_t) mm->width * mm->height * mm->k * f->bits / 8;
    cost->weights = mm->weight_reuse ? 0 : mm->weight_bytes;
    cost->outputs = m * mm->n * mm->out_bytes;
    const double mac = (double) cost->mac_cycles / (MAC_EFFICIENCY * settings.mhz[driver] / 1e3);
    const double features = (double) cost->features / bytes;
    const double weights = (double) cost->weights / bytes;
    const double outputs = (double) cost->outputs / bytes;
    /* Weights and results are moved during the products, unless the banks hold only one group. */
    const double work = larger(holds_two_groups(mm) ? mac : mac + weights, weights + outputs);
    cost->ns = chained ? larger(work, features + weights + outputs) : features + work;
    cost->ns += first ? 0 : NEXT_NS[driver];
    snprintf(cost->shape, sizeof(cost->shape), "%s m %llu k %u n %u", f->name,
             (unsigned long long) m, mm->k, mm->n);
}

void cost_moved(const char *what, uint64_t numbers, uint64_t in, uint64_t out, struct run *run)
{
    struct cost *cost = &run->cost;
    const enum driver driver = run->job->driver;
    cost->features = in;
    cost->outputs = out;
    cost->ns = (double) (in + out) / bandwidth(driver, run->job->cores);
    cost->ns += run->first ? 0 : NEXT_NS[driver];
    snprintf(cost->shape, sizeof(cost->shape), "%s of %llu", what, (unsigned long long) numbers);
}
