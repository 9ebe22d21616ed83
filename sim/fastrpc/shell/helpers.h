/*
 * Functions that compilers call by themselves and that the shells export: division, and the saving
 * and restoring of registers in functions that are optimised for size.
 *
 * Sources: names and arguments from LLVM, lib/Target/Hexagon/HexagonISelLowering.cpp (libcalls);
 * the place of each register in the frame from HexagonFrameLowering.cpp
 * (getCalleeSavedSpillSlots).
 */
#ifndef HELPERS_H
#define HELPERS_H

#include "shell.h"

uint32_t __hexagon_udivsi3(uint32_t a, uint32_t b);
uint32_t __hexagon_umodsi3(uint32_t a, uint32_t b);
int32_t __hexagon_divsi3(int32_t a, int32_t b);
int32_t __hexagon_modsi3(int32_t a, int32_t b);
uint64_t __hexagon_udivdi3(uint64_t a, uint64_t b);
uint64_t __hexagon_umoddi3(uint64_t a, uint64_t b);
int64_t __hexagon_divdi3(int64_t a, int64_t b);
int64_t __hexagon_moddi3(int64_t a, int64_t b);

/* These functions use the caller's frame and keep all other registers. */
void __save_r16_through_r17(void);
void __save_r16_through_r19(void);
void __save_r16_through_r21(void);
void __save_r16_through_r23(void);
void __save_r16_through_r25(void);
void __save_r16_through_r27(void);
void __restore_r16_through_r17_and_deallocframe(void);
void __restore_r16_through_r19_and_deallocframe(void);
void __restore_r16_through_r21_and_deallocframe(void);
void __restore_r16_through_r23_and_deallocframe(void);
void __restore_r16_through_r25_and_deallocframe(void);
void __restore_r16_through_r27_and_deallocframe(void);
void __restore_r16_through_r17_and_deallocframe_before_tailcall(void);
void __restore_r16_through_r19_and_deallocframe_before_tailcall(void);
void __restore_r16_through_r21_and_deallocframe_before_tailcall(void);
void __restore_r16_through_r23_and_deallocframe_before_tailcall(void);
void __restore_r16_through_r25_and_deallocframe_before_tailcall(void);
void __restore_r16_through_r27_and_deallocframe_before_tailcall(void);

#endif
