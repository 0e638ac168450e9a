/* dialogue_driver.c - see dialogue_driver.h: callbacks, feed, perform, open and close.
 */
#include "store/dialogue_driver.h"

#include <assert.h>

#include "base/err.h"
#include "base/mem.h"
#include "loop/clock.h"

#define PROBE_MS  2000u
#define PROBE_KEY "torchelastic/muster/there"

/* A callback's context. The store may still have it when the driver is gone. */
struct dialogue_call {
    struct dialogue_driver *driver; /* borrowed; NULL: the driver is closed */
};

struct dialogue_driver {
    struct async_store *store; /* borrowed: the first connection, cloned for others */
    struct async_store *fresh; /* owned: its replacement once it broke, or NULL */
    struct store_dialogue *machine; /* borrowed */
    dialogue_step step;
    dialogue_driver_cb cb;
    void *ctx;
    struct dialogue_call *call; /* the question or probe under way */
    size_t part;                /* of the question: which part is asked next */
    bool broken;                /* the next question needs another connection */
    uv_timer_t timer;
};

static void dialogue_feed(struct dialogue_driver *d, struct dialogue_event ev);
static void dialogue_on_part(void *ctx, int status, const struct c10d_reply *reply,
                             const struct muster_error *err);

/* ---- callbacks ---- */

static void dialogue_on_timer(uv_timer_t *timer)
{
    dialogue_feed(timer->data, (struct dialogue_event){ .kind = DIALOGUE_TIMER });
}

static void dialogue_on_begin(uv_timer_t *timer)
{
    dialogue_feed(timer->data, (struct dialogue_event){ .kind = DIALOGUE_BEGIN });
}

/* The driver that asked, or NULL if it is gone. */
static struct dialogue_driver *take_call(void *ctx)
{
    struct dialogue_call *call = ctx;
    struct dialogue_driver *d = call->driver;

    mem_free(call);
    if (d)
        d->call = NULL;
    return d;
}

/* Whether the store's connection has fallen silent, for all views of it. The store is
 * not ours to replace; but no later dialogue needs to find it out again. */
static bool *silent(struct async_store *s)
{
    while (s->inner)
        s = s->inner;
    return &s->silent;
}

static void answer_broken(struct dialogue_driver *d, int status, const char *text)
{
    d->broken = true;
    if (!d->fresh)
        *silent(d->store) = true;
    dialogue_feed(d, (struct dialogue_event){
                         .kind = DIALOGUE_ANSWER, .status = status, .text = text });
}

static void dialogue_on_probed(void *ctx, int status, const struct c10d_reply *reply,
                               const struct muster_error *err)
{
    struct dialogue_driver *d = take_call(ctx);

    (void)reply;
    if (!d)
        return;
    if (status == 0)
        dialogue_feed(d, (struct dialogue_event){ .kind = DIALOGUE_ANSWER,
                                                  .status = MUSTER_ETIMEDOUT,
                                                  .text = "timed out" });
    else
        answer_broken(d, MUSTER_EHANGUP, err->text);
}

static struct dialogue_call *call_begin(struct dialogue_driver *d)
{
    assert(!d->call);
    d->call = mem_alloc(sizeof *d->call);
    if (d->call)
        d->call->driver = d;
    return d->call;
}

static void call_failed(struct dialogue_driver *d)
{
    mem_free(d->call);
    d->call = NULL;
}

static struct async_store *connection(const struct dialogue_driver *d)
{
    return d->fresh ? d->fresh : d->store;
}

/* Either the keys that we wait for are not set yet, or the connection has fallen
 * silent. A question that any server answers at once tells which. */
static void dialogue_driver_probe(struct dialogue_driver *d)
{
    struct muster_error err;
    int rc = call_begin(d) ? 0 : err_nomem(&err);

    if (rc == 0)
        rc = async_store_check(connection(d), span_str(PROBE_KEY), PROBE_MS,
                               dialogue_on_probed, d->call, &err);
    if (rc < 0) {
        call_failed(d);
        answer_broken(d, rc, err.text);
    }
}

static void answer_failed(struct dialogue_driver *d, int status, const char *text)
{
    if (status == MUSTER_ETIMEDOUT)
        answer_broken(d, MUSTER_EHANGUP, text);
    else if (dialogue_is_broken(status))
        answer_broken(d, status, text);
    else
        dialogue_feed(d, (struct dialogue_event){
                             .kind = DIALOGUE_ANSWER, .status = status, .text = text });
}

static void dialogue_on_answer(void *ctx, int status, const struct c10d_reply *reply,
                               const struct muster_error *err)
{
    struct dialogue_driver *d = take_call(ctx);

    if (!d)
        return;
    if (status == MUSTER_ETIMEDOUT && d->machine->blocks)
        dialogue_driver_probe(d);
    else if (status < 0)
        answer_failed(d, status, err->text);
    else
        dialogue_feed(
            d, (struct dialogue_event){ .kind = DIALOGUE_ANSWER, .reply = reply });
}

static void dialogue_no_answer(void *ctx, int status, const struct c10d_reply *reply,
                               const struct muster_error *err)
{
    (void)ctx; /* The last part of the question reports a broken connection. */
    (void)status;
    (void)reply;
    (void)err;
}

/* ---- feed and perform ---- */

static void dialogue_ignore(void *ctx)
{
    (void)ctx;
}

static void drop_fresh(struct dialogue_driver *d)
{
    if (d->fresh)
        async_store_close(d->fresh, dialogue_ignore, NULL);
    d->fresh = NULL;
}

static int dialogue_driver_reconnect(struct dialogue_driver *d,
                                     struct muster_error *err)
{
    int rc;

    if (!d->broken)
        return 0;
    drop_fresh(d);
    rc = d->store->ops->clone(d->store, &d->fresh, err);
    if (rc < 0)
        d->fresh = NULL;
    d->broken = rc < 0;
    return rc;
}

static int dialogue_driver_ask_part(struct dialogue_driver *d, struct muster_error *err)
{
    const struct store_dialogue *t = d->machine;
    const bool last = d->part == t->count - 1;
    const struct c10d_request *req = &t->parts[d->part];
    const unsigned flags =
        (last && t->blocks && req->op != C10D_WAIT ? ASYNC_STORE_BLOCK : 0u) |
        (t->raw ? ASYNC_STORE_RAW : 0u);
    int rc = call_begin(d) ? 0 : err_nomem(err);

    if (rc == 0)
        rc = async_store_call(connection(d), req, flags, t->timeout_ms,
                              last ? dialogue_on_answer : dialogue_on_part, d->call,
                              err);
    if (rc < 0)
        call_failed(d);
    return rc;
}

/* Sends all parts at once if the store handles calls in order, else one by one. */
static int dialogue_driver_ask(struct dialogue_driver *d, struct muster_error *err)
{
    const struct store_dialogue *t = d->machine;
    int rc = dialogue_driver_reconnect(d, err);

    d->part = 0;
    while (rc == 0 && connection(d)->ordered && d->part < t->count - 1)
        rc = async_store_call(connection(d), &t->parts[d->part++],
                              t->raw ? ASYNC_STORE_RAW : 0u, t->timeout_ms,
                              dialogue_no_answer, NULL, err);
    return rc == 0 ? dialogue_driver_ask_part(d, err) : rc;
}

static void dialogue_on_part(void *ctx, int status, const struct c10d_reply *reply,
                             const struct muster_error *err)
{
    struct dialogue_driver *d = take_call(ctx);
    struct muster_error why;

    (void)reply;
    if (!d)
        return;
    if (status < 0) {
        answer_failed(d, status, err->text);
        return;
    }
    d->part++;
    status = dialogue_driver_ask_part(d, &why);
    if (status < 0)
        answer_broken(d, status, why.text);
}

static void dialogue_perform(struct dialogue_driver *d, const struct dialogue_fx *fx)
{
    struct muster_error err;
    int rc;

    if (fx->kind == DIALOGUE_ASK && (rc = dialogue_driver_ask(d, &err)) < 0) {
        answer_broken(d, rc, err.text);
        return;
    }
    clock_arm(&d->timer, dialogue_on_timer, dialogue_deadline(d->machine));
    if (fx->kind != DIALOGUE_ASK && fx->kind != DIALOGUE_NOTHING)
        d->cb(d->ctx, fx); /* d may be gone afterwards. */
}

static void dialogue_feed(struct dialogue_driver *d, struct dialogue_event ev)
{
    struct dialogue_fx fx = { .kind = DIALOGUE_NOTHING };

    ev.now = clock_now();
    if (d->step(d->machine, &ev, &fx) < 0)
        (void)dialogue_fail(&fx, MUSTER_ENOMEM, "out of memory");
    dialogue_perform(d, &fx);
}

void dialogue_driver_answer(struct dialogue_driver *d, int status, int64_t number,
                            const char *text)
{
    dialogue_feed(d, (struct dialogue_event){ .kind = DIALOGUE_ANSWER,
                                              .status = status,
                                              .number = number,
                                              .text = text });
}

/* ---- open and close ---- */

int dialogue_driver_open(struct async_store *store, struct store_dialogue *machine,
                         dialogue_step step, dialogue_driver_cb cb, void *ctx,
                         struct dialogue_driver **out, struct muster_error *err)
{
    struct dialogue_driver *d = mem_calloc(1, sizeof *d);

    if (!d)
        return err_nomem(err);
    d->store = store;
    d->broken = *silent(store);
    d->machine = machine;
    d->step = step;
    d->cb = cb;
    d->ctx = ctx;
    (void)uv_timer_init(store->loop, &d->timer);
    d->timer.data = d;
    (void)uv_timer_start(&d->timer, dialogue_on_begin, 0, 0);
    *out = d;
    return 0;
}

static void dialogue_on_closed(uv_handle_t *handle)
{
    mem_free(handle->data);
}

void dialogue_driver_close(struct dialogue_driver *d)
{
    if (!d)
        return;
    if (d->call)
        d->call->driver = NULL;
    d->call = NULL;
    drop_fresh(d);
    uv_close((uv_handle_t *)&d->timer, dialogue_on_closed);
}
