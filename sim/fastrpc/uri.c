/* Parse the URIs of skels and search for the skels' files.  Source: qualcomm/fastrpc 1.0.5. */
#define _GNU_SOURCE
#include "sim.h"
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DOMAIN_KEY "&_dom="
#define SESSION_KEY "&_session="

/* Domains in the order of the real library's search: "cdsp1" comes before its prefix "cdsp". */
static const struct {
    const char *name;
    int number;
} domains[] = {{"adsp", 0}, {"mdsp", 1},  {"sdsp", 2}, {"cdsp1", 4},
               {"cdsp", 3}, {"gdsp0", 5}, {"gdsp1", 6}};
enum { NAMED = sizeof(domains) / sizeof(domains[0]) };

const char *uri_domain_name(int number)
{
    int i = 0;
    while (domains[i].number != number) {
        i++;
    }
    return domains[i].name;
}

/* Find a domain by its name.  In faithful mode a longer name matches too: the real library compares
 * only the beginning. */
int uri_domain_number(const char *name, size_t most)
{
    bool faithful = settings()->faithful;
    size_t bytes = strnlen(name, most);
    for (int i = 0; i < NAMED && bytes; i++) {
        size_t length = strlen(domains[i].name);
        if ((faithful || bytes == length) && strncmp(domains[i].name, name, length) == 0) {
            return domains[i].number;
        }
    }
    return -1;
}

/* Return the first domain of the table whose key occurs anywhere in *uri*, as the real library
 * does; -1: none occurs. */
static int find_domain(const char *uri)
{
    for (int i = 0; i < NAMED; i++) {
        char key[sizeof(DOMAIN_KEY) + 8];
        snprintf(key, sizeof(key), DOMAIN_KEY "%s", domains[i].name);
        if (strstr(uri, key)) {
            return domains[i].number;
        }
    }
    return -1;
}

static int read_session(const char *text)
{
    if (settings()->faithful) {
        long number = strtol(text, NULL, 10);
        return number >= 0 && number < SESSIONS ? (int) number : -1;
    }
    bool good = text[0] >= '0' && text[0] < '0' + SESSIONS && (!text[1] || text[1] == '&');
    return good ? text[0] - '0' : -1;
}

int uri_domain(const char *uri)
{
    const char *at = uri ? strstr(uri, DOMAIN_KEY) : NULL;
    if (!at) {
        return -1;
    }
    at += strlen(DOMAIN_KEY);
    int domain = settings()->faithful ? find_domain(uri) : uri_domain_number(at, strcspn(at, "&"));
    const char *number = strstr(uri, SESSION_KEY);
    if (domain < 0 || !number) {
        return domain;
    }
    int session = read_session(number + strlen(SESSION_KEY));
    return session < 0 ? -1 : domain + DOMAINS * session;
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

/* The search path is DSP_LIBRARY_PATH, or else ADSP_LIBRARY_PATH, followed by the default folders.
 * Its only separator is ";".  An empty item means the current folder. */
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
