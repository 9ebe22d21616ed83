/* URIs of skels, and where the files they name are looked for.  Source: qualcomm/fastrpc 1.0.5. */
#define _GNU_SOURCE
#include "sim.h"
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* By number. */
static const char *const domain_names[] = {"adsp",  "mdsp",  "sdsp", "cdsp",
                                           "cdsp1", "gdsp0", "gdsp1"};

int uri_domain_number(const char *name, size_t bytes)
{
    for (int i = 0; i < (int) (sizeof(domain_names) / sizeof(domain_names[0])); i++) {
        if (strlen(domain_names[i]) == bytes && memcmp(domain_names[i], name, bytes) == 0) {
            return i;
        }
    }
    return -1;
}

int uri_domain(const char *uri)
{
    static const char domain_key[] = "&_dom=", session_key[] = "&_session=";
    const char *at = uri ? strstr(uri, domain_key) : NULL;
    if (!at) {
        return -1;
    }
    at += strlen(domain_key);
    int domain = uri_domain_number(at, strcspn(at, "&"));
    const char *number = strstr(uri, session_key);
    if (domain < 0 || !number) {
        return domain;
    }
    number += strlen(session_key);
    bool good = number[0] >= '0' && number[0] < '0' + SESSIONS && (!number[1] || number[1] == '&');
    return good ? domain + DOMAINS * (number[0] - '0') : -1;
}

/* --- files ----------------------------------------------------------------------------------- */

static int open_in(const char *folder, int folder_bytes, const char *name, int name_bytes)
{
    static const char *const within[] = {"cdsp/", ""};
    for (int i = 0; i < 2; i++) {
        char path[PATH_MAX];
        const char *slash = folder_bytes ? "/" : "";
        int length = snprintf(path, sizeof(path), "%.*s%s%s%.*s", folder_bytes, folder, slash,
                              within[i], name_bytes, name);
        int fd = length < PATH_MAX ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        if (fd >= 0) {
            return fd;
        }
    }
    return -1;
}

/* The path that is searched: the variable, then the folders of every system.  Only ";" separates, and
 * an empty item is the current folder. */
int uri_open(const char *uri)
{
    static const char start[] = "file:///", usual[] = ";/usr/lib/rfsa/adsp;/usr/lib/dsp;";
    if (strncmp(uri, start, strlen(start)) != 0) {
        return -1;
    }
    const char *name = uri + strlen(start), *given = getenv("DSP_LIBRARY_PATH");
    given = given ? given : getenv("ADSP_LIBRARY_PATH");
    size_t bytes = strcspn(name, "?"), length = given ? strlen(given) : 0;
    char *path = bytes < PATH_MAX ? malloc(length + sizeof(usual)) : NULL;
    int fd = -1;
    if (path) {
        memcpy(path, given ? given : "", length);
        memcpy(path + length, usual, sizeof(usual));
    }
    for (const char *at = path; at && fd < 0;) {
        size_t item = strcspn(at, ";");
        fd = item < PATH_MAX ? open_in(at, (int) item, name, (int) bytes) : -1;
        at = at[item] ? at + item + 1 : NULL;
    }
    free(path);
    return fd;
}
