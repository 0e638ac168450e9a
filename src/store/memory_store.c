/* memory_store.c - a store in memory; see async_store.h.
 *
 * A store and its clones share the engine and the calls under way. Each call is a peer
 * of the engine for as long as it lasts, so that each may wait. */
#include <assert.h>

#include "base/err.h"
#include "base/mem.h"
#include "loop/clock.h"
#include "loop/defer.h"
#include "loop/handle_set.h"
#include "store/call.h"
#include "store/core/store.h"

#define MAX_REPLY ((size_t)1 << 30)

struct memory_call {
    struct call base; /* first */
    uint32_t peer;    /* its number with the engine, once it has begun */
    bool waiting;     /* the WAIT in front of its request is pending */
};

struct shared {
    struct store *store; /* owned */
    struct store_fx fx;
    size_t handles_open;        /* how many struct handle use this */
    struct memory_call **peers; /* owned; by the engine's number, NULL if free */
    size_t peers_size;
    struct call_list queued; /* not yet begun */
    struct call_list again;  /* their wait is over, the request itself is to come */
    struct defer next_run;
    uv_timer_t timer;
    struct handle_set closing;
    bool closes; /* the last handle is closed */
};

struct handle {
    struct async_store base; /* first */
    struct shared *shared;
    uv_idle_t idle; /* never started: its close callback comes from the loop */
};

static void memory_serve(struct shared *c);

static struct memory_call *memory_take(struct call_list *list)
{
    return (struct memory_call *)call_list_take(list);
}

static const struct async_store_ops hash_ops;

static int memory_take_number(struct shared *c, struct memory_call *call)
{
    size_t free = 0;

    while (free < c->peers_size && c->peers[free])
        free++;
    struct memory_call **peers =
        mem_grow_to(c->peers, &c->peers_size, free, sizeof *peers);
    if (!peers)
        return MUSTER_ENOMEM;
    c->peers = peers;
    peers[free] = call;
    call->peer = (uint32_t)free;
    return 0;
}

static void memory_refuse(struct memory_call *call, int code, const char *why)
{
    struct muster_error err;

    (void)err_set(&err, code, "%s", why);
    call_fail(&call->base, &err);
}

/* A reply ends a call, or the wait before its request; a CLOSE fails the call. */
static void memory_perform(struct shared *c)
{
    for (size_t i = 0; i < c->fx.count; i++) {
        const struct store_effect *fx = &c->fx.items[i];
        struct memory_call *call = fx->peer < c->peers_size ? c->peers[fx->peer] : NULL;

        if (!call)
            continue;
        c->peers[fx->peer] = NULL;
        if (fx->kind == STORE_CLOSE) {
            memory_refuse(call, MUSTER_EINVAL, fx->reason);
        } else if (call->waiting) {
            call->waiting = false;
            call_list_add(&c->again, &call->base);
        } else if (fx->reply.op == C10D_QUEUE_POP && fx->reply.number == 0) {
            memory_refuse(call, MUSTER_EEMPTY, "queue is empty");
        } else {
            call_succeed(&call->base, &fx->reply);
        }
    }
}

static int memory_step(struct shared *c, uint32_t peer, struct c10d_request req)
{
    const struct store_event ev = { .kind = STORE_REQUEST,
                                    .peer = peer,
                                    .request = &req };

    req.name = reserved_parse(req.key);
    return store_step(c->store, &ev, &c->fx);
}

/* torch's HashStore counts an empty value as 0, unlike its TCPStore. */
static void empty_is_zero(struct shared *c, struct memory_call *call)
{
    struct c10d_request req = { .op = C10D_GET, .key = call->base.copy.req.key };
    struct buf list;

    if (memory_step(c, call->peer, req) < 0 || c->fx.count != 1 ||
        c->fx.items[0].kind != STORE_REPLY || c->fx.items[0].reply.value.n)
        return;
    buf_init(&list, SIZE_MAX);
    if (c10d_list_add(&list, call->base.copy.req.key) == 0) {
        req = (struct c10d_request){ .op = C10D_CHECK, .list = { buf_span(&list), 1 } };
        if (memory_step(c, call->peer, req) == 0 && c->fx.items[0].reply.number == 0) {
            req = (struct c10d_request){ .op = C10D_SET,
                                         .key = call->base.copy.req.key,
                                         .value = span_str("0") };
            (void)memory_step(c, call->peer, req);
        }
    }
    buf_fini(&list);
}

static void memory_begin(struct shared *c, struct memory_call *call, bool may_wait)
{
    const struct c10d_request *req = &call->base.copy.req;
    struct c10d_request wait = { .op = C10D_WAIT, .list = req->list };
    struct buf one;
    int rc = memory_take_number(c, call);

    buf_init(&one, SIZE_MAX);
    call->waiting =
        may_wait && (call->base.flags & ASYNC_STORE_BLOCK) && c10d_may_block(req->op);
    if (call->waiting && req->op != C10D_MULTI_GET) {
        if (rc == 0)
            rc = c10d_list_add(&one, req->key);
        wait.list = (struct c10d_list){ buf_span(&one), 1 };
    }
    if (rc == 0 && req->op == C10D_ADD)
        empty_is_zero(c, call);
    if (rc == 0)
        rc = memory_step(c, call->peer, call->waiting ? wait : *req);
    buf_fini(&one);
    if (rc < 0) {
        if (call->peer < c->peers_size && c->peers[call->peer] == call)
            c->peers[call->peer] = NULL;
        memory_refuse(call, MUSTER_ENOMEM, "out of memory");
        return;
    }
    const uint32_t peer = call->peer;
    const enum c10d_op op = req->op;
    memory_perform(c);
    if (!c10d_has_reply(op) && c->peers[peer] == call) {
        const struct c10d_reply nothing = { .op = op };

        c->peers[peer] = NULL;
        call_succeed(&call->base, &nothing);
    }
}

/* Takes a call that may be waiting out of the engine. */
static void memory_leave(struct shared *c, struct memory_call *call)
{
    const struct store_event ev = { .kind = STORE_LEFT, .peer = call->peer };

    c->peers[call->peer] = NULL;
    if (store_step(c->store, &ev, &c->fx) == 0)
        memory_perform(c);
}

static void memory_on_time(uv_timer_t *timer)
{
    memory_serve(timer->data);
}

static void memory_arm(struct shared *c)
{
    uint64_t due = call_list_first_due(&c->queued);

    for (size_t i = 0; i < c->peers_size; i++)
        if (c->peers[i])
            due = MIN_OF(due, c->peers[i]->base.deadline_ms);
    clock_arm(&c->timer, memory_on_time, due);
}

/* A call that need not wait is served even if its time is up. */
static void memory_serve(struct shared *c)
{
    const uint64_t now = clock_mono_ms();
    struct memory_call *call;

    for (;;) {
        if ((call = memory_take(&c->again)))
            memory_begin(c, call, false);
        else if ((call = memory_take(&c->queued)))
            memory_begin(c, call, true);
        else
            break;
    }
    for (size_t i = 0; i < c->peers_size; i++) {
        call = c->peers[i];
        if (!call || call->base.deadline_ms > now)
            continue;
        memory_leave(c, call);
        call_time_out(&call->base, "");
    }
    if (c->again.first || c->queued.first)
        defer_call(&c->next_run);
    if (!c->closes)
        memory_arm(c);
}

static void memory_run(void *ctx)
{
    memory_serve(ctx);
}

/* Larger values could not be read again: a reply cannot hold more. The engine also
 * counts in 32 bits. */
static int check_sizes(const struct c10d_request *req, struct muster_error *err)
{
    struct c10d_list list = req->list;
    size_t most = MAX_OF(req->value.n, req->expected.n);
    struct span item;

    while (c10d_list_next(&list, &item))
        most = MAX_OF(most, item.n);
    if (most <= STORE_MAX_VALUE)
        return 0;
    return err_set(err, MUSTER_EINVAL,
                   "%s: the value has %zu bytes; a store in memory takes at most %u",
                   c10d_op_name(req->op), most, STORE_MAX_VALUE);
}

static int hash_call(struct async_store *s, const struct c10d_request *req,
                     unsigned flags, uint64_t timeout_ms, async_store_cb cb, void *ctx,
                     struct muster_error *err)
{
    struct shared *c = ((struct handle *)s)->shared;
    struct call *call;
    int rc = check_sizes(req, err);

    if (rc == 0)
        rc = call_new(sizeof(struct memory_call), s, req, "", &call, err);
    if (rc < 0)
        return rc;
    call_begin(call, flags, timeout_ms, cb, ctx);
    call_list_add(&c->queued, call);
    defer_call(&c->next_run);
    return 0;
}

static int make_handle(uv_loop_t *loop, struct shared *c, struct async_store **out,
                       struct muster_error *err)
{
    struct handle *h = mem_calloc(1, sizeof *h);

    if (!h)
        return err_nomem(err);
    h->base = (struct async_store){ &hash_ops, loop, "hash://" };
    h->shared = c;
    (void)uv_idle_init(loop, &h->idle);
    h->idle.data = h;
    c->handles_open++;
    *out = &h->base;
    return 0;
}

static int hash_clone(struct async_store *s, struct async_store **out,
                      struct muster_error *err)
{
    return make_handle(s->loop, ((struct handle *)s)->shared, out, err);
}

static void on_shared_closed(void *ctx)
{
    struct shared *c = ctx;

    store_free(c->store);
    store_fx_fini(&c->fx);
    mem_free(c->peers);
    mem_free(c);
}

static void memory_on_handle_closed(uv_handle_t *uv)
{
    struct handle *h = uv->data;
    struct shared *c = h->shared;
    struct call_list ours = { NULL, NULL };
    struct muster_error err;
    struct memory_call *call;

    call_list_move(&c->queued, &ours, call_is_of, &h->base);
    call_list_move(&c->again, &ours, call_is_of, &h->base);
    for (size_t i = 0; i < c->peers_size; i++) {
        call = c->peers[i];
        if (!call || call->base.store != &h->base)
            continue;
        memory_leave(c, call);
        call_list_add(&ours, &call->base);
    }
    (void)err_set(&err, MUSTER_ECANCELED, "the store was closed");
    while ((call = memory_take(&ours)))
        call_fail(&call->base, &err);
    if (--c->handles_open == 0) {
        c->closes = true;
        handle_set_begin(&c->closing, on_shared_closed, c);
        handle_set_close(&c->closing, &c->next_run.idle);
        handle_set_close(&c->closing, &c->timer);
        handle_set_end(&c->closing);
    }
    async_store_closed(&h->base);
    mem_free(h);
}

static void hash_close(struct async_store *s)
{
    uv_close((uv_handle_t *)&((struct handle *)s)->idle, memory_on_handle_closed);
}

static const struct async_store_ops hash_ops = {
    .kind = "hash",
    .own_barrier = true,
    .call = hash_call,
    .clone = hash_clone,
    .close = hash_close,
};

int store_hash_open(uv_loop_t *loop, struct async_store **out, struct muster_error *err)
{
    struct shared *c = mem_calloc(1, sizeof *c);
    uint64_t seed = uv_hrtime();

    (void)uv_random(NULL, NULL, &seed, sizeof seed, 0, NULL);
    if (c)
        c->store = store_new(seed, MAX_REPLY);
    if (!c || !c->store || make_handle(loop, c, out, err) < 0) {
        if (c)
            store_free(c->store);
        mem_free(c);
        return err_nomem(err);
    }
    store_fx_init(&c->fx);
    defer_init(&c->next_run, loop, memory_run, c);
    (void)uv_timer_init(loop, &c->timer);
    c->timer.data = c;
    return 0;
}
