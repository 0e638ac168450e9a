/* session.c - see session.h. In order: state, messages out, what the run says, the run
 * in this process, the connection, what the agent calls, the end, seats. */
#include "job/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "job/core/host_watch.h"
#include "job/core/run.h"
#include "job/core/session_core.h"
#include "job/run_clock.h"
#include "loop/clock.h"
#include "loop/deadline.h"
#include "loop/defer.h"
#include "loop/handle_set.h"
#include "rendezvous/core/request_queue.h"
#include "rendezvous/seat_session.h"
#include "store/connect.h"
#include "store/core/reserved.h"
#include "store/push_session.h"

#define UNACKED_MAX 256u
#define DIAL_MS     5000u
#define ASK_MS      10000u /* for a store to say whether it hosts runs */
#define ANSWERERS   16u
#define ASKS        RECORDER_ASKS
#define LOCAL_PEER  1u

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
    session_answers_cb cb;
    void *ctx;
    struct session_answer *answers; /* owned, as are their bytes */
    size_t count;
};

struct session_question {
    struct session *c;
    uint64_t id;
    struct session_question *next;
};

struct answerer {
    const char *kind;
    session_answerer fn;
    void *ctx;
};

/* The seats that we ask for over this session. */
struct seat_side {
    rdzv_notify_cb cb; /* NULL: none */
    void *ctx;
    struct request_queue requests;
    bool unjoined; /* a JOIN was cancelled before the core had it: report that */
    bool own;      /* the session was opened for them, and is closed with them */
};

/* The node whose process serves the store. */
struct served_by {
    struct host_watch watch;
    int64_t round, rank; /* its seat; round -1: unknown */
};

/* The entries that we have published, and the run has not acknowledged. */
struct unacked_list {
    struct unacked *first, *last;
    size_t count;
    uint64_t next_seq;
};

/* The last SYNC, if somebody waits for its answer. */
struct sync_wait {
    struct run_msg msg;
    void (*cb)(void *ctx); /* NULL: nobody waits */
    void *ctx;
    struct deadline due;
};

/* How the first connection comes about. */
struct first_dial {
    struct store_conn *ready; /* owned: one that is there already; or NULL */
    bool took;                /* it is conn now, and the core does not know it yet */
    /* A store that cannot be reached until then counts as torch's; 0: it hosts runs. */
    uint64_t ask_by_ms;
};

struct session_end {
    void (*cb)(void *ctx);
    void *ctx;
};

struct session {
    struct session_opts opts;
    char *run_id, *host, *addr, *role; /* owned */
    enum session_state state;
    struct record record;
    uint64_t nonce;
    uint32_t node;

    char *at_host; /* owned; where the run is */
    /* The address of the last connection, for the next one; "": look the name up */
    char at_addr[IP_TEXT];
    uint16_t at_port;
    bool local;         /* the run is in this process, or its store is */
    bool uncoordinated; /* there are other nodes, but no run for all of them */
    bool detached;      /* we have said BYE */
    struct first_dial first;
    struct served_by served_by;
    struct session_core *core;    /* owned; NULL: the run is in here, or nowhere */
    struct push_session *conn;    /* owned, or NULL */
    struct push_session *silent;  /* owned: one that was hung up on; or NULL */
    struct muster_error dial_err; /* why a connection attempt could not begin */
    bool in_feed;
    bool hung_up; /* in this feed; the record is told after it */
    struct seat_side seats;
    struct run_now heard; /* when the run last said anything */
    bool broke;           /* the connection broke after that */
    struct deadline core_due, asks_due, run_due;
    struct defer defer;
    struct handle_set closing;

    struct run *run;  /* owned; the run, if it is here and not in a store */
    struct run_fx fx; /* of its last step */
    struct buf inbox; /* messages to it, each behind its length as a u32 */

    struct unacked_list unacked;
    struct run_msg seat, ranks;     /* sent again to a run that comes back, */
    struct run_msg moved, reported; /* as are these */
    struct run_msg store;           /* likewise: where we serve the workers' store */
    char *store_host;               /* owned; its text */
    struct buf codes;               /* the bytes of reported */
    uint64_t next_ask;
    struct pending_ask asks[ASKS];
    struct sync_wait sync;
    struct answerer answerers[ANSWERERS];
    size_t answerer_count;
    struct session_question *questions; /* owned; without an answer yet */
    bool closed;
    struct session_end end;
};

static void set_state(struct session *c, enum session_state state)
{
    if (c->state == state)
        return;
    c->state = state;
    if (c->opts.on_state && !c->closed)
        c->opts.on_state(c->opts.ctx, state);
}

/* ---- messages out ---- */

static void connection_failed(struct session *c, int code, const char *text);

static bool put_in_inbox(struct session *c, struct span bytes)
{
    if (!buf_room(&c->inbox, 4 + bytes.n)) /* All of it, or nothing. */
        return false;
    (void)buf_u32(&c->inbox, (uint32_t)bytes.n);
    (void)buf_append_span(&c->inbox, bytes);
    defer_call(&c->defer);
    return true;
}

/* A message for which there is no memory must not be overtaken by later ones: the
 * connection is made again, and then both sides repeat what the other has not got. */
static void send_msg(struct session *c, const struct run_msg *m)
{
    struct buf b;
    int rc;
    bool sent = true;

    buf_init(&b, WIRE_MAX);
    rc = msg_encode(&b, m);
    if (rc == 0 && c->run)
        sent = put_in_inbox(c, buf_span(&b));
    else if (rc == 0 && c->conn)
        sent = push_session_send(c->conn, buf_span(&b));
    buf_fini(&b);
    if (rc != MUSTER_ENOMEM && sent)
        return;
    log_line(c->opts.log, LOG_ERROR, AT_RENDEZVOUS,
             "run '%s': out of memory for a message", c->run_id);
    if (!c->conn)
        return;
    push_session_close(c->conn);
    c->conn = NULL;
    (void)err_nomem(&c->dial_err);
    defer_call(&c->defer);
}

static bool is_up(const struct session *c)
{
    return (c->run || (c->core && session_core_welcomed(c->core))) && !c->detached;
}

/* What HELLO says for the record. */
static struct run_msg record_hello(const struct session *c)
{
    const bool shares = c->opts.host && !c->detached;

    return (struct run_msg){ .kind = MSG_HELLO,
                             .run_id = span_str(c->run_id),
                             .nonce = c->nonce,
                             .host = span_str(c->host),
                             .where = span_str(c->addr),
                             .pid = c->opts.pid,
                             .nproc = c->opts.nproc,
                             .name = span_str(c->role),
                             .value = c->record.last,
                             .node = c->node,
                             .flags = (shares ? MSG_RECORD : 0u) |
                                      (c->opts.observer ? MSG_OBSERVER : 0u) |
                                      (c->local ? MSG_SERVES : 0u),
                             .total = c->opts.max_restarts,
                             .policy = span_str(c->opts.policy ? c->opts.policy : ""),
                             .grace_ms = MONO_NEVER,
                             .round = -1 };
}

static void send_unacked(struct session *c, const struct unacked *u)
{
    const uint64_t mono_us = run_clock().mono_us;

    /* The wall clock may have been set since the entry was published, and the entry's
     * own time is from before that. So we send what the clock would say otherwise. */
    send_msg(c, &(struct run_msg){ .kind = MSG_PUBLISH,
                                   .seq = u->seq,
                                   .mono_us = (int64_t)mono_us,
                                   .wall_us = u->published.wall_us +
                                              (int64_t)(mono_us - u->published.mono_us),
                                   .bytes = span_of(u->bytes, u->size) });
}

/* Repeats what a new run, or one that has come back, has not received. */
static void repeat_all(struct session *c)
{
    if (c->store.kind == MSG_STORE && c->seats.cb)
        send_msg(c, &c->store);
    if (c->seat.kind == MSG_RANKS && !c->seats.cb)
        send_msg(c, &c->seat);
    if (c->ranks.kind == MSG_RANKS)
        send_msg(c, &c->ranks);
    if (c->moved.kind == MSG_MOVED)
        send_msg(c, &c->moved);
    for (const struct unacked *u = c->unacked.first; u; u = u->next)
        send_unacked(c, u);
    if (c->reported.kind == MSG_REPORTED)
        send_msg(c, &c->reported);
    if (c->sync.cb)
        send_msg(c, &c->sync.msg);
}

/* ---- what the run says ---- */

static void drop_acknowledged(struct session *c, uint64_t seq)
{
    while (c->unacked.first && c->unacked.first->seq <= seq) {
        struct unacked *u = c->unacked.first;

        c->unacked.first = u->next;
        if (!c->unacked.first)
            c->unacked.last = NULL;
        c->unacked.count--;
        mem_free(u->bytes);
        mem_free(u);
    }
}

static void on_entry(struct session *c, const struct run_msg *m)
{
    struct record_entry e;

    if (m->seq)
        drop_acknowledged(c, m->seq);
    if (m->bytes.n == 0 || record_entry_decode(m->bytes, &e, NULL) < 0 ||
        e.number <= c->record.last)
        return;
    if (record_add(&c->record, &e) < 0) {
        connection_failed(c, MUSTER_ENOMEM, "out of memory for the record");
        return;
    }
    if (c->opts.on_entry && !c->closed)
        c->opts.on_entry(c->opts.ctx, &e);
}

/* Sends the entries that a new run lacks. */
static void offer(struct session *c, uint64_t above)
{
    uint64_t number;

    for (size_t i = 0; i < c->record.count; i++) {
        const struct run_msg m = { .kind = MSG_OFFER,
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

static void arm_asks(struct session *c)
{
    uint64_t due = MONO_NEVER;

    for (size_t i = 0; i < ASKS; i++)
        if (c->asks[i].active)
            due = MIN_OF(due, c->asks[i].due_ms);
    deadline_set(&c->asks_due, due);
}

static int by_node(const void *a, const void *b)
{
    const struct session_answer *x = a, *y = b;

    return (x->node > y->node) - (x->node < y->node);
}

static void ask_done(struct session *c, struct pending_ask *a, bool ended)
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

static struct pending_ask *ask_of(struct session *c, uint64_t seq)
{
    for (size_t i = 0; i < ASKS; i++)
        if (c->asks[i].active && c->asks[i].seq == seq)
            return &c->asks[i];
    return NULL;
}

static void on_answered(struct pending_ask *a, const struct run_msg *m)
{
    struct session_answer *answers;

    if (a->count >= RECORDER_NODES)
        return;
    answers = mem_realloc_array(a->answers, a->count + 1, sizeof *answers);
    if (!answers)
        return;
    a->answers = answers;
    answers[a->count++] = (struct session_answer){
        .node = m->node,
        .host = { mem_memdup(m->host.p, m->host.n), m->host.n },
        .missing = m->flags & MSG_MISSING,
        .bytes = { mem_memdup(m->bytes.p, m->bytes.n), m->bytes.n },
    };
    if (!answers[a->count - 1].host.p)
        answers[a->count - 1].host.n = 0;
    if (!answers[a->count - 1].bytes.p)
        answers[a->count - 1].bytes.n = 0;
}

static void on_question(struct session *c, const struct run_msg *m)
{
    struct session_question *q;

    for (size_t i = 0; i < c->answerer_count && !c->closed; i++) {
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
    send_msg(c, &(struct run_msg){
                    .kind = MSG_ANSWER, .seq = m->seq, .flags = MSG_MISSING });
}

static void on_welcome(struct session *c)
{
    if (host_watch_reached(&c->served_by.watch) && c->opts.on_host && !c->closed)
        c->opts.on_host(c->opts.ctx, true, c->served_by.round, c->served_by.rank);
    set_state(c, !c->run            ? SESSION_UP
                 : c->uncoordinated ? SESSION_UNSHARED
                                    : SESSION_ALONE);
    if (!c->detached)
        repeat_all(c);
    for (size_t i = 0; i < ASKS; i++) /* Their answers were lost with the connection. */
        if (c->asks[i].active && c->asks[i].due_ms == 0)
            ask_done(c, &c->asks[i], false);
}

static void sync_done(struct session *c)
{
    void (*cb)(void *) = c->sync.cb;

    c->sync.cb = NULL;
    deadline_set(&c->sync.due, MONO_NEVER);
    if (cb && !c->closed)
        cb(c->sync.ctx);
}

static void hear(struct session *c, const struct run_msg *m)
{
    const struct run_now now = run_clock();
    struct pending_ask *a;

    c->heard = now;
    c->broke = false;
    switch (m->kind) {
    case MSG_WELCOME:
        c->node = m->node;
        if (c->run)
            on_welcome(c);
        return;
    case MSG_ENTRY:
        on_entry(c, m);
        return;
    case MSG_WANT:
        offer(c, m->value);
        return;
    case MSG_QUESTION:
        on_question(c, m);
        return;
    case MSG_ANSWERED:
        a = ask_of(c, m->seq);
        if (a && m->flags & MSG_LAST)
            ask_done(c, a, true);
        else if (a)
            on_answered(a, m);
        return;
    case MSG_PING:
        send_msg(c, &(struct run_msg){ .kind = MSG_BEAT,
                                       .seq = m->seq,
                                       .mono_us = (int64_t)now.mono_us,
                                       .wall_us = now.wall_us });
        return;
    case MSG_SYNCED:
        if (m->seq == c->sync.msg.seq)
            sync_done(c);
        return;
    case MSG_NEWS:
        if (m->what != WIRE_HOST)
            return;
        c->served_by.round = m->round;
        c->served_by.rank = m->rank;
        return;
    case MSG_REFUSED:
        if (!c->seats.cb)
            log_line(c->opts.log, LOG_WARN, AT_RENDEZVOUS,
                     "run '%s': its host refused us: %.*s", c->run_id,
                     (int)MIN_OF(m->text.n, 500), (const char *)m->text.p);
        return;
    default:
        return; /* Of the seats, or of a later version. */
    }
}

/* ---- the run in this process ---- */

static int put_framed(struct buf *out, const struct run_msg *m)
{
    const size_t before = buf_len(out);

    if (buf_u32(out, 0) < 0 || msg_encode(out, m) < 0)
        return MUSTER_ENOMEM;
    put_u32(out->mem + out->head + before, (uint32_t)(buf_len(out) - before - 4));
    return 0;
}

/* Copies the messages of the run's step to us before we handle them, since handling
 * them may cause the next step. */
static int copy_messages(struct session *c, struct buf *out)
{
    const struct recorder *h = run_recorder(c->run);
    const struct record *r = h ? recorder_record(h) : NULL;
    uint64_t number;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < c->fx.count; i++) {
        const struct run_effect *e = &c->fx.items[i];

        if (e->kind == RUN_SEND)
            rc = put_framed(out, &e->msg);
        if (e->kind == RUN_SEND || e->kind == RUN_DROP)
            continue;
        for (size_t k = 0; rc == 0 && k < r->count; k++) {
            const struct run_msg m = { .kind = MSG_ENTRY,
                                       .bytes = record_bytes(r, k, &number) };

            if (e->kind == RUN_ENTRY ? number == e->number : number > e->number)
                rc = put_framed(out, &m);
        }
    }
    return rc;
}

static void hear_all(struct session *c, struct buf *out)
{
    struct run_msg m;

    while (buf_len(out) >= 4 && !c->closed) {
        const size_t n = get_u32(buf_data(out));

        if (msg_decode(span_of(buf_data(out) + 4, n), &m, NULL) == 0)
            hear(c, &m);
        buf_consume(out, 4 + n);
    }
}

static void make_run(struct session *c);

static void feed_run(struct session *c, struct run_event *ev)
{
    struct buf out;

    ev->now = run_clock();
    buf_init(&out, SIZE_MAX);
    if (run_step(c->run, ev, &c->fx, NULL) == 0 && copy_messages(c, &out) == 0)
        hear_all(c, &out);
    else
        make_run(c); /* It found no memory: another one goes on from our record. */
    buf_fini(&out);
}

static void arm_run(struct session *c)
{
    const uint64_t by = c->run ? run_deadline(c->run) : MONO_NEVER;

    deadline_set(&c->run_due, by == MONO_NEVER ? by : by / 1000 + 1);
}

static void take_inbox(struct session *c)
{
    while (c->run && buf_len(&c->inbox) >= 4 && !c->closed) {
        const size_t n = get_u32(buf_data(&c->inbox));
        struct run_event ev = { .kind = RUN_MSG, .peer = LOCAL_PEER };
        struct run_msg m;
        uint8_t *bytes = mem_memdup(buf_data(&c->inbox) + 4, n);

        buf_consume(&c->inbox, 4 + n);
        ev.msg = &m;
        if (bytes && msg_decode(span_of(bytes, n), &m, NULL) == 0)
            feed_run(c, &ev);
        mem_free(bytes);
    }
    if (!c->closed)
        arm_run(c);
}

static void on_run_due(void *ctx)
{
    struct session *c = ctx;
    struct run_event ev = { .kind = RUN_TIMER };

    if (!c->run || c->closed)
        return;
    feed_run(c, &ev);
    if (!c->closed)
        arm_run(c);
}

static void make_run(struct session *c)
{
    run_free(c->run);
    buf_clear(&c->inbox);
    c->run = run_new(span_str(c->run_id), c->opts.log);
    c->local = true;
    if (c->run) {
        const struct run_msg hello = record_hello(c);

        send_msg(c, &hello);
    }
}

/* ---- the connection: feed and perform ---- */

static void core_feed(struct session *c, struct session_event *ev);

/* The HELLO goes out before the host can see the end of the silent connection. */
static void conn_on_up(void *ctx)
{
    struct session *c = ctx;
    struct session_event ev = { .kind = SESSION_EV_UP };

    *session_core_hello(c->core) = record_hello(c);
    c->first.ask_by_ms = 0;
    /* A name server may take seconds, and a node that comes back has less. */
    (void)snprintf(c->at_addr, sizeof c->at_addr, "%s", push_session_ip(c->conn));
    core_feed(c, &ev);
    push_session_close(c->silent);
    c->silent = NULL;
}

static bool conn_on_msg(void *ctx, struct span bytes, struct muster_error *err)
{
    struct session *c = ctx;
    struct run_msg m;
    struct session_event ev = { .kind = SESSION_EV_MSG, .msg = &m };

    if (msg_decode(bytes, &m, err) < 0)
        return false;
    hear(c, &m);
    if (c->core && c->conn)
        core_feed(c, &ev);
    return true;
}

/* What the record must know of the end of a connection. */
static void record_down(struct session *c, int code)
{
    if (c->detached)
        return;
    /* The host was there until now, unless nothing came from it any more. */
    if (c->state == SESSION_UP && code != MUSTER_ETIMEDOUT) {
        c->broke = true;
        c->heard = run_clock();
    }
    for (size_t i = 0; i < ASKS; i++)
        if (c->asks[i].active)
            c->asks[i].due_ms = 0;
    arm_asks(c);
    set_state(c, SESSION_CONNECTING);
    if (host_watch_failed(&c->served_by.watch, code, clock_mono_ms()) &&
        c->opts.on_host && !c->closed)
        c->opts.on_host(c->opts.ctx, false, c->served_by.round, c->served_by.rank);
}

static void core_stop(struct session *c);

/* Goes on with a record of this node alone. */
static void be_alone(struct session *c)
{
    core_stop(c);
    c->uncoordinated = true;
    make_run(c);
    set_state(c, SESSION_UNSHARED);
}

/* A store that cannot be reached may still be starting, and a connection that broke
 * says nothing of the store; any other outcome is final. */
static bool hosts_no_runs(const struct session *c, int code)
{
    const bool may_come = code == MUSTER_EREFUSED || code == MUSTER_EUNREACH ||
                          code == MUSTER_ERESOLVE || code == MUSTER_ECONN ||
                          code == MUSTER_EHANGUP;

    return c->first.ask_by_ms && (!may_come || clock_mono_ms() >= c->first.ask_by_ms);
}

static void connection_failed(struct session *c, int code, const char *text)
{
    struct session_event ev = { .kind = SESSION_EV_DOWN, .code = code, .text = text };

    push_session_close(c->conn);
    c->conn = NULL;
    if (!c->core)
        return;
    if (hosts_no_runs(c, code)) {
        be_alone(c);
        return;
    }
    core_feed(c, &ev);
    record_down(c, code);
}

static void conn_on_down(void *ctx, const struct muster_error *err)
{
    struct session *c = ctx;

    log_line(c->opts.log, LOG_DEBUG, AT_RENDEZVOUS, "the session of run '%s': %s",
             c->run_id, err->text);
    connection_failed(c, err->code, err->text);
}

static void dial(struct session *c)
{
    static const struct push_session_cbs cbs = { conn_on_up, conn_on_msg,
                                                 conn_on_down };
    const struct push_session_opts opts = { .host =
                                                *c->at_addr ? c->at_addr : c->at_host,
                                            .port = c->at_port,
                                            .timeout_ms =
                                                c->first.ask_by_ms ? ASK_MS : DIAL_MS,
                                            .conn = c->first.ready,
                                            .ask_runs = c->first.ask_by_ms != 0,
                                            .auth = c->opts.auth,
                                            .max = WIRE_MAX,
                                            .log = c->opts.log };

    push_session_close(c->conn);
    c->conn = NULL;
    if (push_session_open(c->opts.loop, &opts, &cbs, c, &c->conn, &c->dial_err) < 0 ||
        c->first.ready)
        defer_call(&c->defer);
    c->first.took = c->conn && c->first.ready;
    if (c->first.took)
        c->first.ready = NULL;
    c->at_addr[0] = '\0'; /* If it does not work, the name may lead elsewhere by now. */
}

/* One that was not even welcomed is nothing to the host. */
static void hang_up(struct session *c)
{
    if (!c->conn || c->silent) {
        push_session_close(c->conn);
    } else {
        c->silent = c->conn;
        push_session_mute(c->silent);
    }
    c->conn = NULL;
    c->hung_up = true;
}

static void core_perform(struct session *c, const struct session_effect *e)
{
    switch (e->kind) {
    case SESSION_FX_DIAL:
        dial(c);
        return;
    case SESSION_FX_HANG_UP:
        hang_up(c);
        return;
    case SESSION_FX_WELCOMED:
        on_welcome(c);
        return;
    case SESSION_FX_SEND:
        send_msg(c, &e->msg);
        return;
    case SESSION_FX_NOTIFY:
        if (c->seats.cb)
            c->seats.cb(c->seats.ctx, &e->notice);
        return;
    }
}

static void core_feed(struct session *c, struct session_event *ev)
{
    struct session_core *const core = c->core;
    struct session_fx fx;

    ev->now = clock_now();
    session_core_step(core, ev, &fx);
    c->in_feed = true;
    for (size_t i = 0; i < fx.count && c->core == core; i++)
        core_perform(c, &fx.at[i]);
    c->in_feed = false;
    if (c->seats.requests.bits && !c->closed) /* also of a new core, under a new name */
        defer_call(&c->defer);
    if (c->core != core)
        return;
    deadline_set(&c->core_due, session_core_deadline(core));
    if (c->hung_up)
        record_down(c, MUSTER_ETIMEDOUT);
    c->hung_up = false;
}

static void on_core_due(void *ctx)
{
    struct session *c = ctx;
    struct session_event ev = { .kind = SESSION_EV_TIMER };

    if (c->core)
        core_feed(c, &ev);
}

static void take_requests(struct session *c)
{
    const struct rdzv_effect refused = { .kind = RDZV_FX_REFUSED,
                                         .code = MUSTER_ECANCELED,
                                         .text = "leaving" };
    struct session_event ev = { .kind = SESSION_EV_REQUEST };

    while (c->core && c->seats.cb) {
        if (c->seats.unjoined) {
            c->seats.unjoined = false;
            c->seats.cb(c->seats.ctx, &refused);
        } else if (request_take(&c->seats.requests, &ev.request)) {
            core_feed(c, &ev);
        } else {
            return;
        }
    }
}

static void on_deferred(void *ctx)
{
    struct session *c = ctx;
    const int code = c->dial_err.code;

    c->dial_err.code = 0;
    if (code)
        connection_failed(c, code, c->dial_err.text);
    else if (c->first.took && c->conn)
        conn_on_up(c);
    c->first.took = false;
    take_requests(c);
    take_inbox(c);
}

static void core_stop(struct session *c)
{
    session_core_free(c->core);
    c->core = NULL;
    if (c->first.ready)
        store_conn_close(c->first.ready);
    c->first.ready = NULL;
    push_session_close(c->conn);
    push_session_close(c->silent);
    c->conn = c->silent = NULL;
    deadline_set(&c->core_due, MONO_NEVER);
}

/* The core of a session for the record alone. */
static void core_start(struct session *c)
{
    struct session_config cfg = { .run_id = c->run_id,
                                  .nonce = c->nonce,
                                  .grace_ms = MONO_NEVER,
                                  .log = c->opts.log };
    struct session_event ev = { .kind = SESSION_EV_ATTACH };

    rdzv_settings_init(&cfg.settings, 1, 1);
    if (session_core_new(&cfg, &c->core, NULL) == 0)
        core_feed(c, &ev);
}

/* ---- what the agent calls ---- */

static void on_asks_due(void *ctx)
{
    struct session *c = ctx;
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
static uint64_t nonce_of(const struct session_opts *opts)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (const char *p = opts->host ? opts->host : ""; *p; p++)
        h = (h ^ (uint8_t)*p) * 0x100000001b3u;
    h = (h ^ (uint64_t)opts->pid) * 0x100000001b3u;
    return (h ^ uv_hrtime()) * 0x9e3779b97f4a7c15u;
}

int session_open(const struct session_opts *opts, struct session **out,
                 struct muster_error *err)
{
    struct session *c = mem_calloc(1, sizeof *c);

    if (!c)
        return err_nomem(err);
    c->opts = *opts;
    c->opts.auth = auth_ref(opts->auth);
    c->run_id = mem_strdup(opts->run_id);
    c->host = mem_strdup(opts->host ? opts->host : "");
    c->addr = mem_strdup(opts->addr ? opts->addr : "");
    c->role = mem_strdup(opts->role ? opts->role : "");
    if (!c->run_id || !c->host || !c->addr || !c->role) {
        mem_free(c->run_id);
        mem_free(c->host);
        mem_free(c->addr);
        mem_free(c->role);
        auth_unref(c->opts.auth);
        mem_free(c);
        return err_nomem(err);
    }
    c->nonce = opts->nonce ? opts->nonce : nonce_of(opts);
    c->unacked.next_seq = c->next_ask = 1;
    c->served_by.round = -1;
    record_init(&c->record);
    buf_init(&c->inbox, SIZE_MAX);
    buf_init(&c->codes, 8192);
    deadline_init(&c->core_due, opts->loop, on_core_due, c);
    deadline_init(&c->asks_due, opts->loop, on_asks_due, c);
    deadline_init(&c->sync.due, opts->loop, on_sync_due, c);
    deadline_init(&c->run_due, opts->loop, on_run_due, c);
    defer_init(&c->defer, opts->loop, on_deferred, c);
    *out = c;
    return 0;
}

static void leave_run(struct session *c)
{
    core_stop(c);
    run_free(c->run);
    c->run = NULL;
    buf_clear(&c->inbox);
    arm_run(c);
}

void session_set_addr(struct session *c, const char *addr)
{
    char *copy = c->addr[0] ? NULL : mem_strdup(addr);

    if (!copy)
        return; /* It is known already, or there is no memory and it stays unknown. */
    mem_free(c->addr);
    c->addr = copy;
}

/* False: there is no memory. */
static bool set_target(struct session *c, const char *host, uint16_t port, bool local)
{
    char *copy = mem_strdup(host);

    if (!copy)
        return false;
    mem_free(c->at_host);
    c->at_host = copy;
    c->at_addr[0] = '\0';
    c->at_port = port;
    c->local = local;
    c->uncoordinated = false;
    c->served_by.round = -1;
    (void)host_watch_reached(&c->served_by.watch);
    return true;
}

void session_attach(struct session *c, const char *host, uint16_t port, bool local,
                    bool known)
{
    if (c->seats.cb || (c->at_host && strcmp(c->at_host, host) == 0 &&
                        c->at_port == port && (!c->run || c->uncoordinated)))
        return;        /* It has not moved. */
    session_detach(c); /* Without a goodbye, the old run would call us lost. */
    leave_run(c);
    c->detached = false;
    if (!set_target(c, host, port, local))
        return;
    c->first.ask_by_ms = local || known ? 0 : clock_mono_ms() + ASK_MS;
    set_state(c, SESSION_CONNECTING);
    core_start(c);
}

void session_attach_alone(struct session *c, bool others)
{
    if (c->run || c->seats.cb)
        return;
    leave_run(c);
    c->uncoordinated = others;
    make_run(c);
}

enum session_state session_state(const struct session *c)
{
    return c->state;
}

const struct record *session_record(const struct session *c)
{
    return &c->record;
}

uint32_t session_node(const struct session *c)
{
    return c->node;
}

bool session_has_seats(const struct session *c)
{
    return c->seats.cb != NULL;
}

bool session_shared(const struct session *c)
{
    return c->state == SESSION_UP;
}

int session_publish(struct session *c, const struct record_entry *e)
{
    const struct run_now now = run_clock();
    struct record_entry copy = *e;
    struct unacked *u;
    struct buf b;

    if (c->unacked.count >= UNACKED_MAX)
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
    *u = (struct unacked){ .seq = c->unacked.next_seq++,
                           .published = now,
                           .bytes = b.mem,
                           .size = buf_len(&b) };
    *(c->unacked.last ? &c->unacked.last->next : &c->unacked.first) = u;
    c->unacked.last = u;
    c->unacked.count++;
    if (is_up(c))
        send_unacked(c, u);
    return 0;
}

void session_phases(struct session *c, int64_t round,
                    const struct session_phase *phases, size_t count)
{
    for (size_t i = 0; i < count && is_up(c); i++)
        send_msg(c, &(struct run_msg){ .kind = MSG_PHASE,
                                       .round = round,
                                       .name = span_str(phases[i].name),
                                       .value = phases[i].us,
                                       .rank = (int64_t)(count - 1 - i) });
}

struct session_silence session_silence(const struct session *c)
{
    const struct run_now now = run_clock();

    return (struct session_silence){
        .heard_us = c->heard.wall_us,
        .silent_s = (double)(now.mono_us - c->heard.mono_us) / 1e6,
        .broke = c->broke,
    };
}

void session_conclude(struct session *c, const struct record_entry *e)
{
    struct record_entry copy = *e;

    copy.number = c->record.last + 1;
    if (copy.at_us == 0)
        copy.at_us = run_clock().wall_us;
    record_trim(&copy);
    (void)record_add(&c->record, &copy);
}

void session_seat(struct session *c, int64_t round, int64_t rank)
{
    c->seat = (struct run_msg){
        .kind = MSG_RANKS, .round = -1, .count = -1, .seat_round = round, .seat = rank
    };
    if (is_up(c) && !c->seats.cb) /* Else it goes with the ranks. */
        send_msg(c, &c->seat);
}

void session_ranks(struct session *c, int64_t round, int64_t first, int64_t count,
                   int64_t nodes, bool own_budget)
{
    c->ranks = (struct run_msg){ .kind = MSG_RANKS,
                                 .round = round,
                                 .rank = first,
                                 .count = count,
                                 .total = nodes,
                                 .flags = own_budget ? MSG_OWN_BUDGET : 0,
                                 .seat_round = c->seats.cb ? c->seat.seat_round : -1,
                                 .seat = c->seat.seat };
    c->reported.kind = c->moved.kind = MSG_NONE;
    if (is_up(c))
        send_msg(c, &c->ranks);
}

void session_moved(struct session *c, int64_t round)
{
    const struct run_now now = run_clock();

    if (c->moved.kind == MSG_MOVED)
        return;
    c->moved = (struct run_msg){ .kind = MSG_MOVED,
                                 .round = round,
                                 .mono_us = (int64_t)now.mono_us,
                                 .wall_us = now.wall_us };
    if (is_up(c))
        send_msg(c, &c->moved);
}

void session_reported(struct session *c, int64_t round, int64_t failed, int64_t stopped,
                      bool progress, struct span codes)
{
    buf_clear(&c->codes);
    (void)buf_append_span(&c->codes, codes);
    c->reported = (struct run_msg){ .kind = MSG_REPORTED,
                                    .round = round,
                                    .count = failed,
                                    .total = stopped,
                                    .flags = progress ? MSG_PROGRESS : 0,
                                    .bytes = buf_span(&c->codes) };
    if (is_up(c))
        send_msg(c, &c->reported);
}

static void begin_sync(struct session *c, uint32_t flags, uint64_t timeout_ms,
                       void (*cb)(void *ctx), void *ctx)
{
    c->sync.cb = cb;
    c->sync.ctx = ctx;
    c->sync.msg = (struct run_msg){ .kind = MSG_SYNC,
                                    .flags = flags,
                                    .seq = c->sync.msg.seq + 1 };
    deadline_set(&c->sync.due, clock_mono_ms() + timeout_ms);
    if (is_up(c))
        send_msg(c, &c->sync.msg);
}

void session_sync(struct session *c, uint64_t timeout_ms, void (*cb)(void *ctx),
                  void *ctx)
{
    begin_sync(c, 0, timeout_ms, cb, ctx);
}

void session_wait_last(struct session *c, uint64_t timeout_ms, void (*cb)(void *ctx),
                       void *ctx)
{
    begin_sync(c, MSG_LAST, timeout_ms, cb, ctx);
}

bool session_is_local(const struct session *c)
{
    return c->local;
}

int session_ask(struct session *c, const char *kind, struct span payload,
                uint64_t timeout_ms, session_answers_cb cb, void *ctx,
                struct muster_error *err)
{
    struct pending_ask *a = NULL;

    if (!is_up(c))
        return err_set(err, MUSTER_ECONN, "the host of run '%s' cannot be reached",
                       c->run_id);
    if (payload.n > SESSION_ASK_MAX || strlen(kind) > SESSION_KIND_MAX)
        return err_set(err, MUSTER_EINVAL,
                       "a question '%s' of %zu bytes is too long; at most %u bytes, "
                       "with a name of at most %u, can be sent",
                       kind, payload.n, SESSION_ASK_MAX, SESSION_KIND_MAX);
    for (size_t i = 0; i < ASKS && !a; i++)
        if (!c->asks[i].active)
            a = &c->asks[i];
    if (!a)
        return err_set(err, MUSTER_EFULL, "%u questions are under way already", ASKS);
    *a = (struct pending_ask){ .active = true,
                               .seq = c->next_ask++,
                               /* The run says which nodes are missing when the
                                * time is up: leave it some more for that. */
                               .due_ms = clock_mono_ms() + timeout_ms + 500,
                               .cb = cb,
                               .ctx = ctx };
    arm_asks(c);
    send_msg(c, &(struct run_msg){ .kind = MSG_ASK,
                                   .seq = a->seq,
                                   .value = timeout_ms,
                                   .name = span_str(kind),
                                   .bytes = payload });
    return 0;
}

int session_on_question(struct session *c, const char *kind, session_answerer fn,
                        void *ctx)
{
    if (c->answerer_count == ANSWERERS)
        return MUSTER_EFULL;
    c->answerers[c->answerer_count].kind = kind;
    c->answerers[c->answerer_count].fn = fn;
    c->answerers[c->answerer_count++].ctx = ctx;
    return 0;
}

void session_answer(struct session_question *q, struct span bytes)
{
    struct session *c = q->c;
    struct session_question **at = &c->questions;

    while (*at != q)
        at = &(*at)->next;
    *at = q->next;
    if (is_up(c))
        send_msg(c, &(struct run_msg){
                        .kind = MSG_ANSWER,
                        .seq = q->id,
                        .bytes = { bytes.p, MIN_OF(bytes.n, SESSION_ANSWER_MAX) } });
    mem_free(q);
}

/* ---- the end ---- */

static void on_all_closed(void *ctx)
{
    struct session *c = ctx;
    void (*cb)(void *) = c->end.cb;
    void *ctx_of_cb = c->end.ctx;

    drop_acknowledged(c, UINT64_MAX);
    for (size_t i = 0; i < ASKS; i++)
        ask_free(&c->asks[i]);
    while (c->questions) {
        struct session_question *q = c->questions;

        c->questions = q->next;
        mem_free(q);
    }
    run_free(c->run);
    run_fx_fini(&c->fx);
    record_fini(&c->record);
    buf_fini(&c->inbox);
    buf_fini(&c->codes);
    mem_free(c->at_host);
    mem_free(c->store_host);
    mem_free(c->run_id);
    mem_free(c->host);
    mem_free(c->addr);
    mem_free(c->role);
    auth_unref(c->opts.auth); /* Releasing the last reference wipes the key. */
    mem_free(c);
    if (cb)
        cb(ctx_of_cb);
}

void session_detach(struct session *c)
{
    if (is_up(c) && !c->run)
        send_msg(c, &(struct run_msg){ .kind = MSG_BYE });
    c->detached = !c->run;
    if (!c->run && !c->seats.cb)
        leave_run(c);
}

static void close_handles(struct session *c)
{
    leave_run(c);
    handle_set_begin(&c->closing, on_all_closed, c);
    handle_set_close(&c->closing, &c->core_due.timer);
    handle_set_close(&c->closing, &c->asks_due.timer);
    handle_set_close(&c->closing, &c->sync.due.timer);
    handle_set_close(&c->closing, &c->run_due.timer);
    handle_set_close(&c->closing, &c->defer.idle);
    handle_set_end(&c->closing);
}

/* Seats that still use it keep it open until seat_session_close(). */
void session_close(struct session *c, void (*cb)(void *ctx), void *ctx)
{
    session_detach(c);
    c->closed = true;
    c->end.cb = cb;
    c->end.ctx = ctx;
    if (!c->seats.cb)
        close_handles(c);
}

/* ---- seats: rendezvous/seat_session.h ---- */

int seat_session_open(struct session *shared, const struct seat_opts *o,
                      struct session **out, struct muster_error *err)
{
    const struct session_opts own = { .loop = o->loop,
                                      .run_id = o->run_id,
                                      .nonce = o->nonce,
                                      .auth = o->auth,
                                      .log = o->log };
    struct session_config cfg = {
        .run_id = o->run_id,
        .nonce = o->nonce,
        .seats = true,
        .self = o->self,
        .settings = o->settings,
        .away_ms = o->away_ms,
        .order = o->rank_order_key < 0 ? WIRE_BY_NODE : WIRE_BY_KEY,
        .rank_order_key = (uint64_t)MAX_OF(o->rank_order_key, 0),
        .grace_ms = o->grace_ms,
        .log = o->log
    };
    struct session *c = shared;
    struct session_core *core = NULL;
    int rc = session_core_new(&cfg, &core, err);

    if (rc == 0 && !c)
        rc = session_open(&own, &c, err);
    if (rc == 0 && !set_target(c, o->host, o->port, o->serves))
        rc = err_nomem(err);
    if (rc < 0) {
        session_core_free(core);
        if (c && c != shared)
            session_close(c, NULL, NULL);
        return rc;
    }
    leave_run(c);
    if (o->where)
        session_set_addr(c, o->where);
    c->core = core;
    c->first.ready = o->conn;
    c->first.ask_by_ms = 0;
    c->nonce = o->nonce;
    c->seats.cb = o->cb;
    c->seats.ctx = o->ctx;
    c->seats.own = c->seats.own || !shared;
    set_state(c, SESSION_CONNECTING);
    *out = c;
    return 0;
}

void seat_session_request(struct session *c, enum rdzv_event_kind kind)
{
    c->seats.unjoined |= request_put(&c->seats.requests, kind);
    if (!c->in_feed)
        defer_call(&c->defer);
}

void seat_session_close(struct session *c, void (*gone)(void *ctx), void *ctx)
{
    const bool own = c->seats.own;

    c->seats = (struct seat_side){ 0 };
    if (own) {
        session_close(c, gone, ctx);
        return;
    }
    core_stop(c);
    if (c->closed)
        close_handles(c);
    if (gone)
        gone(ctx);
}

int64_t seat_session_waiting(const struct session *c)
{
    return session_core_waiting(c->core);
}

bool seat_session_closed(const struct session *c)
{
    return session_core_closed(c->core);
}

bool seat_session_progress(const struct session *c, struct rdzv_progress *out)
{
    return session_core_progress(c->core, out);
}

const struct seat_round *seat_session_round(const struct session *c)
{
    return session_core_round(c->core);
}

int seat_session_serve(struct session *c, uint64_t round, const char *host,
                       uint16_t port)
{
    char *copy = mem_strdup(host);

    if (!copy)
        return MUSTER_ENOMEM;
    mem_free(c->store_host);
    c->store_host = copy;
    c->store = (struct run_msg){ .kind = MSG_STORE,
                                 .round = (int64_t)round,
                                 .where = span_str(copy),
                                 .port = port };
    if (is_up(c))
        send_msg(c, &c->store);
    return 0;
}

uint64_t seat_session_fence_due(const struct session *c)
{
    return session_core_fence_due(c->core);
}
