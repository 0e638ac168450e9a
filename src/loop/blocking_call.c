/* blocking_call.c - see blocking_call.h. The loop and the thread share a call; the last
 * of them to release it frees it. The thread touches `async` only under the lock and
 * while `wanted` is true, and the loop closes it only after it has cleared `wanted`. */
#include "loop/blocking_call.h"

#include <pthread.h>
#include <signal.h>

#include "base/err.h"
#include "base/mem.h"

struct blocking_call {
    uv_async_t async;
    uv_timer_t timer;
    pthread_mutex_t lock;
    bool wanted, finished; /* under lock */
    int refs;              /* under lock: the thread, and each open handle */
    blocking_call_work work;
    void *data; /* owned */
    blocking_call_done done;
    void *ctx;
};

static void call_release(struct blocking_call *o)
{
    bool last;

    pthread_mutex_lock(&o->lock);
    last = --o->refs == 0;
    pthread_mutex_unlock(&o->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&o->lock);
    mem_free(o->data);
    mem_free(o);
}

static void *blocking_call_main(void *arg)
{
    struct blocking_call *o = arg;

    o->work(o->data);
    pthread_mutex_lock(&o->lock);
    o->finished = true;
    if (o->wanted)
        (void)uv_async_send(&o->async);
    pthread_mutex_unlock(&o->lock);
    call_release(o);
    return NULL;
}

static void blocking_call_on_closed(uv_handle_t *h)
{
    call_release(h->data);
}

void blocking_call_cancel(struct blocking_call *o)
{
    if (!o)
        return;
    pthread_mutex_lock(&o->lock);
    o->wanted = false;
    pthread_mutex_unlock(&o->lock);
    o->done = NULL;
    uv_close((uv_handle_t *)&o->async, blocking_call_on_closed);
    uv_close((uv_handle_t *)&o->timer, blocking_call_on_closed);
}

static void call_finish(struct blocking_call *o, bool in_time)
{
    const blocking_call_done done = o->done;
    void *data = NULL;

    if (!done)
        return;
    if (in_time) { /* The thread does not use it any more. */
        data = o->data;
        o->data = NULL;
    }
    blocking_call_cancel(o);
    done(o->ctx, data);
    mem_free(data);
}

static void call_on_async(uv_async_t *a)
{
    struct blocking_call *o = a->data;
    bool finished;

    pthread_mutex_lock(&o->lock);
    finished = o->finished;
    pthread_mutex_unlock(&o->lock);
    if (finished)
        call_finish(o, true);
}

static void blocking_call_on_timer(uv_timer_t *t)
{
    call_finish(t->data, false);
}

/* The thread blocks all signals: the loop's thread handles them. */
static int call_start(struct blocking_call *o)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, old;
    int rc = pthread_attr_init(&attr);

    if (rc != 0)
        return rc;
    (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(&thread, &attr, blocking_call_main, o);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    (void)pthread_attr_destroy(&attr);
    return rc;
}

int blocking_call_run(uv_loop_t *loop, blocking_call_work work, void *data,
                      uint64_t timeout_ms, blocking_call_done done, void *ctx,
                      struct blocking_call **out, struct muster_error *err)
{
    struct blocking_call *o = mem_calloc(1, sizeof *o);
    int rc;

    if (!o)
        return err_nomem(err);
    *o = (struct blocking_call){
        .wanted = true, .refs = 3, .work = work, .data = data, .done = done, .ctx = ctx
    };
    rc = uv_async_init(loop, &o->async, call_on_async);
    if (rc < 0) {
        mem_free(o);
        return err_set(err, MUSTER_EIO, "starting a thread: %s", uv_strerror(rc));
    }
    pthread_mutex_init(&o->lock, NULL);
    (void)uv_timer_init(loop, &o->timer);
    o->async.data = o->timer.data = o;
    rc = call_start(o);
    if (rc != 0) {
        o->data = NULL;
        o->refs = 2;
        blocking_call_cancel(o);
        return err_set(err, MUSTER_EIO, "starting a thread: %s", strerror(rc));
    }
    if (timeout_ms != MONO_NEVER)
        (void)uv_timer_start(&o->timer, blocking_call_on_timer, timeout_ms, 0);
    *out = o;
    return 0;
}
