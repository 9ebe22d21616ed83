/* Memory and string functions, as plain loops. memcpy copies words if source and target have the
 * same alignment. */
#include "libc.h"

/* no_builtin: otherwise the compiler replaces the loop in memcpy by a call of memcpy. */
#define PLAIN __attribute__((no_builtin))

typedef uint64_t __attribute__((may_alias)) word;

PLAIN void *memcpy(void *restrict to, const void *restrict from, size_t bytes)
{
    uint8_t *out = to;
    const uint8_t *in = from;
    if ((((uintptr_t) out ^ (uintptr_t) in) & 7) == 0) {
        for (; bytes && (uintptr_t) out & 7; bytes--) {
            *out++ = *in++;
        }
        for (; bytes >= 8; bytes -= 8, out += 8, in += 8) {
            *(word *) out = *(const word *) in;
        }
    }
    for (; bytes; bytes--) {
        *out++ = *in++;
    }
    return to;
}

PLAIN void *memmove(void *to, const void *from, size_t bytes)
{
    uint8_t *out = to;
    const uint8_t *in = from;
    if ((uintptr_t) out - (uintptr_t) in >= bytes) {
        return memcpy(to, from, bytes);
    }
    while (bytes--) {
        out[bytes] = in[bytes];
    }
    return to;
}

PLAIN void *memset(void *to, int value, size_t bytes)
{
    uint8_t *out = to;
    for (; bytes && (uintptr_t) out & 7; bytes--) {
        *out++ = (uint8_t) value;
    }
    for (; bytes >= 8; bytes -= 8, out += 8) {
        *(word *) out = 0x0101010101010101u * (uint8_t) value;
    }
    for (; bytes; bytes--) {
        *out++ = (uint8_t) value;
    }
    return to;
}

PLAIN int memcmp(const void *a, const void *b, size_t bytes)
{
    const uint8_t *x = a, *y = b;
    for (; bytes; bytes--, x++, y++) {
        if (*x != *y) {
            return *x - *y;
        }
    }
    return 0;
}

/* Copy bytes: Clang calls this function for at least 32 bytes, a multiple of 8. */
void *__hexagon_memcpy_likely_aligned_min32bytes_mult8bytes(void *restrict to,
                                                            const void *restrict from,
                                                            size_t bytes);

void *__hexagon_memcpy_likely_aligned_min32bytes_mult8bytes(void *restrict to,
                                                            const void *restrict from, size_t bytes)
{
    return memcpy(to, from, bytes);
}

size_t memscpy(void *restrict to, size_t capacity, const void *restrict from, size_t bytes)
{
    size_t copied = bytes < capacity ? bytes : capacity;
    memcpy(to, from, copied);
    return copied;
}

size_t memsmove(void *to, size_t capacity, const void *from, size_t bytes)
{
    size_t copied = bytes < capacity ? bytes : capacity;
    memmove(to, from, copied);
    return copied;
}

PLAIN size_t strlen(const char *text)
{
    size_t bytes = 0;
    while (text[bytes]) {
        bytes++;
    }
    return bytes;
}

PLAIN int strncmp(const char *a, const char *b, size_t bytes)
{
    for (; bytes && *a && *a == *b; bytes--, a++, b++) {
    }
    return bytes ? (uint8_t) *a - (uint8_t) *b : 0;
}

PLAIN int strcmp(const char *a, const char *b)
{
    return strncmp(a, b, SIZE_MAX);
}

PLAIN char *strncpy(char *to, const char *from, size_t bytes)
{
    size_t i = 0;
    for (; i < bytes && from[i]; i++) {
        to[i] = from[i];
    }
    memset(to + i, 0, bytes - i);
    return to;
}

PLAIN size_t strlcpy(char *to, const char *from, size_t bytes)
{
    size_t length = strlen(from), copied = length < bytes ? length : bytes - 1;
    if (bytes) {
        memcpy(to, from, copied);
        to[copied] = 0;
    }
    return length;
}

PLAIN char *strcpy(char *to, const char *from)
{
    memcpy(to, from, strlen(from) + 1);
    return to;
}

PLAIN char *strchr(const char *text, int c)
{
    while (*text && *text != (char) c) {
        text++;
    }
    return *text == (char) c ? (char *) text : NULL;
}

PLAIN char *strstr(const char *text, const char *part)
{
    size_t bytes = strlen(part);
    for (; *text || !bytes; text++) {
        if (strncmp(text, part, bytes) == 0) {
            return (char *) text;
        }
    }
    return NULL;
}

char *strtok_r(char *text, const char *separators, char **state)
{
    char *at = text ? text : *state;
    while (at && *at && strchr(separators, *at)) {
        at++;
    }
    if (!at || !*at) {
        *state = NULL;
        return NULL;
    }
    char *word = at;
    while (*at && !strchr(separators, *at)) {
        at++;
    }
    *state = *at ? at + 1 : NULL;
    *at = 0;
    return word;
}

static uint32_t digit_of(char c)
{
    char lower = c | 0x20;
    return c >= '0' && c <= '9'           ? (uint32_t) (c - '0')
           : lower >= 'a' && lower <= 'z' ? (uint32_t) (lower - 'a') + 10
                                          : 99;
}

unsigned long strtoul(const char *text, char **end, int base)
{
    while (*text == ' ' || *text == '\t') {
        text++;
    }
    bool minus = *text == '-';
    text += *text == '-' || *text == '+';
    bool hex = text[0] == '0' && (text[1] | 0x20) == 'x' && digit_of(text[2]) < 16;
    if (hex && (base == 0 || base == 16)) {
        base = 16;
        text += 2;
    }
    base = base ? base : *text == '0' ? 8 : 10;
    unsigned long value = 0;
    for (; digit_of(*text) < (uint32_t) base; text++) {
        value = value * (unsigned long) base + digit_of(*text);
    }
    if (end) {
        *end = (char *) text;
    }
    return minus ? -value : value;
}

int atoi(const char *text)
{
    return (int) strtoul(text, NULL, 10);
}

int vsnprintf(char *to, size_t bytes, const char *format, va_list values)
{
    return text_format(to, bytes, format, values);
}

int snprintf(char *to, size_t bytes, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    int length = text_format(to, bytes, format, values);
    va_end(values);
    return length;
}
