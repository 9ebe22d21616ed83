/* Calls into the shell.  Each call takes one channel, and its thread waits for the answer. */
#define _GNU_SOURCE
#include "sim.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SPINS = 2000, LOOK_US = 1000000, SMALLEST_AREA = 1 << 20 };
#define LARGEST_AREA ((size_t) 1 << 30)

link_channel *channel_link(session *s, const channel *l)
{
    return &s->link->channel[l - s->channel];
}

static channel *free_channel(session *s)
{
    for (int i = 0; i < LINK_CHANNELS; i++) {
        if (!s->channel[i].busy) {
            return &s->channel[i];
        }
    }
    return NULL;
}

/* Take the first free channel: its thread in the shell is the one that ran most recently. */
channel *channel_take(session *s)
{
    pthread_mutex_lock(&sim_lock);
    channel *l = free_channel(s);
    while (!l && !load(&s->ended)) {
        pthread_cond_wait(&sim_changed, &sim_lock);
        l = free_channel(s);
    }
    if (l) {
        uint32_t index = (uint32_t) (l - s->channel);
        l->busy = true;
        if (l->bytes == 0) {
            l->fd = s->memory;
            l->area = s->link->area[index];
            l->offset = l->area - (uint8_t *) s->link;
            l->bytes = LINK_AREA;
            l->address = s->link->base + (uint32_t) l->offset;
        }
        if (index >= s->link->wanted) {
            store(&s->link->wanted, index + 1);
            futex_wake(&s->link->wanted, 1);
        }
    }
    pthread_mutex_unlock(&sim_lock);
    return l;
}

void channel_leave(session *s, channel *l)
{
    (void) s;
    pthread_mutex_lock(&sim_lock);
    l->busy = false;
    pthread_cond_broadcast(&sim_changed);
    pthread_mutex_unlock(&sim_lock);
}

void channels_end(session *s)
{
    for (int i = 0; i < LINK_CHANNELS; i++) {
        store(&s->link->channel[i].answered, LINK_ENDED);
        futex_wake(&s->link->channel[i].answered, 1);
    }
}

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("yield");
#endif
}

/* Wait for the answer; false: the process has ended. */
static bool await(session *s, link_channel *link, uint32_t asked)
{
    for (int i = 0; i < SPINS && load(&link->answered) != asked; i++) {
        pause_cpu();
    }
    for (;;) {
        uint32_t answered = load(&link->answered);
        if (answered == asked) {
            return true;
        }
        if (load(&s->ended)) {
            return false;
        }
        futex_wait(&link->answered, answered, clock_us() + LOOK_US);
    }
}

int channel_call(session *s, channel *l, uint32_t command)
{
    link_channel *link = channel_link(s, l);
    do {
        l->asked++;
    } while (l->asked == LINK_ENDED);
    link->command = command;
    store(&link->asked, l->asked);
    futex_wake(&link->asked, 1);
    return await(s, link, l->asked) ? link->result : s->death_in_flight;
}

static bool send_descriptor(int socket, int fd)
{
    char byte = 0;
    struct iovec part = {&byte, 1};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    message.msg_control = control.room;
    message.msg_controllen = sizeof(control.room);
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
    return sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

int channel_call_with(session *s, channel *l, uint32_t command, int fd)
{
    int result = AEE_EBADPARM;
    pthread_mutex_lock(&s->passing);
    bool sent = send_descriptor(s->socket, fd);
    if (sent) {
        result = channel_call(s, l, command);
    } else if (errno != EBADF) {
        result = s->death_in_flight ? s->death_in_flight : AEE_ERPC;
    }
    pthread_mutex_unlock(&s->passing);
    return result;
}

/* Return a number for a block in the shell, unique in the session. */
uint32_t channel_block_id(session *s)
{
    return __atomic_add_fetch(&s->next_id, 1, __ATOMIC_SEQ_CST);
}

static void give_back_area(session *s, channel *l)
{
    if (l->block) {
        channel_link(s, l)->value[0] = l->block;
        channel_call(s, l, LINK_DETACH);
        munmap(l->area, l->bytes);
        close(l->fd);
    }
    uint32_t asked = l->asked;
    *l = (channel){.busy = true, .asked = asked};
}

/* Create a memory of *bytes* for the channel's area, and attach it in the shell. */
static int new_area(session *s, channel *l, size_t bytes)
{
    int fd = memfd_create("dsp arguments", MFD_CLOEXEC);
    void *at = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t) bytes) == 0) {
        at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    int result = AEE_ENOMEMORY;
    uint32_t id = channel_block_id(s);
    if (at != MAP_FAILED) {
        uint32_t *value = channel_link(s, l)->value;
        value[0] = id;
        value[1] = (uint32_t) LINK_NO_FD;
        value[2] = (uint32_t) bytes;
        value[3] = 1;
        result = channel_call_with(s, l, LINK_ATTACH, fd);
    }
    if (result == AEE_SUCCESS) {
        l->block = id;
        l->fd = fd;
        l->offset = 0;
        l->area = at;
        l->bytes = (uint32_t) bytes;
        l->address = channel_link(s, l)->value[0];
        return result;
    }
    if (at != MAP_FAILED) {
        munmap(at, bytes);
    }
    if (fd >= 0) {
        close(fd);
    }
    return result;
}

int channel_reserve(session *s, channel *l, size_t bytes)
{
    if (bytes <= l->bytes) {
        return AEE_SUCCESS;
    }
    if (bytes > LARGEST_AREA) {
        return AEE_ENOMEMORY;
    }
    size_t rounded = SMALLEST_AREA;
    while (rounded < bytes) {
        rounded *= 2;
    }
    give_back_area(s, l);
    return new_area(s, l, rounded);
}
