/* A pool of worker threads: the caller serves the first core, each worker another core.  The
 * workers sleep between jobs. */
#include "run.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    npurt_rk_pool *pool;
    pthread_t thread;
    int place; /* index of the worker, from 1; the caller has index 0 */
} worker;

struct npurt_rk_pool {
    pthread_mutex_t lock; /* protects the members below */
    pthread_cond_t changed;
    pool_task *task; /* NULL ends the workers */
    void *context;
    int tasks;
    int generation; /* 0 or 1; changes with each new task */
    int left;       /* workers that have not finished the current task */
    int count;
    worker workers[];
};

/* Wait until the pool's generation differs from *generation, update *generation, and return the
 * new task. */
static pool_task *next_task(npurt_rk_pool *pool, int *generation)
{
    pthread_mutex_lock(&pool->lock);
    while (pool->generation == *generation) {
        pthread_cond_wait(&pool->changed, &pool->lock);
    }
    *generation = pool->generation;
    pthread_mutex_unlock(&pool->lock);
    return pool->task; /* does not change until all workers have finished the task */
}

static void *work(void *argument)
{
    const worker *me = argument;
    npurt_rk_pool *pool = me->pool;
    pool_task *task;
    for (int generation = 0; (task = next_task(pool, &generation));) {
        if (me->place < pool->tasks) {
            task(pool->context, me->place);
        }
        pthread_mutex_lock(&pool->lock);
        pool->left--;
        pthread_cond_broadcast(&pool->changed);
        pthread_mutex_unlock(&pool->lock);
    }
    return NULL;
}

static void begin(npurt_rk_pool *pool, pool_task *task, void *context, int tasks)
{
    pthread_mutex_lock(&pool->lock);
    pool->task = task;
    pool->context = context;
    pool->tasks = tasks;
    pool->left = pool->count;
    pool->generation ^= 1;
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
}

void pool_run(npurt_rk_pool *pool, pool_task *task, void *context, int tasks)
{
    begin(pool, task, context, tasks);
    task(context, 0);
    pthread_mutex_lock(&pool->lock);
    while (pool->left) { /* the loop ends, because the workers' requests have timeouts */
        pthread_cond_wait(&pool->changed, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
}

/* Start a worker; return 0 or errno. */
static int start(npurt_rk_pool *pool)
{
    worker *h = pool->workers + pool->count;
    h->pool = pool;
    h->place = pool->count + 1;
    const int error = pthread_create(&h->thread, NULL, work, h);
    if (!error) {
        char name[16];
        snprintf(name, sizeof name, "npurt-core-%d", h->place);
        pthread_setname_np(h->thread, name);
        pool->count++;
    }
    return error;
}

NPURT_API npurt_rk_pool *npurt_rk_pool_start(int count)
{
    npurt_rk_pool *pool = calloc(1, sizeof *pool + (size_t) count * sizeof *pool->workers);
    if (!pool) {
        return NULL;
    }
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->changed, NULL);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all,
                    &old); /* new threads inherit the mask: all signals blocked */
    int error = 0;
    while (pool->count < count && !error) {
        error = start(pool);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (error) {
        npurt_rk_pool_stop(pool);
        errno = error;
        return NULL;
    }
    return pool;
}

NPURT_API void npurt_rk_pool_stop(npurt_rk_pool *pool)
{
    begin(pool, NULL, NULL, 0);
    for (int i = 0; i < pool->count; i++) {
        pthread_join(pool->workers[i].thread, NULL);
    }
    pthread_mutex_destroy(&pool->lock);
    pthread_cond_destroy(&pool->changed);
    free(pool);
}
