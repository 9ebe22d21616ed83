/* The cycle counter of the processor. */
#ifndef NPURT_TIMER_H
#define NPURT_TIMER_H

#include <stdint.h>

/*
 * Return the cycles since the processor started: control registers 15:14, UPCYCLE.  In
 * emulators the counter stays 0.  Source: Hexagon V68 Programmer's Reference Manual, "Control
 * registers".
 */
static inline uint64_t timer_cycles(void)
{
    uint64_t cycles;
    __asm__ volatile("%0 = c15:14" : "=r"(cycles));
    return cycles;
}

#endif
