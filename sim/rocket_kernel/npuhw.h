/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * /dev/npuhw: the interface between the process that simulates the NPU's three cores (npu.c) and
 * the kernel, which has the cores' registers (npuhw.c).
 *
 *     read     waits until the driver starts a task, and returns a struct npuhw_task
 *     write    a struct npuhw_done: the task is finished, the core raises its interrupt
 *     pread, pwrite at NPUHW_MEMORY | core << 32 | address
 *              memory as that core sees it, through the tables of its IOMMU.  At an
 *              address that is not mapped, the IOMMU raises its interrupt, and the call transfers
 *              fewer bytes or returns EFAULT
 *
 * A task hangs unless the process writes its npuhw_done.
 */
#ifndef NPUHW_H
#define NPUHW_H

#include <linux/types.h>

#define NPUHW_MEMORY (1ULL << 62)

/* A task: its core, and the PC unit's registers when the driver started it. */
struct npuhw_task {
    __u32 core, start; /* number of this start of the core */
    __u32 address, amount;
    __u32 task_con, interrupt_mask;
};

struct npuhw_done {
    __u32 core, start; /* those of the task; ignored after a later start or reset */
    __u32 status;      /* bits of the PC unit's INTERRUPT_RAW_STATUS */
};

#endif
