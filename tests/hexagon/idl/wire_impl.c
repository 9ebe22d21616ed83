/* The implementation of wire.idl: most methods return what they are given. */
#include <string.h>

#include "t.h"

#define MIN(a, b) ((a) < (b) ? (a) : (b))

static remote_handle64 last_opened;

int t_open(const char *uri, remote_handle64 *h)
{
    last_opened = *h = 0x1122334455667788u + strlen(uri);
    return 0;
}

int t_close(remote_handle64 h)
{
    return h == last_opened ? 0 : 7;
}

int t_prims(remote_handle64 h, int8_t a, uint64_t b, int16_t c, uint8_t *d, uint64_t *e, float f,
            double g, uint8_t h_, uint8_t *i)
{
    *d = (uint8_t) a;
    *e = h ^ b ^ (uint64_t) c ^ (uint64_t) (f * 16) ^ (uint64_t) (g * 1024);
    *i = !h_;
    return 0;
}

int t_io(remote_handle64 h, uint32_t *a, uint64_t *b)
{
    (void) h;
    *a += 1;
    *b += 2;
    return 0;
}

int t_seqs(remote_handle64 h, const uint16_t *a, int aLen, uint32_t *b, int bLen, float *c,
           int cLen, uint32_t d)
{
    (void) h;
    for (int i = 0; i < bLen; i++) {
        b[i] = d + (i < aLen ? a[i] : 0);
    }
    for (int i = 0; i < cLen; i++) {
        c[i] *= 2;
    }
    return 0;
}

int t_strs(remote_handle64 h, const char *a, char *b, int bLen, char *c, int cLen)
{
    (void) h;
    for (int i = 0; i < bLen; i++) {
        b[i] = (size_t) i < strlen(a) ? a[i] : 0;
    }
    for (int i = 0; i < cLen && c[i]; i++) {
        c[i] ^= 0x20;
    }
    return 0;
}

int t_structs(remote_handle64 h, const t_prim *a, t_prim *b, t_prim *c, const t_arr *d)
{
    (void) h;
    b->a = a->a;
    b->b = a->b + d->tail;
    b->c = a->c + d->head[0];
    c->c = -c->c;
    return 0;
}

int t_enums(remote_handle64 h, t_color a, t_color *b)
{
    (void) h;
    *b = (t_color) (a + 1);
    return 0;
}

int t_cplx(remote_handle64 h, const t_vec *a, t_vec *b)
{
    (void) h;
    b->n = a->n;
    b->z = a->z;
    memcpy(b->v, a->v, 4 * (size_t) MIN(a->vLen, b->vLen));
    return 0;
}

int t_seqstruct(remote_handle64 h, const t_prim *a, int aLen, t_prim *b, int bLen)
{
    (void) h;
    memcpy(b, a, sizeof *a * (size_t) MIN(aLen, bLen));
    return 0;
}

static void bytes(const t_bytes *a, int aLen, t_bytes *b, int bLen)
{
    for (int i = 0; i < MIN(aLen, bLen); i++) {
        memcpy(b[i].data, a[i].data, (size_t) MIN(a[i].dataLen, b[i].dataLen));
    }
}

int t_seqseq(remote_handle64 h, const t_bytes *a, int aLen, t_bytes *b, int bLen)
{
    (void) h;
    bytes(a, aLen, b, bLen);
    return 0;
}

int t_seqstr(remote_handle64 h, const _cstring1_t *a, int aLen)
{
    (void) h;
    int total = 0;
    for (int i = 0; i < aLen; i++) {
        total += (int) strlen(a[i].data) == a[i].dataLen - 1 ? a[i].data[0] : 100000;
    }
    return total;
}

int adsp_mmap_fd_getinfo(int fd, uint32_t *len)
{
    *len = (uint32_t) fd * 4096;
    return fd < 0;
}

int t_dma(remote_handle64 h, int a, uint32_t aOffset, uint32_t aLen, uint32_t *b)
{
    (void) h;
    *b = (uint32_t) a + aOffset + aLen;
    return 0;
}

int t_dmas(remote_handle64 h, int a, uint32_t aOffset, uint32_t aLen, int b, uint32_t bOffset,
           uint32_t bLen)
{
    (void) h;
    return a == 7 && aOffset == 0 && aLen == 7 * 4096 && b == 8 && bOffset == 4 && bLen == 8 * 4096
               ? 0
               : 9;
}

int t_none(remote_handle64 h)
{
    return (int) h;
}

int t_big(remote_handle64 h, uint32_t a, uint64_t b, uint32_t c, uint64_t d)
{
    (void) h;
    return (int) (a + 2 * b + 3 * c + 4 * d);
}

#define ECHO(name, type)                                                                           \
    int t_echo_##name(remote_handle64 h, const type *a, int aLen, type b, type *c, int cLen,       \
                      type *d)                                                                     \
    {                                                                                              \
        (void) h;                                                                                  \
        for (int i = 0; i < MIN(aLen, cLen); i++)                                                  \
            c[i] = a[i];                                                                           \
        *d = b;                                                                                    \
        return 0;                                                                                  \
    }

ECHO(int8, int8_t)
ECHO(uint8, uint8_t)
ECHO(int16, int16_t)
ECHO(uint16, uint16_t)
ECHO(int32, int32_t)
ECHO(uint32, uint32_t)
ECHO(int64, int64_t)
ECHO(uint64, uint64_t)
ECHO(float, float)
ECHO(double, double)
ECHO(boolean, uint8_t)
ECHO(char, char)
ECHO(octet, uint8_t)
ECHO(wchar, uint16_t)
ECHO(short, short)
ECHO(unsigned_short, unsigned short)
ECHO(long, int)
ECHO(unsigned_long, unsigned int)
ECHO(long_long, int64_t)
ECHO(unsigned_long_long, uint64_t)

int t_echo_outer(remote_handle64 h, const t_outer *a, t_outer *b, t_outer *c, const t_outer *d,
                 int dLen, t_outer *e, int eLen)
{
    (void) h;
    *b = *a;
    c->y[UNIT - 1] += 1;
    memcpy(e, d, sizeof *d * (size_t) MIN(dLen, eLen));
    return 0;
}

static void page(const t_page *a, t_page *b)
{
    b->top.kind = a->top.kind;
    memcpy(b->top.text, a->top.text, (size_t) MIN(a->top.textLen, b->top.textLen));
    memcpy(b->top.prims, a->top.prims,
           sizeof *a->top.prims * (size_t) MIN(a->top.primsLen, b->top.primsLen));
    b->top.at = a->top.at;
    b->number = a->number;
    memcpy(b->body, a->body, (size_t) MIN(a->bodyLen, b->bodyLen));
}

int t_echo_page(remote_handle64 h, const t_page *a, t_page *b)
{
    (void) h;
    page(a, b);
    return 0;
}

int t_echo_pages(remote_handle64 h, const t_page *a, int aLen, t_page *b, int bLen)
{
    (void) h;
    for (int i = 0; i < MIN(aLen, bLen); i++) {
        page(&a[i], &b[i]);
    }
    return 0;
}

int t_echo_texts(remote_handle64 h, const _cstring1_t *a, int aLen, _cstring1_t *b, int bLen,
                 const t_bytes *c, int cLen, t_bytes *d, int dLen)
{
    (void) h;
    for (int i = 0; i < MIN(aLen, bLen); i++) {
        memcpy(b[i].data, a[i].data, (size_t) MIN(a[i].dataLen, b[i].dataLen));
    }
    bytes(c, cLen, d, dLen);
    return 0;
}

int t_fails(remote_handle64 h, int32_t error, uint32_t *a, uint64_t *b)
{
    (void) h;
    *a = 1;
    *b = 2;
    return error;
}

int t_handles(remote_handle64 h, int a, uint32_t aOffset, uint32_t aLen, int b, uint32_t bOffset,
              uint32_t bLen, uint64_t *seen)
{
    (void) h;
    *seen = (uint64_t) a << 40 | (uint64_t) aOffset << 24 | (uint64_t) b << 8 | bOffset;
    return aLen == (uint32_t) a * 4096 && bLen == (uint32_t) b * 4096 ? 0 : 9;
}
