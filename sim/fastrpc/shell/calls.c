/* Handles of open skels, and calls of their methods.  The shell calls methods 0 and 1, the skel's
 * open and close; the host calls the others.  Source: qualcomm/QAIC; remote.h. */
#include "shell.h"

enum { HANDLES = 256, FIRST_HANDLE = 0x1000 }; /* smaller numbers are handles of services */

/* method << 24 | in buffers << 16 | out buffers << 8 | in handles << 4 | out handles */
#define METHOD_OPEN 0x00020001u
#define METHOD_CLOSE 0x01000010u

typedef struct {
    module *code; /* NULL: this entry is free */
    skel_invoke invoke;
    uint64_t context; /* returned by the skel's open */
    uint32_t serial;
} handle;

static handle handles[HANDLES];
static lock table;

static uint32_t id_of(const handle *h)
{
    return FIRST_HANDLE + h->serial * HANDLES + (uint32_t) (h - handles);
}

/* Return a copy of the handle *id*; the caller must drop its module.  If there is no such handle,
 * `code` of the result is NULL. */
static handle handle_of(uint32_t id)
{
    handle found = {0};
    lock_take(&table);
    handle *h = &handles[(id - FIRST_HANDLE) % HANDLES];
    if (h->code && id == id_of(h)) {
        found = *h;
        module_keep(found.code);
    }
    lock_leave(&table);
    return found;
}

static handle *free_handle(void)
{
    for (int i = 0; i < HANDLES; i++) {
        if (!handles[i].code) {
            handles[i].serial++;
            return &handles[i];
        }
    }
    return NULL;
}

/* Add *opened* to the table; return its number, or 0 if the table is full. */
static uint32_t enter(const handle *opened)
{
    lock_take(&table);
    handle *h = free_handle();
    uint32_t id = 0;
    if (h) {
        uint32_t serial = h->serial;
        *h = *opened;
        h->serial = serial;
        id = id_of(h);
    }
    lock_leave(&table);
    return id;
}

/* Run one of the skel's methods and count the packets that it executes. */
static int run(link_channel *channel, const handle *h, uint32_t scalars, link_argument *arguments)
{
    uint64_t before = account_total();
    account_start();
    int result = h->invoke(h->context, scalars, arguments);
    account_settle();
    channel->packets = account_total() - before;
    return result;
}

/* --- open ------------------------------------------------------------------------------------ */

typedef struct {
    const char *file, *symbol;
    uint32_t file_bytes, symbol_bytes;
} uri_parts;

/* Split a URI of the form file:///FILE?SYMBOL&KEY=VALUE... */
static bool split(const char *uri, uint32_t bytes, uri_parts *parts)
{
    static const char start[] = "file:///";
    uint32_t at = sizeof(start) - 1, mark;
    if (bytes < at || __builtin_memcmp(uri, start, at)) {
        return false;
    }
    for (mark = at; mark < bytes && uri[mark] != '?'; mark++) {
    }
    uint32_t end = mark + 1;
    for (; end < bytes && uri[end] != '&'; end++) {
    }
    *parts = (uri_parts){uri + at, uri + mark + 1, mark - at, end - mark - 1};
    return mark > at && end > mark + 1 && end <= bytes;
}

/* Call the skel's open: (in string uri, rout handle h). */
static int open_skel(link_channel *channel, handle *h, const char *uri, uint32_t bytes)
{
    uint32_t count = bytes + 1;
    link_argument arguments[3] = {
        {(uint32_t) &count, sizeof(count)}, {(uint32_t) uri, count}, {0, 0}};
    int result = run(channel, h, METHOD_OPEN, arguments);
    h->context = arguments[2].address | (uint64_t) arguments[2].size << 32;
    return result;
}

static int close_skel(link_channel *channel, const handle *h)
{
    link_argument argument = {(uint32_t) h->context, (uint32_t) (h->context >> 32)};
    return run(channel, h, METHOD_CLOSE, &argument);
}

static int open_module(link_channel *channel, handle *h, const uri_parts *parts, const char *uri,
                       uint32_t bytes)
{
    h->invoke = (skel_invoke) module_symbol(h->code, parts->symbol, parts->symbol_bytes);
    if (!h->invoke) {
        say("%.*s: no symbol %.*s", (int) parts->file_bytes, parts->file, (int) parts->symbol_bytes,
            parts->symbol);
        return DSP_NO_SYMBOL;
    }
    int result = open_skel(channel, h, uri, bytes);
    if (result != DSP_OK) {
        return result;
    }
    channel->handle = enter(h);
    if (channel->handle) {
        return DSP_OK;
    }
    close_skel(channel, h);
    return DSP_NO_MEMORY;
}

int call_open(link_channel *channel, const char *uri, uint32_t bytes)
{
    int fd = receive_descriptor();
    uri_parts parts;
    handle h = {0};
    int result = DSP_INVALID_FORMAT;
    if (split(uri, bytes, &parts)) {
        result = module_load(parts.file, parts.file_bytes, fd, &h.code);
    }
    sys_close(fd);
    if (result == DSP_OK) {
        result = open_module(channel, &h, &parts, uri, bytes);
        if (result != DSP_OK) {
            module_drop(h.code);
        }
    }
    return result;
}

/* --- close, invoke --------------------------------------------------------------------------- */

int call_close(link_channel *channel)
{
    handle h = handle_of(channel->handle);
    if (!h.code) {
        return DSP_INVALID_HANDLE;
    }
    int result = close_skel(channel, &h);
    lock_take(&table);
    handle *entry = &handles[(channel->handle - FIRST_HANDLE) % HANDLES];
    bool there = entry->code && channel->handle == id_of(entry);
    if (there) {
        entry->code = NULL;
    }
    lock_leave(&table);
    module_drop(h.code);
    if (there) {
        module_drop(h.code);
    }
    return result;
}

int call_invoke(link_channel *channel)
{
    handle h = handle_of(channel->handle);
    if (!h.code) {
        return DSP_INVALID_HANDLE;
    }
    int result = run(channel, &h, channel->scalars, channel->argument);
    module_drop(h.code);
    return result;
}
