/* run.c - see run.h. */
#include "job/core/run.h"

#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"

struct run {
    char *run_id; /* owned */
    const struct log *log;
    struct sessions sessions;
    struct seats *seats;       /* owned; NULL until a node of ours asks for a seat */
    struct recorder *recorder; /* owned; NULL until a node tells or asks something */
    struct run_fx *fx;         /* of the step under way */
};

struct run *run_new(struct span run_id, const struct log *log)
{
    struct run *r = mem_calloc(1, sizeof *r);

    if (!r)
        return NULL;
    r->run_id = mem_strndup((const char *)run_id.p, run_id.n);
    if (!r->run_id) {
        mem_free(r);
        return NULL;
    }
    r->log = log;
    sessions_init(&r->sessions);
    return r;
}

void run_free(struct run *r)
{
    if (!r)
        return;
    seats_free(r->seats);
    recorder_free(r->recorder);
    sessions_fini(&r->sessions);
    mem_free(r->run_id);
    mem_free(r);
}

struct seats *run_seats(const struct run *r)
{
    return r->seats;
}

const struct recorder *run_recorder(const struct run *r)
{
    return r->recorder;
}

bool run_next_peer(const struct run *r, uint32_t *i, uint32_t *peer)
{
    for (; *i < r->sessions.by_peer_size; (*i)++)
        if (r->sessions.by_peer[*i]) {
            *peer = (*i)++;
            return true;
        }
    return false;
}

static struct now seats_now(const struct run_event *ev)
{
    return (struct now){ ev->now.mono_us / 1000, ev->now.wall_us };
}

/* ---- losses ---- */

/* One loss at a time: each may have to be told to every other node, and the texts of
 * two would share one buffer. The next one is due at once. */
static void lose(struct run *r, const struct run_event *ev, struct run_session *s,
                 struct run_fx *fx)
{
    const uint32_t peer = s->peer;

    if (s->said)
        recorder_lost(r->recorder, s->said, fx);
    if (s->seat)
        seats_lost(r->seats, s->seat, seats_now(ev), fx);
    if (peer != SESSION_NO_PEER) {
        run_drop(fx, peer, "the node has been silent for too long");
        run_session_close(&r->sessions, s, ev->now.mono_us, 0);
    }
    run_session_settle(&r->sessions, s);
    run_session_release(&r->sessions, s);
}

static bool lose_one(struct run *r, const struct run_event *ev, struct run_fx *fx)
{
    struct run_session *s;

    sessions_judge(&r->sessions, ev->now.mono_us);
    s = sessions_lost(&r->sessions);
    if (s)
        lose(r, ev, s, fx);
    return s != NULL;
}

static void on_gone(struct run *r, const struct run_event *ev, struct run_fx *fx)
{
    struct run_session *s = sessions_of(&r->sessions, ev->peer);
    uint64_t hold_us = 0;

    if (!s)
        return;
    if (s->seat)
        hold_us = seats_gone(r->seats, s->seat, ev->hung_up, seats_now(ev), fx);
    if (s->said)
        recorder_gone(r->recorder, s->said, ev->peer, fx);
    run_session_close(&r->sessions, s, ev->now.mono_us, hold_us);
    run_session_release(&r->sessions, s);
    (void)lose_one(r, ev, fx);
}

/* ---- HELLO ---- */

static void refuse(struct run_fx *fx, uint32_t peer, int code, const char *text)
{
    (void)snprintf(fx->text, sizeof fx->text, "%.500s", text);
    run_send(fx, peer,
             (struct run_msg){
                 .kind = MSG_REFUSED, .code = code, .text = span_str(fx->text) });
}

static void on_round(void *ctx, int64_t round)
{
    const struct run *r = ctx;

    if (r->recorder)
        recorder_seated(r->recorder, round, r->fx);
}

static int make_seats(struct run *r)
{
    if (!r->seats)
        r->seats = seats_new(span_str(r->run_id), &r->sessions, r->log);
    if (!r->seats || seats_prepare(r->seats) < 0)
        return MUSTER_ENOMEM;
    seats_on_round(r->seats, on_round, r);
    return 0;
}

static int make_parts(struct run *r, const struct run_event *ev)
{
    if (ev->msg->flags & MSG_SEATS && !r->seats && make_seats(r) < 0)
        return MUSTER_ENOMEM;
    if (ev->msg->flags & MSG_RECORD && !r->recorder) {
        r->recorder = recorder_new(span_str(r->run_id), &r->sessions, r->log);
        if (!r->recorder)
            return MUSTER_ENOMEM;
        recorder_begin_step(r->recorder, ev->now);
    }
    return 0;
}

/* The node is here; its parts answer. */
static int admit(struct run *r, const struct run_event *ev, struct run_session *s,
                 struct run_fx *fx)
{
    const struct run_msg *m = ev->msg;

    if (run_session_is_open(s)) {
        run_drop(fx, s->peer, "the node has come back over another connection");
        if (s->said)
            recorder_gone(r->recorder, s->said, s->peer, fx);
    }
    run_session_open(&r->sessions, s, ev->peer, ev->now.mono_us);
    run_session_set_serves(&r->sessions, s, m->flags & MSG_SERVES);
    if (m->flags & MSG_RECORD) {
        const int rc = recorder_hello(r->recorder, s, m, fx);

        if (rc == MUSTER_EFULL) {
            run_session_close(&r->sessions, s, ev->now.mono_us, 0);
            run_session_release(&r->sessions, s);
            refuse(fx, ev->peer, rc, "the job has too many nodes");
            return 0;
        }
        if (rc < 0)
            return rc;
    } else {
        run_send(fx, ev->peer, (struct run_msg){ .kind = MSG_WELCOME });
    }
    return m->flags & MSG_SEATS ? seats_hello(r->seats, s, m, seats_now(ev), fx) : 0;
}

static int on_hello(struct run *r, const struct run_event *ev, struct run_fx *fx)
{
    const struct run_msg *m = ev->msg;
    struct run_session *s = sessions_find(&r->sessions, m->nonce);
    const bool lost = s && s->lost;
    struct muster_error why = { 0 };
    int rc = 0;

    if (lost) { /* That was decided; now it is somebody new. */
        lose(r, ev, s, fx);
        s = sessions_find(&r->sessions, m->nonce);
    }
    if (make_parts(r, ev) < 0)
        return MUSTER_ENOMEM;
    if (m->flags & MSG_SEATS)
        rc = seats_may_join(r->seats, m, s, &why);
    if (rc == MUSTER_ENOMEM)
        return rc;
    if (rc == MUSTER_EPROTO) {
        (void)snprintf(fx->text, sizeof fx->text, "%.500s", why.text);
        run_drop(fx, ev->peer, fx->text);
        return 0;
    }
    if (rc < 0) {
        refuse(fx, ev->peer, rc, why.text);
        return 0;
    }
    s = sessions_meet(&r->sessions, m->nonce, ev->peer);
    rc = s ? admit(r, ev, s, fx) : MUSTER_ENOMEM;
    if (rc == 0 && why.text[0] && !lost) { /* If so, it was told before. */
        (void)snprintf(fx->text, sizeof fx->text, "%.500s", why.text);
        run_send(fx, ev->peer,
                 (struct run_msg){ .kind = MSG_NEWS,
                                   .what = WIRE_DIFFERS,
                                   .text = span_str(fx->text) });
    }
    return rc;
}

/* ---- the step ---- */

static void on_beat(struct run *r, const struct run_event *ev, struct run_session *s,
                    struct run_fx *fx)
{
    if (ev->msg->seq) {
        if (s->said)
            (void)recorder_message(r->recorder, s->said, ev->msg, fx);
    } else if (s->said) {
        recorder_ping(r->recorder, s->said, ev->msg->mono_us, fx);
    } else {
        run_send(fx, ev->peer,
                 (struct run_msg){ .kind = MSG_PING,
                                   .seq = ev->now.mono_us,
                                   .mono_us = ev->msg->mono_us });
    }
}

static int on_msg(struct run *r, const struct run_event *ev, struct run_fx *fx)
{
    struct run_session *s = sessions_of(&r->sessions, ev->peer);
    const struct run_msg *m = ev->msg;

    if (!s && m->kind == MSG_HELLO)
        return on_hello(r, ev, fx);
    if (!s)
        return 0; /* Its HELLO was refused, and this followed it. */
    run_session_heard(&r->sessions, s, ev->now.mono_us);
    if (m->kind == MSG_NONE)
        return 0; /* Of a later version. */
    if (m->kind == MSG_BEAT)
        on_beat(r, ev, s, fx);
    else if (m->kind == MSG_JOIN && s->seat && r->recorder &&
             recorder_succeeded(r->recorder))
        refuse(fx, ev->peer, MUSTER_ECLOSED, "the job has done its work");
    else if (!(s->seat && seats_message(r->seats, s->seat, m, seats_now(ev), fx)) &&
             !(s->said && recorder_message(r->recorder, s->said, m, fx))) {
        (void)snprintf(fx->text, sizeof fx->text, "%s message out of turn: %s",
                       msg_kind_name(m->kind),
                       m->kind == MSG_HELLO ? "a connection belongs to one node"
                                            : "the node has not asked for that part");
        run_drop(fx, ev->peer, fx->text);
    } else if (m->kind == MSG_BYE && !s->seat && !s->said) {
        /* An observer that has seen enough; another one may use its connection. */
        run_session_close(&r->sessions, s, ev->now.mono_us, 0);
        run_session_release(&r->sessions, s);
    }
    return 0;
}

/* Whom a part wants to be dropped is gone for all parts. */
static void drop_sessions(struct run *r, const struct run_event *ev, struct run_fx *fx)
{
    for (size_t i = 0; i < fx->count; i++) {
        const struct run_event gone = { .kind = RUN_GONE,
                                        .now = ev->now,
                                        .peer = fx->items[i].peer };

        if (fx->items[i].kind == RUN_DROP)
            on_gone(r, &gone, fx);
    }
}

static void on_time(struct run *r, const struct run_event *ev, struct run_fx *fx)
{
    if (r->recorder && recorder_deadline(r->recorder) <= ev->now.mono_us)
        recorder_timer(r->recorder, fx);
    if (!lose_one(r, ev, fx) && r->seats &&
        seats_deadline(r->seats) <= ev->now.mono_us / 1000)
        seats_timer(r->seats, seats_now(ev), fx);
}

static int take(struct run *r, const struct run_event *ev, struct run_fx *fx,
                struct muster_error *err)
{
    switch (ev->kind) {
    case RUN_MSG:
        return on_msg(r, ev, fx);
    case RUN_GONE:
        on_gone(r, ev, fx);
        return 0;
    case RUN_SEEN:
        return make_seats(r) == 0
                   ? seats_seen(r->seats, ev->value, seats_now(ev), fx, err)
                   : MUSTER_ENOMEM;
    case RUN_TIMER:
        on_time(r, ev, fx);
        return 0;
    }
    return 0;
}

int run_step(struct run *r, const struct run_event *ev, struct run_fx *fx,
             struct muster_error *err)
{
    struct muster_error mine;
    int rc = r->seats ? seats_prepare(r->seats) : 0;

    r->fx = fx;
    fx->count = 0;
    fx->no_memory = false;
    if (r->recorder)
        recorder_begin_step(r->recorder, ev->now);
    if (rc == 0)
        rc = take(r, ev, fx, err ? err : &mine);
    drop_sessions(r, ev, fx);
    if (r->seats && r->recorder && recorder_restarts(r->recorder) >= 0)
        seats_restart(r->seats, recorder_restarts(r->recorder), fx);
    if (rc == MUSTER_ENOMEM || fx->no_memory)
        return err_nomem(err);
    if (r->recorder)
        recorder_end_step(r->recorder);
    if (r->seats)
        seats_check(r->seats);
    return rc;
}

uint64_t run_deadline(const struct run *r)
{
    const uint64_t record = r->recorder ? recorder_deadline(r->recorder) : MONO_NEVER;
    const uint64_t seats = r->seats ? seats_deadline(r->seats) : MONO_NEVER;
    const uint64_t by = MIN_OF(record, sessions_deadline(&r->sessions));

    return MIN_OF(by, seats == MONO_NEVER ? seats : seats * 1000);
}
