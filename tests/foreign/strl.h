/* strlcpy and strlcat of BSD, for libraries that expect them of libbsd or glibc 2.38. */
#ifndef STRL_H
#define STRL_H

#include <string.h>

static inline size_t strlcpy(char *to, const char *from, size_t room)
{
    size_t bytes = strlen(from), copied = bytes < room ? bytes : room - 1;
    if (room) {
        memcpy(to, from, copied);
        to[copied] = 0;
    }
    return bytes;
}

static inline size_t strlcat(char *to, const char *from, size_t room)
{
    size_t before = strnlen(to, room);
    return before + (before < room ? strlcpy(to + before, from, room - before) : strlen(from));
}

#endif
