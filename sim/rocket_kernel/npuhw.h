/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * /dev/npuhw: the interface between the process that simulates the NPU's three cores (npu.c) and the
 * kernel with their registers (npuhw.c).
 *
 *     read     waits until the driver starts a task, and returns a struct npuhw_task
 *     write    a struct npuhw_done: the task is finished, the core raises its interrupt
 *     pread, pwrite at NPUHW_MEMORY | core << 32 | address
 *              memory as that core sees it, through the tables of its IOMMU.  An address that is
 *              not mapped so: the IOMMU raises its interrupt, and the call ends short, or with
 *              EFAULT
 *
 * A task that is never finished hangs.
 */
#ifndef NPUHW_H
#define NPUHW_H

#include <linux/types.h>

#define NPUHW_MEMORY (1ULL << 62)

/* Registers of the PC unit when the task was started, and what it is. */
struct npuhw_task {
    __u32 core, start; /* counts the starts of that core */
    __u32 address, amount;
    __u32 task_con, interrupt_mask;
};

struct npuhw_done {
    __u32 core, start; /* of the task; when another has been started, or a reset came, ignored */
    __u32 status;      /* bits of the PC unit's INTERRUPT_RAW_STATUS */
};

#endif
