/* rendezvous.c - blocking calls for a rendezvous handler; see muster/rendezvous.h.
 *
 * The handler runs on the loop of its home, which has a thread of its own, so that
 * keep-alive messages go out whatever the caller does. The handler is touched on that
 * thread only; callers send jobs and wait. */
#include "muster/rendezvous.h"

#include <pthread.h>

#include "api/need.h"
#include "api/params_int.h"
#include "api/store_int.h"
#include "base/err.h"
#include "base/mem.h"

struct request;

struct muster_rendezvous {
    struct home *home; /* owned; counts us like one of its stores */
    struct muster_rendezvous_hooks hooks;
    struct log log;
    char *run_id, *backend; /* owned */
    bool use_agent_store;

    /* Touched on the loop's thread only. */
    struct rdzv_handler *h; /* owned */
    bool in_next, stopped;
    struct request *closing, *leaving; /* callers of set_closed and leave; borrowed */

    pthread_mutex_t lock;
    struct muster_store *store; /* owned: the last round's; under the lock */

    char *master_addr; /* owned; touched by the caller of next() only */
};

/* ---- What the handler says ---- */

static void rendezvous_on_log(void *ctx, enum log_level level, enum log_place place,
                              const char *text)
{
    const struct muster_rendezvous *r = ctx;
    static const enum muster_log_level levels[] = {
        [LOG_DEBUG] = MUSTER_LOG_DEBUG,    [LOG_INFO] = MUSTER_LOG_INFO,
        [LOG_WARN] = MUSTER_LOG_WARN,      [LOG_ERROR] = MUSTER_LOG_ERROR,
        [LOG_CRITICAL] = MUSTER_LOG_ERROR,
    };

    (void)place;
    r->hooks.log(r->hooks.ctx, levels[level], text);
}

static void rendezvous_on_news(void *ctx, enum rdzv_news news,
                               const struct muster_error *err)
{
    const struct muster_rendezvous *r = ctx;
    static const enum muster_news kinds[] = {
        [RDZV_NEWS_WAITING] = MUSTER_NEWS_WAITING,
        [RDZV_NEWS_LOST] = MUSTER_NEWS_LOST,
        [RDZV_NEWS_EVICTED] = MUSTER_NEWS_EVICTED,
        [RDZV_NEWS_CLOSED] = MUSTER_NEWS_CLOSED,
        [RDZV_NEWS_CUT_OFF] = MUSTER_NEWS_BACKEND,
        [RDZV_NEWS_BACKEND] = MUSTER_NEWS_BACKEND,
    };

    if (news == RDZV_NEWS_MOVED_ON || news == RDZV_NEWS_DESERTED)
        return; /* WAITING and CLOSED have already told the caller what to do. */
    r->hooks.news(r->hooks.ctx, kinds[news], err ? err->text : "");
}

/* ---- Opening ---- */

struct opening {
    struct blocking_loop_job job; /* first */
    struct muster_rendezvous *r;
    const struct muster_params *params;
    const struct muster_registry *registry;
};

static void begin_open(struct blocking_loop_job *job)
{
    struct opening *o = (struct opening *)job;
    struct muster_rendezvous *r = o->r;
    uv_loop_t *loop = blocking_loop_loop(r->home->calls);
    const struct rdzv_params *params = &o->params->inner;
    const struct log *log = r->hooks.log ? &r->log : NULL;
    struct muster_error err;
    const int rc = o->registry ? registry_create(&o->registry->inner, loop, params, log,
                                                 &r->h, &err)
                               : rdzv_handler_create(loop, params, log, &r->h, &err);

    if (rc == 0) {
        r->use_agent_store = r->h->ops->use_agent_store(r->h);
        if (r->hooks.news)
            r->h->ops->on_news(r->h, rendezvous_on_news, r);
    }
    blocking_loop_done(job, rc, &err);
}

int muster_rendezvous_open(const struct muster_params *params,
                           const struct muster_registry *registry,
                           const struct muster_rendezvous_hooks *hooks,
                           struct muster_rendezvous **out, struct muster_error *err)
{
    struct muster_rendezvous *r;
    struct opening o = { .job = { .begin = begin_open },
                         .params = params,
                         .registry = registry };
    int rc;

    if (need(params, "params", err) < 0 || need(out, "out", err) < 0)
        return MUSTER_EINVAL;
    r = o.r = mem_calloc(1, sizeof *r);
    rc = r ? home_new(false, &r->home, err) : err_nomem(err);

    if (rc < 0) {
        mem_free(r);
        return rc;
    }
    r->home->stores = 1; /* We count, so that the last store does not end the loop. */
    if (hooks)
        r->hooks = *hooks;
    (void)pthread_mutex_init(&r->lock, NULL);
    r->log = (struct log){ .emit = rendezvous_on_log, .ctx = r };
    r->run_id = mem_strdup(params->inner.run_id);
    r->backend = mem_strdup(params->inner.backend);
    rc = r->run_id && r->backend ? blocking_loop_call(r->home->calls, &o.job, err)
                                 : err_nomem(err);
    if (rc < 0) {
        muster_rendezvous_free(r);
        return rc;
    }
    *out = r;
    return 0;
}

/* ---- next ---- */

/* next() and shutdown() may return at the same time, on two threads. */
static void change_store(struct muster_rendezvous *r, struct muster_store *store)
{
    struct muster_store *old;

    pthread_mutex_lock(&r->lock);
    old = r->store;
    r->store = store;
    pthread_mutex_unlock(&r->lock);
    muster_store_close(old);
}

struct joining {
    struct blocking_loop_job job; /* first */
    struct muster_rendezvous *r;
    struct muster_rendezvous_info info;
    char *master_addr; /* owned until next() hands it to r */
};

/* Makes the caller's store. It gets a connection of its own, as the handler's may be
 * busy with a wait. */
static int take_round(struct joining *j, const struct rdzv_round *round,
                      struct muster_error *err)
{
    struct muster_rendezvous *r = j->r;
    struct async_store *a;
    int rc;

    j->master_addr = mem_strdup(round->master_addr ? round->master_addr : "");
    if (!j->master_addr)
        return err_nomem(err);
    rc = round->store->ops->clone(round->store, &a, err);
    if (rc < 0)
        return rc;
    rc = store_adopt(r->home, a, NULL, MUSTER_STORE_TIMEOUT_MS, 0, &j->info.store, err);
    if (rc < 0)
        async_store_close(a, NULL, NULL);
    return rc;
}

static void on_next(void *ctx, int status, const struct rdzv_round *round,
                    const struct muster_error *err)
{
    struct joining *j = ctx;
    struct muster_error why;

    j->r->in_next = false;
    if (status < 0) {
        blocking_loop_done(&j->job, status, err);
        return;
    }
    j->info = (struct muster_rendezvous_info){ .round = round->round,
                                               .rank = round->rank,
                                               .world_size = round->world_size,
                                               .master_port = round->master_port };
    status = take_round(j, round, &why);
    blocking_loop_done(&j->job, status, &why);
}

/* True if the handler has been shut down; the job has then ended. */
static bool refuse_if_stopped(const struct muster_rendezvous *r,
                              struct blocking_loop_job *job)
{
    struct muster_error err;

    if (r->stopped)
        blocking_loop_done(job,
                           err_set(&err, MUSTER_EINVAL,
                                   "run '%s': this handler has been shut down",
                                   r->run_id),
                           &err);
    return r->stopped;
}

static void begin_next(struct blocking_loop_job *job)
{
    struct joining *j = (struct joining *)job;
    struct muster_rendezvous *r = j->r;
    struct muster_error err;

    if (refuse_if_stopped(r, job))
        return;
    if (r->in_next) {
        blocking_loop_done(job,
                           err_set(&err, MUSTER_EINVAL,
                                   "run '%s': another next is under way", r->run_id),
                           &err);
        return;
    }
    r->in_next = true;
    r->h->ops->next(r->h, on_next, j);
}

int muster_rendezvous_next(struct muster_rendezvous *r,
                           struct muster_rendezvous_info *out, struct muster_error *err)
{
    struct joining j = { .job = { .begin = begin_next }, .r = r };
    int rc;

    if (need(r, "rendezvous", err) < 0 || need(out, "out", err) < 0)
        return MUSTER_EINVAL;
    rc = blocking_loop_call(r->home->calls, &j.job, err);
    if (rc < 0) {
        mem_free(j.master_addr);
        return rc;
    }
    change_store(r, j.info.store);
    mem_free(r->master_addr);
    r->master_addr = j.master_addr;
    *out = j.info;
    out->master_addr = r->master_addr;
    return 0;
}

/* ---- Everything else is one call of the handler's ---- */

struct request {
    struct blocking_loop_job job; /* first */
    struct muster_rendezvous *r;
    int64_t number;
    struct request *next; /* the caller that asked for the same before */
};

static void begin_cancel(struct blocking_loop_job *job)
{
    struct muster_rendezvous *r = ((struct request *)job)->r;

    if (r->in_next)
        r->h->ops->cancel(r->h);
    blocking_loop_done(job, 0, NULL);
}

static void begin_is_closed(struct blocking_loop_job *job)
{
    struct request *a = (struct request *)job;

    a->number = a->r->h->ops->is_closed(a->r->h);
    blocking_loop_done(job, 0, NULL);
}

static void begin_waiting(struct blocking_loop_job *job)
{
    struct request *a = (struct request *)job;

    a->number = a->r->h->ops->num_nodes_waiting(a->r->h);
    blocking_loop_done(job, 0, NULL);
}

/* A handler takes one request of a kind at a time. A caller that wants the same
 * meanwhile waits for the same answer. True if a is the first. */
static bool queue(struct request **all, struct request *a)
{
    a->next = *all;
    *all = a;
    return !a->next;
}

static void answer_all(struct request **all, int status, const struct muster_error *err)
{
    struct request *a = *all, *next;

    *all = NULL;
    for (; a; a = next) {
        next = a->next; /* After the next line a belongs to its caller again. */
        blocking_loop_done(&a->job, status, err);
    }
}

static void rendezvous_on_closed(void *ctx, int status, const struct muster_error *err)
{
    answer_all(&((struct muster_rendezvous *)ctx)->closing, status, err);
}

static void begin_set_closed(struct blocking_loop_job *job)
{
    struct request *a = (struct request *)job;

    if (!refuse_if_stopped(a->r, job) && queue(&a->r->closing, a))
        a->r->h->ops->set_closed(a->r->h, rendezvous_on_closed, a->r);
}

static void on_left(void *ctx, int status, const struct muster_error *err)
{
    answer_all(&((struct muster_rendezvous *)ctx)->leaving, status, err);
}

static void begin_leave(struct blocking_loop_job *job)
{
    struct request *a = (struct request *)job;

    if (!refuse_if_stopped(a->r, job) && queue(&a->r->leaving, a))
        a->r->h->ops->leave(a->r->h, on_left, a->r);
}

static void begin_shutdown(struct blocking_loop_job *job)
{
    struct muster_rendezvous *r = ((struct request *)job)->r;

    if (refuse_if_stopped(r, job))
        return;
    r->stopped = true;
    r->h->ops->shutdown(r->h, true, blocking_loop_done, job);
}

static int handler_call(struct muster_rendezvous *r,
                        void (*begin)(struct blocking_loop_job *job), int64_t *number,
                        struct muster_error *err)
{
    struct request a = { .job = { .begin = begin }, .r = r };
    int rc = need(r, "rendezvous", err);

    if (rc < 0)
        return rc;
    rc = blocking_loop_call(r->home->calls, &a.job, err);
    if (number)
        *number = a.number;
    return rc;
}

void muster_rendezvous_cancel(struct muster_rendezvous *r)
{
    (void)handler_call(r, begin_cancel, NULL, NULL);
}

int muster_rendezvous_is_closed(struct muster_rendezvous *r)
{
    int64_t closed = 0;

    (void)handler_call(r, begin_is_closed, &closed, NULL);
    return closed != 0;
}

int64_t muster_rendezvous_num_nodes_waiting(struct muster_rendezvous *r)
{
    int64_t count = 0;

    (void)handler_call(r, begin_waiting, &count, NULL);
    return count;
}

int muster_rendezvous_set_closed(struct muster_rendezvous *r, struct muster_error *err)
{
    return handler_call(r, begin_set_closed, NULL, err);
}

int muster_rendezvous_leave(struct muster_rendezvous *r, struct muster_error *err)
{
    return handler_call(r, begin_leave, NULL, err);
}

int muster_rendezvous_shutdown(struct muster_rendezvous *r, struct muster_error *err)
{
    if (r) /* The host would wait for this node's open connection. */
        change_store(r, NULL);
    return handler_call(r, begin_shutdown, NULL, err);
}

const char *muster_rendezvous_run_id(const struct muster_rendezvous *r)
{
    return r ? r->run_id : "";
}

const char *muster_rendezvous_backend(const struct muster_rendezvous *r)
{
    return r ? r->backend : "";
}

int muster_rendezvous_use_agent_store(const struct muster_rendezvous *r)
{
    return r && r->use_agent_store;
}

static void begin_free(struct blocking_loop_job *job)
{
    struct muster_rendezvous *r = ((struct request *)job)->r;

    if (r->h)
        r->h->ops->destroy(r->h, blocking_loop_done_well, job);
    else
        blocking_loop_done(job, 0, NULL);
}

void muster_rendezvous_free(struct muster_rendezvous *r)
{
    if (!r)
        return;
    muster_store_close(r->store);
    (void)handler_call(r, begin_free, NULL, NULL);
    home_free(r->home);
    mem_free(r->run_id);
    mem_free(r->backend);
    mem_free(r->master_addr);
    (void)pthread_mutex_destroy(&r->lock);
    mem_free(r);
}
