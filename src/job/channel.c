/* channel.c - see channel.h. In order: state, messages out, what the coordinator says,
 * the coordinator in this process, the connection, what the store can do, what the
 * agent calls, the end. */
#include "job/channel.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "job/core/host_watch.h"
#include "job/core/run.h"
#include "job/run_clock.h"
#include "loop/clock.h"
#include "loop/deadline.h"
#include "loop/defer.h"
#include "loop/handle_set.h"
#include "store/client.h"
#include "store/core/reserved.h"
#include "store/push_session.h"

#define CAPS           "\x01muster/caps" /* the store client puts a slash before it */
#define UNACKED_MAX    256u
#define FIRST_PAUSE_MS 20u
#define MAX_PAUSE_MS   1000u
#define BEHIND_MS      100u /* until we attach again after memory ran out */
#define CONNECT_MS     3000u
#define CAPS_MS        10000u
#define ANSWERERS      16u
#define ASKS           HUB_ASKS
#define LOCAL_PEER     1u

struct unacked {
    uint64_t seq;
    struct run_now published;
    uint8_t *bytes; /* owned: the entry */
    size_t size;
    struct unacked *next;
};

struct pending_ask {
    bool active;
    uint64_t seq;
    uint64_t due_ms; /* 0: the connection broke, and the answers with it */
    channel_answers_cb cb;
    void *ctx;
    struct channel_answer *answers; /* owned, as are their bytes */
    size_t count;
};

struct channel_question {
    struct channel *c;
    uint64_t id;
    struct channel_question *next;
};

struct channel {
    struct channel_opts opts;
    char *run_id, *host, *addr; /* owned */
    enum channel_state state;
    struct record record;
    uint64_t nonce;
    uint32_t node;

    char *at_host; /* owned; where the coordinator is */
    uint16_t at_port;
    bool local;               /* the coordinator is in this process */
    bool uncoordinated;       /* there are other nodes, but no coordinator for them */
    struct async_store *caps; /* owned; asks what the store can do */
    bool can_coordinate;      /* the store has said so, or is our own */
    uint64_t caps_by_ms; /* a store that has not started by then counts as unable */
    struct host_watch watch;
    int64_t host_round, host_rank; /* the coordinator's node; round -1: unknown */
    struct push_session *session;  /* owned */
    bool attached;                 /* ATTACHED has come on this connection */
    bool behind;                   /* a message was lost: see fall_behind() */
    struct run_now heard;          /* when the coordinator last said anything */
    bool broke;                    /* the connection broke after that */
    uint64_t pause_ms;             /* before the next attempt to connect */
    struct deadline retry, asks_due, sync_due, run_due;
    struct defer defer;
    struct handle_set closing;

    struct run *run;  /* owned; the run, if it is here and not in a store */
    struct run_fx fx; /* of its last step */
    struct buf inbox; /* messages to it, each behind its length as a u32 */

    uint64_t next_seq;
    struct unacked *first_unacked, *last_unacked;
    size_t unacked_count;
    struct job_msg seat, ranks;     /* sent again to a coordinator that comes back, */
    struct job_msg moved, reported; /* as are these */
    struct buf codes;               /* the bytes of reported */
    uint64_t next_ask;
    struct pending_ask asks[ASKS];
    struct job_msg sync; /* the last SYNC or LAST */
    void (*sync_cb)(void *ctx);
    void *sync_ctx;
    struct {
        const char *kind;
        channel_answerer fn;
        void *ctx;
    } answerers[ANSWERERS];
    size_t answerer_count;
    struct channel_question *questions; /* owned; without an answer yet */
    bool closed;
    void (*closed_cb)(void *ctx);
    void *closed_ctx;
};

static void set_state(struct channel *c, enum channel_state state)
{
    if (c->state == state)
        return;
    c->state = state;
    if (c->opts.on_state && !c->closed)
        c->opts.on_state(c->opts.ctx, state);
}

/* ---- messages out ---- */

/* There was no memory for a message, from us or to us. Later messages must not overtake
 * it, so none is taken until we have attached again: then both sides repeat what the
 * other has not received. */
static void fall_behind(struct channel *c)
{
    if (c->closed || !(c->run || c->session))
        return;
    c->behind = true;
    buf_clear(&c->inbox);
    deadline_set(&c->retry, clock_mono_ms() + BEHIND_MS);
}

static bool put_in_inbox(struct channel *c, struct span bytes)
{
    if (buf_u32(&c->inbox, (uint32_t)bytes.n) < 0 ||
        buf_append_span(&c->inbox, bytes) < 0)
        return false;
    defer_call(&c->defer);
    return true;
}

static void send_msg(struct channel *c, const struct job_msg *m)
{
    struct buf b;
    int rc;
    bool sent = true;

    if (c->behind && m->kind != JOB_ATTACH)
        return;
    buf_init(&b, JOB_MAX);
    rc = job_encode(&b, m);
    if (rc == 0 && c->run)
        sent = put_in_inbox(c, buf_span(&b));
    else if (rc == 0 && c->session)
        sent = push_session_send(c->session, buf_span(&b));
    if (rc == MUSTER_ENOMEM || !sent)
        fall_behind(c);
    buf_fini(&b);
}

static bool is_up(const struct channel *c)
{
    return c->run || (c->session && c->attached);
}

static void send_attach(struct channel *c)
{
    send_msg(c, &(struct job_msg){ .kind = JOB_ATTACH,
                                   .run_id = span_str(c->run_id),
                                   .host = span_str(c->host),
                                   .addr = span_str(c->addr),
                                   .pid = c->opts.pid,
                                   .nproc = c->opts.nproc,
                                   .nonce = c->nonce,
                                   .value = c->record.last,
                                   .node = c->node,
                                   .flags = (c->opts.observer ? JOB_OBSERVER : 0u) |
                                            (c->local ? JOB_SERVES : 0u),
                                   .total = c->opts.max_restarts });
}

static void send_unacked(struct channel *c, const struct unacked *u)
{
    const uint64_t mono_us = run_clock().mono_us;

    /* The wall clock may have been set since the entry was published, and the entry's
     * own time is from before that. So we send what the clock would say otherwise. */
    send_msg(c, &(struct job_msg){ .kind = JOB_PUBLISH,
                                   .seq = u->seq,
                                   .mono_us = (int64_t)mono_us,
                                   .wall_us = u->published.wall_us +
                                              (int64_t)(mono_us - u->published.mono_us),
                                   .bytes = span_of(u->bytes, u->size) });
}

/* Repeats what a new coordinator, or one that has come back, has not received. */
static void repeat_all(struct channel *c)
{
    if (c->seat.kind == JOB_SEAT)
        send_msg(c, &c->seat);
    if (c->ranks.kind == JOB_RANKS)
        send_msg(c, &c->ranks);
    if (c->moved.kind == JOB_MOVED)
        send_msg(c, &c->moved);
    for (const struct unacked *u = c->first_unacked; u; u = u->next)
        send_unacked(c, u);
    if (c->reported.kind == JOB_REPORTED)
        send_msg(c, &c->reported);
    if (c->sync_cb)
        send_msg(c, &c->sync);
}

/* ---- what the coordinator says ---- */

static void drop_acknowledged(struct channel *c, uint64_t seq)
{
    while (c->first_unacked && c->first_unacked->seq <= seq) {
        struct unacked *u = c->first_unacked;

        c->first_unacked = u->next;
        if (!c->first_unacked)
            c->last_unacked = NULL;
        c->unacked_count--;
        mem_free(u->bytes);
        mem_free(u);
    }
}

static void on_entry(struct channel *c, const struct job_msg *m)
{
    struct record_entry e;

    if (m->seq)
        drop_acknowledged(c, m->seq);
    if (c->behind || m->bytes.n == 0 || record_entry_decode(m->bytes, &e, NULL) < 0 ||
        e.number <= c->record.last)
        return;
    if (record_add(&c->record, &e) < 0) {
        fall_behind(c);
        return;
    }
    if (c->opts.on_entry && !c->closed)
        c->opts.on_entry(c->opts.ctx, &e);
}

/* Sends the entries that a new coordinator lacks. */
static void offer(struct channel *c, uint64_t above)
{
    uint64_t number;

    for (size_t i = 0; i < c->record.count; i++) {
        const struct job_msg m = { .kind = JOB_OFFER,
                                   .bytes = record_bytes(&c->record, i, &number) };
        if (number > above)
            send_msg(c, &m);
    }
}

static void ask_free(struct pending_ask *a)
{
    for (size_t i = 0; i < a->count; i++) {
        mem_free((void *)(uintptr_t)a->answers[i].host.p);
        mem_free((void *)(uintptr_t)a->answers[i].bytes.p);
    }
    mem_free(a->answers);
    *a = (struct pending_ask){ 0 };
}

static void arm_asks(struct channel *c)
{
    uint64_t due = MONO_NEVER;

    for (size_t i = 0; i < ASKS; i++)
        if (c->asks[i].active)
            due = MIN_OF(due, c->asks[i].due_ms);
    deadline_set(&c->asks_due, due);
}

static int by_node(const void *a, const void *b)
{
    const struct channel_answer *x = a, *y = b;

    return (x->node > y->node) - (x->node < y->node);
}

static void ask_done(struct channel *c, struct pending_ask *a, bool ended)
{
    struct pending_ask done = *a;
    bool complete = ended && done.count > 0;

    *a = (struct pending_ask){ 0 };
    arm_asks(c);
    for (size_t i = 0; i < done.count; i++)
        complete = complete && !done.answers[i].missing;
    if (done.count)
        qsort(done.answers, done.count, sizeof *done.answers, by_node);
    if (!c->closed)
        done.cb(done.ctx, done.answers, done.count, complete);
    ask_free(&done);
}

static struct pending_ask *ask_of(struct channel *c, uint64_t seq)
{
    for (size_t i = 0; i < ASKS; i++)
        if (c->asks[i].active && c->asks[i].seq == seq)
            return &c->asks[i];
    return NULL;
}

static void on_answered(struct channel *c, const struct job_msg *m)
{
    struct pending_ask *a = ask_of(c, m->seq);
    struct channel_answer *answers;

    if (!a || a->count >= HUB_NODES)
        return;
    answers = mem_realloc_array(a->answers, a->count + 1, sizeof *answers);
    if (!answers)
        return;
    a->answers = answers;
    answers[a->count++] = (struct channel_answer){
        .node = m->node,
        .host = { mem_memdup(m->host.p, m->host.n), m->host.n },
        .missing = m->value != 0,
        .bytes = { mem_memdup(m->bytes.p, m->bytes.n), m->bytes.n },
    };
    if (!answers[a->count - 1].host.p)
        answers[a->count - 1].host.n = 0;
    if (!answers[a->count - 1].bytes.p)
        answers[a->count - 1].bytes.n = 0;
}

static void on_question(struct channel *c, const struct job_msg *m)
{
    struct channel_question *q;

    for (size_t i = 0; i < c->answerer_count; i++) {
        if (!span_eq(m->name, span_str(c->answerers[i].kind)))
            continue;
        q = mem_calloc(1, sizeof *q);
        if (!q)
            break;
        q->c = c;
        q->id = m->seq;
        q->next = c->questions;
        c->questions = q;
        c->answerers[i].fn(c->answerers[i].ctx, q, m->bytes);
        return;
    }
    /* Nothing here answers this kind. Say so at once: the asker need not wait then. */
    send_msg(c, &(struct job_msg){ .kind = JOB_ANSWER, .seq = m->seq, .value = 1 });
}

static void on_attached(struct channel *c, const struct job_msg *m)
{
    c->attached = true;
    c->behind = false;
    c->node = m->node;
    c->pause_ms = FIRST_PAUSE_MS;
    if (host_watch_reached(&c->watch) && c->opts.on_host && !c->closed)
        c->opts.on_host(c->opts.ctx, true, c->host_round, c->host_rank);
    set_state(c, !c->run            ? CHANNEL_UP
                 : c->uncoordinated ? CHANNEL_NO_COORDINATOR
                                    : CHANNEL_ALONE);
    repeat_all(c);
    for (size_t i = 0; i < ASKS; i++) /* Their answers were lost with the connection. */
        if (c->asks[i].active && c->asks[i].due_ms == 0)
            ask_done(c, &c->asks[i], false);
}

static void sync_done(struct channel *c)
{
    void (*cb)(void *) = c->sync_cb;

    c->sync_cb = NULL;
    deadline_set(&c->sync_due, MONO_NEVER);
    if (cb && !c->closed)
        cb(c->sync_ctx);
}

static void hear(struct channel *c, const struct job_msg *m)
{
    const struct run_now now = run_clock();
    struct pending_ask *a;

    c->heard = now;
    c->broke = false;
    switch (m->kind) {
    case JOB_ATTACHED:
        on_attached(c, m);
        return;
    case JOB_ENTRY:
        on_entry(c, m);
        return;
    case JOB_WANT:
        offer(c, m->value);
        return;
    case JOB_QUESTION:
        on_question(c, m);
        return;
    case JOB_ANSWERED:
        on_answered(c, m);
        return;
    case JOB_ANSWERS_END:
        a = ask_of(c, m->seq);
        if (a)
            ask_done(c, a, true);
        return;
    case JOB_PING:
        send_msg(c, &(struct job_msg){ .kind = JOB_PONG,
                                       .seq = m->seq,
                                       .mono_us = (int64_t)now.mono_us,
                                       .wall_us = now.wall_us });
        return;
    case JOB_SYNCED:
        if (m->seq == c->sync.seq)
            sync_done(c);
        return;
    case JOB_HOST:
        c->host_round = m->round;
        c->host_rank = m->rank;
        return;
    case JOB_REFUSED:
        trace(c->opts.trace, TRACE_WARN, "the job's coordinator refused us: %.*s",
              (int)MIN_OF(m->bytes.n, 500), (const char *)m->bytes.p);
        return;
    case JOB_NONE:
    case JOB_ATTACH:
    case JOB_PUBLISH:
    case JOB_OFFER:
    case JOB_RANKS:
    case JOB_PHASE:
    case JOB_REPORTED:
    case JOB_MOVED:
    case JOB_ASK:
    case JOB_ANSWER:
    case JOB_PONG:
    case JOB_SYNC:
    case JOB_BYE:
    case JOB_LAST:
    case JOB_SEAT:
    case JOB_KIND_COUNT:
        return; /* Not for an agent, or of a later version. */
    }
}

/* ---- the coordinator in this process ---- */

static int put_framed(struct buf *out, const struct job_msg *m)
{
    const size_t before = buf_len(out);

    if (buf_u32(out, 0) < 0 || job_encode(out, m) < 0)
        return MUSTER_ENOMEM;
    put_u32(out->mem + out->head + before, (uint32_t)(buf_len(out) - before - 4));
    return 0;
}

/* Copies the messages of the run's step to us before we handle them, since handling
 * them may cause the next step. */
static int copy_messages(struct channel *c, struct buf *out)
{
    const struct hub *h = run_record(c->run); /* NULL: it had no memory to begin. */
    const struct record *r = h ? hub_record(h) : NULL;
    uint64_t number;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < c->fx.record.count; i++) {
        const struct hub_effect *e = &c->fx.record.items[i];

        if (e->kind == HUB_SEND)
            rc = put_framed(out, &e->msg);
        if (e->kind == HUB_SEND || e->kind == HUB_DROP)
            continue;
        for (size_t k = 0; rc == 0 && k < r->count; k++) {
            const struct job_msg m = { .kind = JOB_ENTRY,
                                       .bytes = record_bytes(r, k, &number) };

            if (e->kind == HUB_ENTRY ? number == e->number : number > e->number)
                rc = put_framed(out, &m);
        }
    }
    return rc;
}

static void hear_all(struct channel *c, struct buf *out)
{
    struct job_msg m;

    while (buf_len(out) >= 4 && !c->closed) {
        const size_t n = get_u32(buf_data(out));

        if (job_decode(span_of(buf_data(out) + 4, n), &m, NULL) == 0)
            hear(c, &m);
        buf_consume(out, 4 + n);
    }
}

static void feed_run(struct channel *c, struct run_event *ev)
{
    struct buf out;

    ev->now = run_clock();
    buf_init(&out, SIZE_MAX);
    if (run_step(c->run, ev, &c->fx, NULL) == 0 && copy_messages(c, &out) == 0)
        hear_all(c, &out);
    else if (ev->kind == RUN_RECORD || c->fx.record.count) /* A TIMER comes again. */
        fall_behind(c);
    buf_fini(&out);
}

static void arm_run(struct channel *c)
{
    const uint64_t by = c->run ? run_deadline(c->run) : MONO_NEVER;

    deadline_set(&c->run_due, by == MONO_NEVER ? by : by / 1000 + 1);
}

static void on_deferred(void *ctx)
{
    struct channel *c = ctx;

    while (c->run && buf_len(&c->inbox) >= 4 && !c->closed) {
        const size_t n = get_u32(buf_data(&c->inbox));
        struct run_event ev = { .kind = RUN_RECORD, .peer = LOCAL_PEER };
        struct job_msg m;
        uint8_t *bytes = mem_memdup(buf_data(&c->inbox) + 4, n);

        buf_consume(&c->inbox, 4 + n);
        if (!bytes) {
            fall_behind(c);
        } else if (job_decode(span_of(bytes, n), &m, NULL) == 0) {
            ev.record = &m;
            feed_run(c, &ev);
        }
        mem_free(bytes);
    }
    if (!c->closed)
        arm_run(c);
}

static void on_run_due(void *ctx)
{
    struct channel *c = ctx;
    struct run_event ev = { .kind = RUN_TIMER };

    if (!c->run || c->closed)
        return;
    feed_run(c, &ev);
    if (!c->closed)
        arm_run(c);
}

/* ---- the connection ---- */

static void on_up(void *ctx)
{
    send_attach(ctx);
}

static bool on_msg(void *ctx, struct span bytes, struct muster_error *err)
{
    struct channel *c = ctx;
    struct job_msg m;

    if (job_decode(bytes, &m, err) < 0)
        return false;
    hear(c, &m);
    return true;
}

static void retry_later(struct channel *c, int code)
{
    const uint64_t now = clock_mono_ms();

    deadline_set(&c->retry, now + c->pause_ms);
    c->pause_ms = MIN_OF(2 * c->pause_ms, MAX_PAUSE_MS);
    if (host_watch_failed(&c->watch, code, now) && c->opts.on_host && !c->closed)
        c->opts.on_host(c->opts.ctx, false, c->host_round, c->host_rank);
}

static void on_down(void *ctx, const struct muster_error *err)
{
    struct channel *c = ctx;

    trace(c->opts.trace, TRACE_DEBUG, "the job channel of run '%s': %s", c->run_id,
          err->text);
    push_session_close(c->session);
    c->session = NULL;
    /* The coordinator was there until now, unless nothing came from it any more. */
    if (c->attached && err->code != MUSTER_ETIMEDOUT) {
        c->broke = true;
        c->heard = run_clock();
    }
    c->attached = false;
    for (size_t i = 0; i < ASKS; i++)
        if (c->asks[i].active)
            c->asks[i].due_ms = 0;
    arm_asks(c);
    set_state(c, CHANNEL_CONNECTING);
    retry_later(c, err->code);
}

static void open_session(struct channel *c)
{
    static const struct push_session_cbs cbs = { on_up, on_msg, on_down };
    const struct push_session_opts opts = { .host = c->at_host,
                                            .port = c->at_port,
                                            .timeout_ms = CONNECT_MS,
                                            .auth = c->opts.auth,
                                            .key = JOB_KEY,
                                            .max = JOB_MAX,
                                            .trace = c->opts.trace };
    struct muster_error err;

    if (c->session || c->closed || !c->at_host)
        return;
    if (push_session_open(c->opts.loop, &opts, &cbs, c, &c->session, &err) < 0) {
        c->session = NULL;
        deadline_set(&c->retry, clock_mono_ms() + c->pause_ms);
    }
}

static void ask_caps(struct channel *c);

static void on_retry_due(void *ctx)
{
    struct channel *c = ctx;

    if (c->behind && (c->run || c->session))
        send_attach(c);
    else if (c->can_coordinate)
        open_session(c);
    else
        ask_caps(c);
}

/* ---- what the store can do ---- */

static void be_coordinator(struct channel *c)
{
    c->run = run_new(span_str(c->run_id), c->opts.trace);
    c->local = true;
    if (c->run)
        send_attach(c);
}

static void drop_caps(struct channel *c)
{
    if (c->caps)
        async_store_close(c->caps, NULL, NULL);
    c->caps = NULL;
}

/* Goes on with a record of this node alone. */
static void no_coordinator(struct channel *c)
{
    drop_caps(c);
    c->uncoordinated = true;
    be_coordinator(c);
    set_state(c, CHANNEL_NO_COORDINATOR);
}

/* A store that cannot be reached may still be starting, and a connection that broke
 * says nothing of the store; any other outcome is final. */
static void caps_failed(struct channel *c, int status)
{
    const bool may_come = status == MUSTER_EREFUSED || status == MUSTER_EUNREACH ||
                          status == MUSTER_ERESOLVE || status == MUSTER_ECONN ||
                          status == MUSTER_EHANGUP;

    if (!may_come || clock_mono_ms() >= c->caps_by_ms) {
        no_coordinator(c);
        return;
    }
    drop_caps(c);
    retry_later(c, status);
}

static void on_caps(void *ctx, int status, const struct c10d_reply *reply,
                    const struct muster_error *err)
{
    struct channel *c = ctx;

    (void)err;
    if (status == MUSTER_ECANCELED || c->closed)
        return;
    if (status < 0 || !reserved_caps_have(reply->value, RESERVED_CAPS_JOB)) {
        caps_failed(c, status);
        return;
    }
    c->can_coordinate = true;
    drop_caps(c);
    open_session(c);
}

static void on_caps_there(void *ctx, int status, const struct c10d_reply *reply,
                          const struct muster_error *err)
{
    struct channel *c = ctx;
    const struct c10d_request get = { .op = C10D_GET, .key = span_str(CAPS) };

    (void)err;
    if (status == MUSTER_ECANCELED || c->closed)
        return;
    if (status < 0 || reply->number != 0 ||
        async_store_call(c->caps, &get, 0, CAPS_MS, on_caps, c, NULL) < 0)
        caps_failed(c, status);
}

static void on_caps_open(void *ctx, int status, const struct muster_error *err)
{
    (void)ctx; /* The calls that wait for the connection report the error. */
    (void)status;
    (void)err;
}

static void ask_caps(struct channel *c)
{
    const struct store_client_opts opts = { .host = c->at_host,
                                            .port = c->at_port,
                                            .timeout_ms = CAPS_MS,
                                            .once = true,
                                            .auth = c->opts.auth,
                                            .trace = c->opts.trace };
    const struct span key = span_str(CAPS);
    struct muster_error err;

    drop_caps(c);
    if (store_client_open(c->opts.loop, &opts, on_caps_open, c, &c->caps, &err) < 0 ||
        async_store_check(c->caps, &key, 1, CAPS_MS, on_caps_there, c, &err) < 0)
        no_coordinator(c);
}

/* ---- what the agent calls ---- */

static void on_asks_due(void *ctx)
{
    struct channel *c = ctx;
    const uint64_t now = clock_mono_ms();

    for (size_t i = 0; i < ASKS && !c->closed; i++)
        if (c->asks[i].active && c->asks[i].due_ms <= now)
            ask_done(c, &c->asks[i], false);
}

static void on_sync_due(void *ctx)
{
    sync_done(ctx);
}

/* A number that no other process of the job has, for as long as the job lasts. */
static uint64_t nonce_of(const struct channel_opts *opts)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (const char *p = opts->host; *p; p++)
        h = (h ^ (uint8_t)*p) * 0x100000001b3u;
    h = (h ^ (uint64_t)opts->pid) * 0x100000001b3u;
    return (h ^ uv_hrtime()) * 0x9e3779b97f4a7c15u;
}

int channel_open(const struct channel_opts *opts, struct channel **out,
                 struct muster_error *err)
{
    struct channel *c = mem_calloc(1, sizeof *c);

    if (!c)
        return err_nomem(err);
    c->opts = *opts;
    c->opts.auth = auth_ref(opts->auth);
    c->run_id = mem_strdup(opts->run_id);
    c->host = mem_strdup(opts->host);
    c->addr = mem_strdup(opts->addr ? opts->addr : "");
    if (!c->run_id || !c->host || !c->addr) {
        mem_free(c->run_id);
        mem_free(c->host);
        mem_free(c->addr);
        auth_unref(c->opts.auth);
        mem_free(c);
        return err_nomem(err);
    }
    c->nonce = opts->nonce ? opts->nonce : nonce_of(opts);
    c->next_seq = c->next_ask = 1;
    c->pause_ms = FIRST_PAUSE_MS;
    record_init(&c->record);
    buf_init(&c->inbox, SIZE_MAX);
    buf_init(&c->codes, 8192);
    deadline_init(&c->retry, opts->loop, on_retry_due, c);
    deadline_init(&c->asks_due, opts->loop, on_asks_due, c);
    deadline_init(&c->sync_due, opts->loop, on_sync_due, c);
    deadline_init(&c->run_due, opts->loop, on_run_due, c);
    defer_init(&c->defer, opts->loop, on_deferred, c);
    *out = c;
    return 0;
}

static void leave_coordinator(struct channel *c)
{
    drop_caps(c);
    push_session_close(c->session);
    c->session = NULL;
    c->attached = false;
    deadline_set(&c->retry, MONO_NEVER);
    run_free(c->run);
    c->run = NULL;
    buf_clear(&c->inbox);
    arm_run(c);
}

void channel_set_addr(struct channel *c, const char *addr)
{
    char *copy = c->addr[0] ? NULL : mem_strdup(addr);

    if (!copy)
        return; /* It is known already, or there is no memory and it stays unknown. */
    mem_free(c->addr);
    c->addr = copy;
}

void channel_attach(struct channel *c, const char *host, uint16_t port, bool local,
                    bool known)
{
    char *copy;

    if (c->at_host && strcmp(c->at_host, host) == 0 && c->at_port == port &&
        (!c->run || c->uncoordinated))
        return; /* It has not moved. */
    copy = mem_strdup(host);
    if (!copy)
        return;
    channel_detach(c); /* Without a goodbye, the old coordinator would call us lost. */
    leave_coordinator(c);
    c->uncoordinated = false;
    mem_free(c->at_host);
    c->at_host = copy;
    c->at_port = port;
    c->local = local;
    c->pause_ms = FIRST_PAUSE_MS;
    c->can_coordinate = local || known; /* Our own store always can. */
    c->host_round = -1;
    c->caps_by_ms = clock_mono_ms() + CAPS_MS;
    (void)host_watch_reached(&c->watch);
    set_state(c, CHANNEL_CONNECTING);
    on_retry_due(c);
}

void channel_attach_alone(struct channel *c, bool others)
{
    if (c->run)
        return;
    leave_coordinator(c);
    c->uncoordinated = others;
    be_coordinator(c);
}

enum channel_state channel_state(const struct channel *c)
{
    return c->state;
}

const struct record *channel_record(const struct channel *c)
{
    return &c->record;
}

uint32_t channel_node(const struct channel *c)
{
    return c->node;
}

bool channel_shared(const struct channel *c)
{
    return c->state == CHANNEL_UP;
}

int channel_publish(struct channel *c, const struct record_entry *e)
{
    const struct run_now now = run_clock();
    struct record_entry copy = *e;
    struct unacked *u;
    struct buf b;

    if (c->unacked_count >= UNACKED_MAX)
        return MUSTER_EFULL;
    if (copy.at_us == 0)
        copy.at_us = now.wall_us;
    record_trim(&copy);
    buf_init(&b, SIZE_MAX);
    u = mem_calloc(1, sizeof *u);
    if (!u || record_entry_encode(&b, &copy) < 0) {
        mem_free(u);
        buf_fini(&b);
        return MUSTER_ENOMEM;
    }
    *u = (struct unacked){
        .seq = c->next_seq++, .published = now, .bytes = b.mem, .size = buf_len(&b)
    };
    *(c->last_unacked ? &c->last_unacked->next : &c->first_unacked) = u;
    c->last_unacked = u;
    c->unacked_count++;
    if (is_up(c))
        send_unacked(c, u);
    return 0;
}

void channel_phases(struct channel *c, int64_t round,
                    const struct channel_phase *phases, size_t count)
{
    for (size_t i = 0; i < count && is_up(c); i++)
        send_msg(c, &(struct job_msg){ .kind = JOB_PHASE,
                                       .round = round,
                                       .name = span_str(phases[i].name),
                                       .value = phases[i].us,
                                       .rank = (int64_t)(count - 1 - i) });
}

struct channel_silence channel_silence(const struct channel *c)
{
    const struct run_now now = run_clock();

    return (struct channel_silence){
        .heard_us = c->heard.wall_us,
        .silent_s = (double)(now.mono_us - c->heard.mono_us) / 1e6,
        .broke = c->broke,
    };
}

void channel_conclude(struct channel *c, const struct record_entry *e)
{
    struct record_entry copy = *e;

    copy.number = c->record.last + 1;
    if (copy.at_us == 0)
        copy.at_us = run_clock().wall_us;
    record_trim(&copy);
    (void)record_add(&c->record, &copy);
}

void channel_seat(struct channel *c, int64_t round, int64_t rank)
{
    c->seat = (struct job_msg){ .kind = JOB_SEAT, .round = round, .rank = rank };
    if (is_up(c))
        send_msg(c, &c->seat);
}

void channel_ranks(struct channel *c, int64_t round, int64_t first, int64_t count,
                   int64_t nodes, bool own_budget)
{
    c->ranks = (struct job_msg){ .kind = JOB_RANKS,
                                 .round = round,
                                 .rank = first,
                                 .count = count,
                                 .total = nodes,
                                 .flags = own_budget ? JOB_OWN_BUDGET : 0 };
    c->reported.kind = c->moved.kind = JOB_NONE;
    if (is_up(c))
        send_msg(c, &c->ranks);
}

void channel_moved(struct channel *c, int64_t round)
{
    const struct run_now now = run_clock();

    if (c->moved.kind == JOB_MOVED)
        return;
    c->moved = (struct job_msg){ .kind = JOB_MOVED,
                                 .round = round,
                                 .mono_us = (int64_t)now.mono_us,
                                 .wall_us = now.wall_us };
    if (is_up(c))
        send_msg(c, &c->moved);
}

void channel_reported(struct channel *c, int64_t round, int64_t failed, int64_t stopped,
                      struct span codes)
{
    buf_clear(&c->codes);
    (void)buf_append_span(&c->codes, codes);
    c->reported = (struct job_msg){ .kind = JOB_REPORTED,
                                    .round = round,
                                    .count = failed,
                                    .total = stopped,
                                    .bytes = buf_span(&c->codes) };
    if (is_up(c))
        send_msg(c, &c->reported);
}

/* Sends SYNC or LAST; both are answered with SYNCED. */
static void begin_sync(struct channel *c, enum job_kind kind, uint64_t timeout_ms,
                       void (*cb)(void *ctx), void *ctx)
{
    c->sync_cb = cb;
    c->sync_ctx = ctx;
    c->sync = (struct job_msg){ .kind = kind, .seq = c->sync.seq + 1 };
    deadline_set(&c->sync_due, clock_mono_ms() + timeout_ms);
    if (is_up(c))
        send_msg(c, &c->sync);
}

void channel_sync(struct channel *c, uint64_t timeout_ms, void (*cb)(void *ctx),
                  void *ctx)
{
    begin_sync(c, JOB_SYNC, timeout_ms, cb, ctx);
}

void channel_wait_last(struct channel *c, uint64_t timeout_ms, void (*cb)(void *ctx),
                       void *ctx)
{
    begin_sync(c, JOB_LAST, timeout_ms, cb, ctx);
}

bool channel_is_local(const struct channel *c)
{
    return c->local;
}

int channel_ask(struct channel *c, const char *kind, struct span payload,
                uint64_t timeout_ms, channel_answers_cb cb, void *ctx,
                struct muster_error *err)
{
    struct pending_ask *a = NULL;

    if (!is_up(c))
        return err_set(err, MUSTER_ECONN,
                       "the coordinator of run '%s' cannot be reached", c->run_id);
    if (payload.n > CHANNEL_ASK_MAX || strlen(kind) > CHANNEL_KIND_MAX)
        return err_set(err, MUSTER_EINVAL,
                       "a question '%s' of %zu bytes is too long; at most %u bytes, "
                       "with a name of at most %u, can be sent",
                       kind, payload.n, CHANNEL_ASK_MAX, CHANNEL_KIND_MAX);
    for (size_t i = 0; i < ASKS && !a; i++)
        if (!c->asks[i].active)
            a = &c->asks[i];
    if (!a)
        return err_set(err, MUSTER_EFULL, "%u questions are under way already", ASKS);
    *a = (struct pending_ask){ .active = true,
                               .seq = c->next_ask++,
                               /* The coordinator says which nodes are missing when the
                                * time is up: leave it some more for that. */
                               .due_ms = clock_mono_ms() + timeout_ms + 500,
                               .cb = cb,
                               .ctx = ctx };
    arm_asks(c);
    send_msg(c, &(struct job_msg){ .kind = JOB_ASK,
                                   .seq = a->seq,
                                   .value = timeout_ms,
                                   .name = span_str(kind),
                                   .bytes = payload });
    return 0;
}

int channel_on_question(struct channel *c, const char *kind, channel_answerer fn,
                        void *ctx)
{
    if (c->answerer_count == ANSWERERS)
        return MUSTER_EFULL;
    c->answerers[c->answerer_count].kind = kind;
    c->answerers[c->answerer_count].fn = fn;
    c->answerers[c->answerer_count++].ctx = ctx;
    return 0;
}

void channel_answer(struct channel_question *q, struct span bytes)
{
    struct channel *c = q->c;
    struct channel_question **at = &c->questions;

    while (*at != q)
        at = &(*at)->next;
    *at = q->next;
    if (is_up(c))
        send_msg(c, &(struct job_msg){
                        .kind = JOB_ANSWER,
                        .seq = q->id,
                        .bytes = { bytes.p, MIN_OF(bytes.n, CHANNEL_ANSWER_MAX) } });
    mem_free(q);
}

/* ---- the end ---- */

static void on_all_closed(void *ctx)
{
    struct channel *c = ctx;
    void (*cb)(void *) = c->closed_cb;
    void *ctx_of_cb = c->closed_ctx;

    drop_acknowledged(c, UINT64_MAX);
    for (size_t i = 0; i < ASKS; i++)
        ask_free(&c->asks[i]);
    while (c->questions) {
        struct channel_question *q = c->questions;

        c->questions = q->next;
        mem_free(q);
    }
    run_free(c->run);
    run_fx_fini(&c->fx);
    record_fini(&c->record);
    buf_fini(&c->inbox);
    buf_fini(&c->codes);
    mem_free(c->at_host);
    mem_free(c->run_id);
    mem_free(c->host);
    mem_free(c->addr);
    auth_unref(c->opts.auth); /* Releasing the last reference wipes the key. */
    mem_free(c);
    if (cb)
        cb(ctx_of_cb);
}

void channel_detach(struct channel *c)
{
    if (c->session && c->attached)
        send_msg(c, &(struct job_msg){ .kind = JOB_BYE });
    if (!c->run)
        leave_coordinator(c);
}

void channel_close(struct channel *c, void (*cb)(void *ctx), void *ctx)
{
    channel_detach(c);
    c->closed = true;
    c->closed_cb = cb;
    c->closed_ctx = ctx;
    handle_set_begin(&c->closing, on_all_closed, c);
    handle_set_close(&c->closing, &c->retry.timer);
    handle_set_close(&c->closing, &c->asks_due.timer);
    handle_set_close(&c->closing, &c->sync_due.timer);
    handle_set_close(&c->closing, &c->run_due.timer);
    handle_set_close(&c->closing, &c->defer.idle);
    handle_set_end(&c->closing);
}
