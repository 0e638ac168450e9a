/* blocking_loop.c - see blocking_loop.h. The lock guards the queue, the jobs' done
 * flags, `inside`, `driven` and `stop`; everything on the loop belongs to its thread,
 * or to the thread that has set `driven`. */
#include "api/blocking_loop.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"

struct blocking_loop {
    pid_t owner; /* the process that made it; a child of fork() has a copy */
    uv_loop_t loop;
    uv_async_t wake;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct blocking_loop_job *first; /* jobs not yet begun; borrowed from callers */
    struct blocking_loop_job **last;
    size_t inside; /* callers that have not left blocking_loop_call */
    bool by_turns; /* there is no thread */
    bool driven;   /* by_turns: a caller is running the loop */
    bool stop;
};

static struct blocking_loop_job *next_job(struct blocking_loop *b)
{
    struct blocking_loop_job *job;

    pthread_mutex_lock(&b->lock);
    job = b->first;
    if (job) {
        b->first = job->next;
        if (!b->first)
            b->last = &b->first;
    } else if (b->stop && !uv_is_closing((uv_handle_t *)&b->wake)) {
        uv_close((uv_handle_t *)&b->wake, NULL);
    }
    pthread_mutex_unlock(&b->lock);
    return job;
}

static void on_wake(uv_async_t *a)
{
    struct blocking_loop *b = a->data;

    for (struct blocking_loop_job *job; (job = next_job(b));)
        job->begin(job);
}

static void *thread_main(void *arg)
{
    struct blocking_loop *b = arg;

    (void)uv_run(&b->loop, UV_RUN_DEFAULT);
    return NULL;
}

/* The thread blocks all signals: those of the program are for its own threads. */
static int start_thread(struct blocking_loop *b)
{
    sigset_t all, old;
    int rc;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(&b->thread, NULL, thread_main, b);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

int blocking_loop_new(bool by_turns, struct blocking_loop **out,
                      struct muster_error *err)
{
    struct blocking_loop *b = mem_calloc(1, sizeof *b);
    int rc;

    if (!b)
        return err_nomem(err);
    rc = uv_loop_init(&b->loop);
    if (rc < 0) {
        mem_free(b);
        return err_set(err, MUSTER_EIO, "cannot make an event loop: %s",
                       uv_strerror(rc));
    }
    b->owner = getpid();
    b->by_turns = by_turns;
    b->last = &b->first;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, NULL);
    b->wake.data = b;
    rc = uv_async_init(&b->loop, &b->wake, on_wake);
    if (rc == 0 && (by_turns || start_thread(b) == 0)) {
        *out = b;
        return 0;
    }
    if (rc == 0) {
        uv_close((uv_handle_t *)&b->wake, NULL);
        (void)uv_run(&b->loop, UV_RUN_DEFAULT);
    }
    (void)uv_loop_close(&b->loop);
    pthread_mutex_destroy(&b->lock);
    pthread_cond_destroy(&b->changed);
    mem_free(b);
    return err_set(err, MUSTER_EIO, "cannot start a thread");
}

uv_loop_t *blocking_loop_loop(struct blocking_loop *b)
{
    return &b->loop;
}

/* In a child of fork() the loop must not be touched. Its epoll set is shared with the
 * parent, which would miss the events of what the child removes from it; its thread
 * does not exist in the child; and its lock may be held for ever. */
static bool inherited(const struct blocking_loop *b)
{
    return getpid() != b->owner;
}

static int refuse_in_child(const struct blocking_loop *b, struct blocking_loop_job *job)
{
    job->status = err_set(&job->err, MUSTER_EINVAL,
                          "opened by process %d, but this is process %d: a store or a "
                          "rendezvous handler does not survive fork(), so a child has "
                          "to open its own",
                          (int)b->owner, (int)getpid());
    return job->status;
}

/* Writing to a connection that the peer has closed raises SIGPIPE, which would end the
 * program that called the library. It is blocked while a caller runs the loop. */
struct sigpipe_block {
    sigset_t old, pipe;
    bool was_pending;
};

static bool pipe_pending(void)
{
    sigset_t pending;

    return sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
}

static void sigpipe_block_begin(struct sigpipe_block *q)
{
    (void)sigemptyset(&q->pipe);
    (void)sigaddset(&q->pipe, SIGPIPE);
    q->was_pending = pipe_pending();
    (void)pthread_sigmask(SIG_BLOCK, &q->pipe, &q->old);
}

static void sigpipe_block_end(struct sigpipe_block *q)
{
    const struct timespec now = { 0, 0 };

    if (!q->was_pending && pipe_pending())
        (void)sigtimedwait(&q->pipe, NULL, &now);
    (void)pthread_sigmask(SIG_SETMASK, &q->old, NULL);
}

/* Runs the loop until our job is done. Called under the lock, which it releases
 * meanwhile. */
static void drive(struct blocking_loop *b, const struct blocking_loop_job *job)
{
    struct sigpipe_block block;

    b->driven = true;
    pthread_mutex_unlock(&b->lock);
    sigpipe_block_begin(&block);
    on_wake(&b->wake);
    pthread_mutex_lock(&b->lock);
    while (!job->done) {
        pthread_mutex_unlock(&b->lock);
        (void)uv_run(&b->loop, UV_RUN_ONCE);
        pthread_mutex_lock(&b->lock);
    }
    pthread_mutex_unlock(&b->lock);
    sigpipe_block_end(&block);
    pthread_mutex_lock(&b->lock);
    b->driven = false;
    pthread_cond_broadcast(&b->changed); /* Another caller takes over. */
}

void blocking_loop_done_well(void *job)
{
    blocking_loop_done(job, 0, NULL);
}

int blocking_loop_call(struct blocking_loop *b, struct blocking_loop_job *job,
                       struct muster_error *err)
{
    if (inherited(b)) {
        (void)refuse_in_child(b, job);
        return err_copy(err, &job->err);
    }
    job->owner = b;
    job->done = false;
    job->next = NULL;
    pthread_mutex_lock(&b->lock);
    b->inside++;
    *b->last = job;
    b->last = &job->next;
    if (!b->by_turns || b->driven)
        (void)uv_async_send(&b->wake);
    while (!job->done) {
        if (b->by_turns && !b->driven)
            drive(b, job);
        else
            pthread_cond_wait(&b->changed, &b->lock);
    }
    b->inside--;
    pthread_cond_broadcast(&b->changed); /* blocking_loop_free may wait for us. */
    pthread_mutex_unlock(&b->lock);      /* After this b may be freed. */
    if (job->status < 0)
        (void)err_copy(err, &job->err);
    return job->status;
}

void blocking_loop_done(void *done, int status, const struct muster_error *err)
{
    struct blocking_loop_job *job = done;
    struct blocking_loop *b = job->owner;

    pthread_mutex_lock(&b->lock);
    job->status = status;
    job->err.code = 0;
    job->err.text[0] = '\0';
    if (err && status < 0)
        err_copy(&job->err, err);
    job->done = true;
    pthread_cond_broadcast(&b->changed); /* The caller owns its job again. */
    pthread_mutex_unlock(&b->lock);
}

void blocking_loop_free(struct blocking_loop *b)
{
    if (!b || inherited(b)) /* A child keeps the memory until it ends. */
        return;
    pthread_mutex_lock(&b->lock);
    while (b->inside) /* Their jobs are done, but they may still drive the loop. */
        pthread_cond_wait(&b->changed, &b->lock);
    b->stop = true;
    (void)uv_async_send(&b->wake);
    pthread_mutex_unlock(&b->lock);
    if (b->by_turns) {
        struct sigpipe_block block;

        sigpipe_block_begin(&block);
        (void)uv_run(&b->loop, UV_RUN_DEFAULT);
        sigpipe_block_end(&block);
    } else {
        (void)pthread_join(b->thread, NULL);
    }
    (void)uv_loop_close(&b->loop);
    pthread_mutex_destroy(&b->lock);
    pthread_cond_destroy(&b->changed);
    mem_free(b);
}
