/* The functions of the C library that the shell provides, as a PD does. */
#ifndef LIBC_H
#define LIBC_H

#include "shell.h"

void *malloc(size_t bytes);
void *calloc(size_t count, size_t bytes);
void *realloc(void *memory, size_t bytes);
void *memalign(size_t alignment, size_t bytes);
void free(void *memory);

void *memcpy(void *restrict to, const void *restrict from, size_t bytes);
void *memmove(void *to, const void *from, size_t bytes);
void *memset(void *to, int value, size_t bytes);
int memcmp(const void *a, const void *b, size_t bytes);
/* Of stringl.h: copy the smaller of both sizes, and return it. */
size_t memscpy(void *restrict to, size_t capacity, const void *restrict from, size_t bytes);
size_t memsmove(void *to, size_t capacity, const void *from, size_t bytes);
size_t strlen(const char *text);
int strcmp(const char *a, const char *b);
int strncmp(const char *a, const char *b, size_t bytes);
char *strcpy(char *to, const char *from);
char *strncpy(char *to, const char *from, size_t bytes);
size_t strlcpy(char *to, const char *from, size_t bytes);
char *strchr(const char *text, int c);
char *strstr(const char *text, const char *part);
char *strtok_r(char *text, const char *separators, char **state);
unsigned long strtoul(const char *text, char **end, int base);
int atoi(const char *text);
int snprintf(char *to, size_t bytes, const char *format, ...);
int vsnprintf(char *to, size_t bytes, const char *format, va_list values);

#endif
