// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The registers of an RK3588's NPU, for a kernel that runs as a process (User-Mode Linux).
 *
 * This file is linked into the kernel beside the unchanged drivers/accel/rocket and
 * drivers/iommu/rockchip-iommu.c, and provides the registers, interrupts and resets that these
 * drivers use.  The process behind /dev/npuhw (npuhw.h) computes what the cores compute.
 *
 * Licence: this file calls functions that the kernel exports to GPL-compatible code only, so this
 * file, unlike the rest of npurt, is offered under the GPL 2.0 as well as under the MIT licence.
 *
 * Sources: drivers/accel/rocket/rocket_job.c and rocket_registers.h, drivers/iommu/rockchip-iommu.c
 * (v2 tables), arch/arm64/boot/dts/rockchip/rk3588-base.dtsi for the addresses.
 */
#include <linux/fs.h>
#include <linux/init.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/irq.h>
#include <linux/irq_sim.h>
#include <linux/irqdomain.h>
#include <linux/logic_iomem.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/of.h>
#include <linux/reset-controller.h>
#include <linux/spinlock.h>
#include <linux/uaccess.h>
#include <linux/wait.h>

#include "npuhw.h"

enum { CORES = 3, BANKS = 2, BASE = 0xfdab0000, CORE_STRIDE = 0x10000 };

/* Offsets from a core's first register; BASE + core * CORE_STRIDE. */
enum { MMU_OF_CORE_0 = 0x9000, MMU = 0xa000 }; /* the PC unit is at 0 */
enum { BLOCK = 0x100 }; /* bytes of registers of the PC unit and of an IOMMU */

/* Registers of the PC unit. */
enum {
    PC_VERSION = 0x00,
    PC_VERSION_NUM = 0x04,
    PC_ENABLE = 0x08,
    PC_ADDRESS = 0x10,
    PC_AMOUNT = 0x14,
    PC_INT_MASK = 0x20,
    PC_INT_CLEAR = 0x24,
    PC_INT_STATUS = 0x28,
    PC_INT_RAW = 0x2c,
    PC_TASK_CON = 0x30,
};

/* Registers of an IOMMU. */
enum {
    MMU_TABLE = 0x00,
    MMU_STATUS = 0x04,
    MMU_COMMAND = 0x08,
    MMU_FAULT_ADDRESS = 0x0c,
    MMU_INT_RAW = 0x14,
    MMU_INT_CLEAR = 0x18,
    MMU_INT_MASK = 0x1c,
    MMU_INT_STATUS = 0x20,
    MMU_END = 0x40,
};
enum { ENABLE_PAGING, DISABLE_PAGING, STALL, GO_ON, ZAP, FAULT_DONE, RESET_MMU };
enum { PAGING = 1 << 0, FAULTED = 1 << 1, STALLED = 1 << 2, IDLE = 3 << 3, BY_WRITE = 1 << 5 };
enum { VALID = 1 << 0, READABLE = 1 << 1, WRITABLE = 1 << 2 }; /* an entry of a table */

struct core {
    u32 pc[BLOCK / 4], mmu[BANKS][MMU_END / 4];
    u32 starts;
    bool started; /* a task waits to be read from /dev/npuhw */
};
static struct core cores[CORES];
static DEFINE_SPINLOCK(lock);
static DECLARE_WAIT_QUEUE_HEAD(starting);
static struct irq_domain *interrupts;

static void raise_interrupt(unsigned int core)
{
    const unsigned int irq = irq_find_mapping(interrupts, core);

    if (irq) {
        irq_set_irqchip_state(irq, IRQCHIP_STATE_PENDING, true);
    }
}

/* --- registers ------------------------------------------------------------------------------- */

/* Return the registers of the IOMMU at an offset, or NULL. Core 0 has two IOMMUs. */
static u32 *find_mmu(struct core *core, unsigned int offset)
{
    const unsigned int block = offset & ~(BLOCK - 1);

    if (block == MMU) {
        return core->mmu[0];
    }
    return block == MMU_OF_CORE_0 && core == cores ? core->mmu[1] : NULL;
}

static u32 read_mmu(const u32 *mmu, unsigned int offset)
{
    if (offset == MMU_INT_STATUS) {
        return mmu[MMU_INT_RAW / 4] & mmu[MMU_INT_MASK / 4];
    }
    return offset < MMU_END ? mmu[offset / 4] | (offset == MMU_STATUS ? IDLE : 0) : 0;
}

static u32 read_pc(const struct core *core, unsigned int offset)
{
    switch (offset) {
    case PC_VERSION: /* the version that boards print at probe */
        return 0x24000000;
    case PC_VERSION_NUM:
        return 0x46;
    case PC_INT_STATUS:
        return core->pc[PC_INT_RAW / 4] & core->pc[PC_INT_MASK / 4];
    default:
        return core->pc[offset / 4];
    }
}

static void command_mmu(u32 *mmu, unsigned long command)
{
    u32 *status = &mmu[MMU_STATUS / 4];

    switch (command) {
    case ENABLE_PAGING:
        *status |= PAGING;
        break;
    case DISABLE_PAGING:
        *status &= ~PAGING;
        break;
    case STALL:
        *status |= STALLED;
        break;
    case GO_ON:
        *status &= ~STALLED;
        break;
    case FAULT_DONE:
        *status &= ~(FAULTED | BY_WRITE);
        break;
    case RESET_MMU:
        memset(mmu, 0, MMU_END);
        break;
    default: /* ZAP: every access walks the tables, nothing is cached */
        break;
    }
}

static void write_mmu(u32 *mmu, unsigned int offset, u32 value)
{
    if (offset == MMU_COMMAND) {
        command_mmu(mmu, value);
    } else if (offset == MMU_INT_CLEAR) {
        mmu[MMU_INT_RAW / 4] &= ~value;
    } else if (offset < MMU_END) {
        mmu[offset / 4] = value;
    }
}

static void write_pc(struct core *core, unsigned int offset, u32 value)
{
    if (offset == PC_INT_CLEAR) {
        core->pc[PC_INT_RAW / 4] &= ~value;
        return;
    }
    core->pc[offset / 4] = value;
    if (offset == PC_ENABLE) {
        core->started = value & 1;
        core->starts++; /* a task that still runs becomes invalid */
        wake_up(&starting);
    }
}

static unsigned long read_register(void *region, unsigned int offset, int size)
{
    unsigned long flags, at = offset + (unsigned long) region;
    struct core *core = &cores[at / CORE_STRIDE];
    const u32 *mmu;
    u32 value = 0;

    at %= CORE_STRIDE;
    spin_lock_irqsave(&lock, flags);
    mmu = find_mmu(core, at);
    if (mmu) {
        value = read_mmu(mmu, at % BLOCK);
    } else if (at < BLOCK) {
        value = read_pc(core, at);
    }
    spin_unlock_irqrestore(&lock, flags);
    return value;
}

/* Write a register; writes of S_POINTER of CNA and CORE, which precede each task, are ignored. */
static void write_register(void *region, unsigned int offset, int size, unsigned long value)
{
    unsigned long flags, at = offset + (unsigned long) region;
    struct core *core = &cores[at / CORE_STRIDE];
    u32 *mmu;

    at %= CORE_STRIDE;
    spin_lock_irqsave(&lock, flags);
    mmu = find_mmu(core, at);
    if (mmu) {
        write_mmu(mmu, at % BLOCK, value);
    } else if (at < BLOCK) {
        write_pc(core, at, value);
    }
    spin_unlock_irqrestore(&lock, flags);
}

static const struct logic_iomem_ops register_ops = {.read = read_register, .write = write_register};

static long map_registers(unsigned long offset, size_t size, const struct logic_iomem_ops **ops,
                          void **region)
{
    *ops = &register_ops;
    *region = (void *) offset;
    return 0;
}

static const struct logic_iomem_region_ops region_ops = {.map = map_registers};
static struct resource registers = {
    .name = "rk3588-npu",
    .start = BASE,
    .end = BASE + CORES * CORE_STRIDE - 1,
    .flags = IORESOURCE_MEM,
};

/* --- memory ---------------------------------------------------------------------------------- */

/* Return the address in a table's entry: bits 31..12 as they are, bits 11..8 as bits 35..32, bits
 * 7..4 as bits 39..36. */
static phys_addr_t address_of(u32 entry)
{
    return (u64) (entry & 0xf0) << 32 | (u64) (entry & 0xf00) << 24 | (entry & 0xfffff000);
}

static u32 entry_of(u32 table, u32 index)
{
    return ((u32 *) __va(address_of(table)))[index];
}

/* Return the page at an address with a reference for the time of the copy, or NULL. */
static struct page *find_page(struct core *core, u32 address, bool write)
{
    const u32 *mmu = core->mmu[0];
    struct page *page = NULL;
    unsigned long flags;
    u32 entry = 0;

    spin_lock_irqsave(&lock, flags);
    if (mmu[MMU_STATUS / 4] & PAGING && mmu[MMU_TABLE / 4]) {
        entry = entry_of(mmu[MMU_TABLE / 4], address >> 22);
        entry = entry & VALID ? entry_of(entry, address >> 12 & 0x3ff) : 0;
    }
    if (entry & VALID && entry & (write ? WRITABLE : READABLE)) {
        page = pfn_to_page(PHYS_PFN(address_of(entry)));
        get_page(page);
    }
    spin_unlock_irqrestore(&lock, flags);
    return page;
}

static void fault(unsigned int core, u32 address, bool write)
{
    u32 *mmu = cores[core].mmu[0];
    unsigned long flags;

    spin_lock_irqsave(&lock, flags);
    mmu[MMU_FAULT_ADDRESS / 4] = address;
    mmu[MMU_STATUS / 4] |= FAULTED | (write ? BY_WRITE : 0);
    mmu[MMU_INT_RAW / 4] |= 1;
    spin_unlock_irqrestore(&lock, flags);
    raise_interrupt(core);
}

static ssize_t copy_part(struct page *page, u32 address, char __user *user, size_t size, bool write)
{
    char *at = (char *) page_address(page) + offset_in_page(address);
    const unsigned long left =
        write ? copy_from_user(at, user, size) : copy_to_user(user, at, size);

    put_page(page);
    return left ? -EFAULT : 0;
}

static ssize_t transfer(char __user *user, size_t size, loff_t position, bool write)
{
    const unsigned int core = (position & ~NPUHW_MEMORY) >> 32;
    u32 address = position;
    size_t done = 0;

    if (core >= CORES) {
        return -EINVAL;
    }
    while (done < size) {
        const size_t part = min_t(size_t, size - done, PAGE_SIZE - offset_in_page(address));
        struct page *page = find_page(&cores[core], address, write);

        if (!page) {
            fault(core, address, write);
            return done ?: -EFAULT;
        }
        if (copy_part(page, address, user + done, part, write)) {
            return -EFAULT;
        }
        done += part;
        address += part;
    }
    return done;
}

/* --- /dev/npuhw ------------------------------------------------------------------------------ */

static bool take_task(struct npuhw_task *task)
{
    unsigned long flags;
    bool taken = false;

    spin_lock_irqsave(&lock, flags);
    for (unsigned int i = 0; i < CORES && !taken; i++) {
        const u32 *pc = cores[i].pc;

        taken = cores[i].started;
        if (taken) {
            cores[i].started = false;
            *task = (struct npuhw_task){.core = i,
                                        .start = cores[i].starts,
                                        .address = pc[PC_ADDRESS / 4],
                                        .amount = pc[PC_AMOUNT / 4],
                                        .task_con = pc[PC_TASK_CON / 4],
                                        .interrupt_mask = pc[PC_INT_MASK / 4]};
        }
    }
    spin_unlock_irqrestore(&lock, flags);
    return taken;
}

static ssize_t npuhw_read(struct file *file, char __user *user, size_t size, loff_t *position)
{
    struct npuhw_task task;

    if (*position & NPUHW_MEMORY) {
        return transfer(user, size, *position, false);
    }
    if (size < sizeof(task)) {
        return -EINVAL;
    }
    if (wait_event_interruptible(starting, take_task(&task))) {
        return -ERESTARTSYS;
    }
    return copy_to_user(user, &task, sizeof(task)) ? -EFAULT : sizeof(task);
}

static ssize_t npuhw_write(struct file *file, const char __user *user, size_t size,
                           loff_t *position)
{
    struct npuhw_done done;
    unsigned long flags;
    bool raised = false;
    u32 *pc;

    if (*position & NPUHW_MEMORY) {
        return transfer((char __user *) user, size, *position, true);
    }
    if (size != sizeof(done) || copy_from_user(&done, user, sizeof(done)) || done.core >= CORES) {
        return -EINVAL;
    }
    pc = cores[done.core].pc;
    spin_lock_irqsave(&lock, flags);
    if (done.start == cores[done.core].starts) {
        pc[PC_INT_RAW / 4] |= done.status;
        raised = done.status & pc[PC_INT_MASK / 4];
    }
    spin_unlock_irqrestore(&lock, flags);
    if (raised) {
        raise_interrupt(done.core);
    }
    return size;
}

static const struct file_operations npuhw_operations = {
    .owner = THIS_MODULE,
    .read = npuhw_read,
    .write = npuhw_write,
    .llseek = default_llseek,
};
static struct miscdevice npuhw = {MISC_DYNAMIC_MINOR, "npuhw", &npuhw_operations};

/* --- resets ---------------------------------------------------------------------------------- */

/* Reset a core, by one of its two lines srst_a and srst_h.  The IOMMU keeps its registers, because
 * it has its own reset command. */
static int assert_reset(struct reset_controller_dev *controller, unsigned long line)
{
    struct core *core = &cores[line / 2];
    unsigned long flags;

    spin_lock_irqsave(&lock, flags);
    memset(core->pc, 0, sizeof(core->pc));
    core->started = false;
    core->starts++;
    spin_unlock_irqrestore(&lock, flags);
    return 0;
}

static int deassert_reset(struct reset_controller_dev *controller, unsigned long line)
{
    return 0;
}

static const struct reset_control_ops reset_ops = {.assert = assert_reset,
                                                   .deassert = deassert_reset};
static struct reset_controller_dev resets = {
    .ops = &reset_ops, .owner = THIS_MODULE, .nr_resets = 2 * CORES};

/* Runs before the drivers, which are probed at the device level. */
static int __init npuhw_init(void)
{
    struct device_node *node = of_find_compatible_node(NULL, NULL, "npurt,npu-hardware");
    int error;

    if (!node) {
        return 0;
    }
    error = logic_iomem_add_region(&registers, &region_ops);
    if (error) {
        return error;
    }
    interrupts = irq_domain_create_sim(of_fwnode_handle(node), CORES);
    if (IS_ERR(interrupts)) {
        return PTR_ERR(interrupts);
    }
    resets.of_node = node;
    return reset_controller_register(&resets);
}
postcore_initcall(npuhw_init);

static int __init npuhw_register(void)
{
    return misc_register(&npuhw);
}
device_initcall(npuhw_register);
