/*
 * printf for the shell and for skels.  Messages go to a ring in the memory that is shared with the
 * library.
 */
#include "shell.h"

enum { MESSAGE = 512 };

/* The destination of formatted text; text that does not fit is only counted. */
typedef struct {
    char *at, *end;
    int length;
} sink;

/* One conversion of a format: the characters between % and its letter. */
typedef struct {
    int width, precision; /* precision -1: none given */
    bool left, zero, plus, alternate;
    int longs; /* number of l modifiers; z, t and h have no effect on 32 bits */
} conversion;

static void put(sink *out, char c)
{
    if (out->at < out->end) {
        *out->at++ = c;
    }
    out->length++;
}

static void put_many(sink *out, char c, int times)
{
    for (int i = 0; i < times; i++) {
        put(out, c);
    }
}

/* Put *bytes* of *text* after *prefix*, padded to the conversion's width. */
static void put_field(sink *out, const conversion *how, const char *prefix, const char *text,
                      int bytes)
{
    int before = 0;
    while (prefix[before]) {
        before++;
    }
    int padding = how->width - before - bytes;
    if (!how->left && !how->zero) {
        put_many(out, ' ', padding);
    }
    while (*prefix) {
        put(out, *prefix++);
    }
    if (!how->left && how->zero) {
        put_many(out, '0', padding);
    }
    for (int i = 0; i < bytes; i++) {
        put(out, text[i]);
    }
    if (how->left) {
        put_many(out, ' ', padding);
    }
}

/* Divide *value* by *base* in place and return the remainder: the shell has no 64-bit division. */
static uint32_t take_digit(uint64_t *value, uint32_t base)
{
    uint64_t quotient = 0, rest = 0;
    for (int bit = 63; bit >= 0; bit--) {
        rest = rest << 1 | (*value >> bit & 1);
        quotient <<= 1;
        if (rest >= base) {
            rest -= base;
            quotient |= 1;
        }
    }
    *value = quotient;
    return (uint32_t) rest;
}

static void put_number(sink *out, conversion *how, const char *prefix, uint64_t value,
                       uint32_t base, const char *digits)
{
    char text[64];
    int start = (int) sizeof(text);
    int least = how->precision >= 0 ? how->precision : 1;
    while (value || (int) sizeof(text) - start < least) {
        if (start == 0) {
            break;
        }
        text[--start] = digits[take_digit(&value, base)];
    }
    if (how->precision >= 0) {
        how->zero = false;
    }
    put_field(out, how, prefix, text + start, (int) sizeof(text) - start);
}

/* Put a number as %f does, with at most nine digits after the point. */
static void put_real(sink *out, conversion *how, double value)
{
    int digits = how->precision < 0 ? 6 : how->precision > 9 ? 9 : how->precision;
    const char *sign = value < 0 ? "-" : how->plus ? "+" : "";
    value = value < 0 ? -value : value;
    if (!(value < 1e18)) {
        how->zero = false;
        put_field(out, how, sign, value == value ? "inf" : "nan", 3);
        return;
    }
    uint64_t scale = 1;
    for (int i = 0; i < digits; i++) {
        scale *= 10;
    }
    uint64_t whole = (uint64_t) value;
    uint64_t part = (uint64_t) ((value - (double) whole) * (double) scale + 0.5);
    if (part >= scale) {
        whole++;
        part -= scale;
    }
    char text[40];
    int start = (int) sizeof(text);
    for (int i = 0; i < digits; i++) {
        text[--start] = (char) ('0' + take_digit(&part, 10));
    }
    if (digits) {
        text[--start] = '.';
    }
    do {
        text[--start] = (char) ('0' + take_digit(&whole, 10));
    } while (whole);
    put_field(out, how, sign, text + start, (int) sizeof(text) - start);
}

static void put_string(sink *out, conversion *how, const char *text)
{
    text = text ? text : "(null)";
    int bytes = 0;
    while (text[bytes] && (how->precision < 0 || bytes < how->precision)) {
        bytes++;
    }
    how->zero = false;
    put_field(out, how, "", text, bytes);
}

/* Read flags, width, precision and length; return the position after them. */
static const char *read_conversion(const char *format, conversion *how, va_list *values)
{
    for (;; format++) {
        how->left |= *format == '-';
        how->zero |= *format == '0';
        how->plus |= *format == '+';
        how->alternate |= *format == '#';
        if (*format != '-' && *format != '0' && *format != '+' && *format != '#' &&
            *format != ' ') {
            break;
        }
    }
    int *number = &how->width;
    for (;; format++) {
        if (*format == '.') {
            number = &how->precision;
            *number = 0;
        } else if (*format == '*') {
            *number = va_arg(*values, int);
        } else if (*format >= '0' && *format <= '9') {
            *number = *number * 10 + (*format - '0');
        } else {
            break;
        }
    }
    for (; *format == 'l' || *format == 'h' || *format == 'z' || *format == 't'; format++) {
        how->longs += *format == 'l';
    }
    return format;
}

static void put_signed(sink *out, conversion *how, int64_t value)
{
    const char *sign = value < 0 ? "-" : how->plus ? "+" : "";
    uint64_t size = value < 0 ? -(uint64_t) value : (uint64_t) value;
    put_number(out, how, sign, size, 10, "0123456789");
}

/* Put one conversion; return the position after its letter. */
static const char *put_value(sink *out, const char *format, va_list *values)
{
    conversion how = {.precision = -1};
    format = read_conversion(format, &how, values);
    bool wide = how.longs >= 2;
    switch (*format) {
    case 'd':
    case 'i':
        put_signed(out, &how, wide ? va_arg(*values, int64_t) : va_arg(*values, int32_t));
        break;
    case 'u':
        put_number(out, &how, "", wide ? va_arg(*values, uint64_t) : va_arg(*values, uint32_t), 10,
                   "0123456789");
        break;
    case 'x':
        put_number(out, &how, how.alternate ? "0x" : "",
                   wide ? va_arg(*values, uint64_t) : va_arg(*values, uint32_t), 16,
                   "0123456789abcdef");
        break;
    case 'X':
        put_number(out, &how, how.alternate ? "0X" : "",
                   wide ? va_arg(*values, uint64_t) : va_arg(*values, uint32_t), 16,
                   "0123456789ABCDEF");
        break;
    case 'p':
        put_number(out, &how, "0x", va_arg(*values, uint32_t), 16, "0123456789abcdef");
        break;
    case 'c':
        put(out, (char) va_arg(*values, int));
        break;
    case 's':
        put_string(out, &how, va_arg(*values, const char *));
        break;
    case 'e':
    case 'f':
    case 'g':
        put_real(out, &how, va_arg(*values, double));
        break;
    case 0:
        return format;
    default:
        put(out, *format);
    }
    return format + 1;
}

int text_format(char *text, size_t bytes, const char *format, va_list given)
{
    sink out = {.at = text, .end = text + (bytes ? bytes - 1 : 0)};
    va_list values;
    va_copy(values, given);
    while (*format) {
        if (*format != '%') {
            put(&out, *format++);
        } else {
            format = put_value(&out, format + 1, &values);
        }
    }
    va_end(values);
    if (bytes) {
        *out.at = 0;
    }
    return out.length;
}

/* --- messages -------------------------------------------------------------------------------- */

static lock speaking;

void say_values(const char *format, va_list values)
{
    char text[MESSAGE];
    int length = text_format(text, sizeof(text) - 1, format, values);
    length = length < MESSAGE - 2 ? length : MESSAGE - 2;
    while (length && text[length - 1] == '\n') {
        length--;
    }
    text[length++] = '\n';
    lock_take(&speaking);
    for (int i = 0; i < length; i++) {
        shared->log[(shared->logged + (uint32_t) i) % LINK_LOG] = (uint8_t) text[i];
    }
    store(&shared->logged, shared->logged + (uint32_t) length);
    if (shared->machine.verbose) {
        sys_call(SYS_WRITE, 2, (long) text, length, 0, 0, 0);
    }
    lock_leave(&speaking);
}

void say(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    say_values(format, values);
    va_end(values);
}

void die(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    say_values(format, values);
    va_end(values);
    for (;;) {
        sys_call(SYS_EXIT_GROUP, 1, 0, 0, 0, 0, 0);
    }
}
