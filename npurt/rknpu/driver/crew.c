/* A thread for each core but the caller's; they sleep between jobs. */
#include "run.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    npurt_rk_crew *crew;
    pthread_t thread;
    int place; /* 1 for the first: the caller is 0 */
} hand;

struct npurt_rk_crew {
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t changed;
    crew_task *task; /* NULL: it is the end */
    void *context;
    int tasks, turn, left; /* turn counts tasks; left: hands that have not finished this one */
    int count;
    hand hands[];
};

/* Waits for the turn after *turn and returns its task. */
static crew_task *next_task(npurt_rk_crew *crew, int *turn)
{
    pthread_mutex_lock(&crew->lock);
    while (crew->turn == *turn) {
        pthread_cond_wait(&crew->changed, &crew->lock);
    }
    *turn = crew->turn;
    pthread_mutex_unlock(&crew->lock);
    return crew->task; /* stays until all have finished it */
}

static void *work(void *argument)
{
    const hand *me = argument;
    npurt_rk_crew *crew = me->crew;
    crew_task *task;
    for (int turn = 0; (task = next_task(crew, &turn));) {
        if (me->place < crew->tasks) {
            task(crew->context, me->place);
        }
        pthread_mutex_lock(&crew->lock);
        crew->left--;
        pthread_cond_broadcast(&crew->changed);
        pthread_mutex_unlock(&crew->lock);
    }
    return NULL;
}

static void begin(npurt_rk_crew *crew, crew_task *task, void *context, int tasks)
{
    pthread_mutex_lock(&crew->lock);
    crew->task = task;
    crew->context = context;
    crew->tasks = tasks;
    crew->left = crew->count;
    crew->turn ^= 1;
    pthread_cond_broadcast(&crew->changed);
    pthread_mutex_unlock(&crew->lock);
}

void crew_run(npurt_rk_crew *crew, crew_task *task, void *context, int tasks)
{
    begin(crew, task, context, tasks);
    task(context, 0);
    pthread_mutex_lock(&crew->lock);
    while (crew->left) { /* no longer than the kernel lets their requests take */
        pthread_cond_wait(&crew->changed, &crew->lock);
    }
    pthread_mutex_unlock(&crew->lock);
}

/* Starts a hand; returns 0 or errno. */
static int start(npurt_rk_crew *crew)
{
    hand *h = crew->hands + crew->count;
    h->crew = crew;
    h->place = crew->count + 1;
    const int error = pthread_create(&h->thread, NULL, work, h);
    if (!error) {
        char name[16];
        snprintf(name, sizeof name, "npurt-core-%d", h->place);
        pthread_setname_np(h->thread, name);
        crew->count++;
    }
    return error;
}

NPURT_API npurt_rk_crew *npurt_rk_crew_start(int count)
{
    npurt_rk_crew *crew = calloc(1, sizeof *crew + (size_t) count * sizeof *crew->hands);
    if (!crew) {
        return NULL;
    }
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->changed, NULL);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* the program's signals are not for these threads */
    int error = 0;
    while (crew->count < count && !error) {
        error = start(crew);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (error) {
        npurt_rk_crew_stop(crew);
        errno = error;
        return NULL;
    }
    return crew;
}

NPURT_API void npurt_rk_crew_stop(npurt_rk_crew *crew)
{
    begin(crew, NULL, NULL, 0);
    for (int i = 0; i < crew->count; i++) {
        pthread_join(crew->hands[i].thread, NULL);
    }
    pthread_mutex_destroy(&crew->lock);
    pthread_cond_destroy(&crew->changed);
    free(crew);
}
