/* session_core.c - see session_core.h. From top to bottom: effects, the connection,
 * what the run says, what is due with time, what the agent wants, and the step. */
#include "job/core/session_core.h"
#include "base/err.h"
#include "base/mem.h"
#include "rendezvous/core/state.h"
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

/* The pause between two attempts to reach the host grows from the first value to the
 * second. */
#define SESSION_FIRST_PAUSE_MS 20u
#define SESSION_MAX_PAUSE_MS   1000u

#define WELCOME_MS 5000u /* a host that takes longer counts as unreachable */

enum link_state {
    LINK_NONE,     /* not needed yet */
    LINK_DIALING,  /* a DIAL is under way */
    LINK_UP,       /* HELLO is sent */
    LINK_WELCOMED, /* WELCOME has come */
    LINK_PAUSED,   /* until redial_ms */
};

struct request_state {
    bool on;
    uint64_t by_ms;
};

struct session_core {
    char *run_id;        /* owned */
    char *addr;          /* owned; cfg.self.addr points to it */
    struct buf settings; /* as printed */
    struct session_config cfg;
    enum link_state link;
    uint64_t redial_ms, pause_ms;
    uint64_t beat_ms;  /* when the next ALIVE is due */
    uint64_t heard_ms; /* when the host last said something on this connection */
    uint64_t away_ms;  /* since when the host is unreachable; MONO_NEVER: it is not */
    bool away_notified;
    bool differs; /* our settings do, which is logged */
    struct fence fence;
    int64_t joins;
    struct request_state join, leave, close;
    int64_t leaves_unanswered; /* LEAVEs sent on this connection that are unanswered */
    bool leave_pending; /* the host has not had our LEAVE and may hold our place */
    bool member;
    bool granted; /* the next round has begun, and our JOIN is answered by it at once */
    int64_t round, rank, world;
    int64_t waiting;
    int64_t gathered; /* how many have a place in the round that we wait for */
    char names[RDZV_NAMES_SIZE];   /* which nodes they are */
    char missing[RDZV_NAMES_SIZE]; /* nodes of the last round that are not there */
    uint64_t start_by_ms;          /* when the round starts without them */
    bool closed;
    char rank0[RDZV_MAX_ADDR + 1]; /* rank 0 */
    struct rank_range ranks; /* of our workers in the round last JOINED, if told; */
    char where[SESSION_WHERE_MAX + 1]; /* their store, */
    struct seat_round told;            /* points to the three above */
    char text[1200];
};

/* ---- effects ---- */

static void core_effect(struct session_fx *fx, enum session_effect_kind kind)
{
    assert(fx->count < SESSION_FX_MAX);
    fx->at[fx->count++] = (struct session_effect){ .kind = kind };
}

static void core_send(struct session_fx *fx, struct run_msg msg)
{
    assert(fx->count < SESSION_FX_MAX);
    fx->at[fx->count++] =
        (struct session_effect){ .kind = SESSION_FX_SEND, .msg = msg };
}

static void core_notify(struct session_fx *fx, struct rdzv_effect notice)
{
    assert(fx->count < SESSION_FX_MAX);
    fx->at[fx->count++] =
        (struct session_effect){ .kind = SESSION_FX_NOTIFY, .notice = notice };
}

static void core_news(struct session_core *me, struct session_fx *fx,
                      enum rdzv_news news, int code, struct span text)
{
    (void)snprintf(me->text, sizeof me->text, "%.*s", (int)MIN_OF(text.n, 1100),
                   (const char *)text.p);
    core_notify(fx, (struct rdzv_effect){ .kind = RDZV_FX_NEWS,
                                          .news = news,
                                          .count = me->waiting,
                                          .code = code,
                                          .text = me->text });
}

static void core_done(struct session_fx *fx, struct request_state *r,
                      enum rdzv_event_kind request, int code, const char *text)
{
    if (!r->on)
        return;
    r->on = false;
    core_notify(
        fx, (struct rdzv_effect){
                .kind = RDZV_FX_DONE, .request = request, .code = code, .text = text });
}

static void core_refused(struct session_core *me, struct session_fx *fx, int code,
                         struct span text)
{
    if (!me->join.on)
        return;
    me->join.on = false;
    (void)snprintf(me->text, sizeof me->text, "%.*s", (int)MIN_OF(text.n, 1100),
                   (const char *)text.p);
    core_notify(fx, (struct rdzv_effect){
                        .kind = RDZV_FX_REFUSED, .code = code, .text = me->text });
}

/* ---- the connection to the host: made, lost, made again ---- */

static bool is_welcomed(const struct session_core *me)
{
    return me->link == LINK_WELCOMED;
}

/* What follows HELLO need not wait for WELCOME. */
static bool can_send(const struct session_core *me)
{
    return me->link == LINK_UP || me->link == LINK_WELCOMED;
}

static void core_dial(struct session_core *me, struct session_fx *fx)
{
    assert(me->link != LINK_WELCOMED);
    me->link = LINK_DIALING;
    core_effect(fx, SESSION_FX_DIAL);
}

static void hello(struct session_core *me, struct session_fx *fx)
{
    struct run_msg m = me->cfg.hello;

    m.kind = MSG_HELLO;
    m.run_id = span_str(me->run_id);
    m.nonce = me->cfg.nonce;
    m.round = -1;
    m.grace_ms = me->cfg.grace_ms;
    if (me->cfg.seats) {
        m.flags |= MSG_SEATS;
        m.addr = me->cfg.self.addr;
        m.pid = me->cfg.self.pid;
        m.local_id = me->cfg.self.local_id;
        m.settings = buf_span(&me->settings);
        m.order = me->cfg.order;
        m.rank_order_key = me->cfg.rank_order_key;
        m.round = me->round;
        m.rank = me->rank;
        m.world = me->member ? me->world : 0;
    }
    core_send(fx, m);
}

static void core_send_leave(struct session_core *me, struct session_fx *fx)
{
    me->leave_pending = !can_send(me);
    if (me->leave_pending)
        return;
    me->leaves_unanswered++;
    core_send(fx, (struct run_msg){ .kind = MSG_LEAVE });
}

static struct run_msg join_msg(const struct session_core *me)
{
    return (struct run_msg){ .kind = MSG_JOIN, .count = me->joins, .round = me->round };
}

/* Sends everything that has no answer yet, in an order that makes sense to the host. */
static void core_send_again(struct session_core *me, struct session_fx *fx)
{
    if (me->leave.on || me->leave_pending)
        core_send_leave(me, fx);
    if (me->close.on)
        core_send(fx, (struct run_msg){ .kind = MSG_CLOSE });
    if (me->join.on)
        core_send(fx, join_msg(me));
}

static void core_up(struct session_core *me, struct session_fx *fx, struct now now)
{
    assert(me->link != LINK_UP && me->link != LINK_WELCOMED);
    me->link = LINK_UP;
    me->heard_ms = now.mono_ms;
    me->beat_ms = now.mono_ms + rdzv_session_interval_ms(&me->cfg.settings);
    fence_unanswered(&me->fence);
    fence_sent(&me->fence, now.mono_ms);
    hello(me, fx);
    core_send_again(me, fx);
}

/* The connection is gone; since_ms: since when nothing came over it. */
static void core_down(struct session_core *me, const struct session_event *ev,
                      uint64_t since_ms)
{
    /* A host that hangs up after our HELLO counts as unreachable. */
    if (me->link == LINK_WELCOMED)
        me->pause_ms = SESSION_FIRST_PAUSE_MS;
    else
        me->pause_ms = MIN_OF(me->pause_ms * 2, SESSION_MAX_PAUSE_MS);
    me->link = LINK_PAUSED;
    me->leave_pending = me->leave_pending || me->leaves_unanswered > 0;
    me->leaves_unanswered = 0;
    /* We were a spare, but the host may not know: it has to say so again. */
    if (me->join.by_ms == MONO_NEVER)
        me->join.by_ms = ev->now.mono_ms + me->cfg.settings.join_ms;
    me->redial_ms = ev->now.mono_ms + me->pause_ms;
    me->beat_ms = MONO_NEVER;
    if (me->away_ms == MONO_NEVER) {
        me->away_ms = since_ms;
        log_line(me->cfg.log, me->cfg.seats ? LOG_WARN : LOG_DEBUG, AT_RENDEZVOUS,
                 "the host of the rendezvous '%s' cannot be reached: %s; trying again",
                 me->run_id, ev->text ? ev->text : "the connection broke");
    }
    (void)snprintf(me->text, sizeof me->text, "%.1000s",
                   ev->text ? ev->text : "the connection broke");
}

/* ---- what the host says ---- */

static bool ranks_fit(const struct session_core *me)
{
    const struct rank_range *r = &me->ranks;
    const int64_t nproc = me->cfg.hello.nproc;

    return nproc > 0 && r->world_size >= nproc &&
           r->base_rank <= r->world_size - nproc && r->role_world_size >= nproc &&
           r->base_role_rank <= r->role_world_size - nproc;
}

static void notify_joined(struct session_core *me, struct session_fx *fx)
{
    me->granted = false;
    core_notify(fx, (struct rdzv_effect){ .kind = RDZV_FX_JOINED,
                                          .round = me->round,
                                          .rank = me->rank,
                                          .world = me->world });
}

static void on_joined(struct session_core *me, struct session_fx *fx,
                      const struct run_msg *m)
{
    char text[120];

    /* We gave up meanwhile, and a LEAVE tells the host; or we know it already. */
    if (!me->join.on && !(me->member && m->round > me->round))
        return;
    if (m->world < 1 || m->rank < 0 || m->rank >= m->world ||
        m->addr.n > RDZV_MAX_ADDR || m->where.n > SESSION_WHERE_MAX) {
        (void)snprintf(text, sizeof text,
                       "the host sent rank %" PRId64 " of %" PRId64
                       " nodes, which is impossible",
                       m->rank, m->world);
        core_refused(me, fx, MUSTER_EPROTO, span_str(text));
        return;
    }
    me->granted = !me->join.on;
    me->join.on = false;
    me->member = true;
    me->waiting = 0;
    me->round = m->round;
    me->rank = m->rank;
    me->world = m->world;
    if (m->addr.n)
        memcpy(me->rank0, m->addr.p, m->addr.n);
    me->rank0[m->addr.n] = '\0';
    me->ranks = m->ranks;
    if (m->where.n)
        memcpy(me->where, m->where.p, m->where.n);
    me->where[m->where.n] = '\0';
    me->told = (struct seat_round){
        .rank0 = { span_str(me->rank0), m->pid, m->local_id },
        .torch_nodes = MAX_OF(m->count, 0),
        .all_ours = m->count == WIRE_ALL_OURS,
        .ranked = m->ranks.world_size > 0 && (m->rank == 0 || m->where.n),
        .ranks = ranks_fit(me) ? &me->ranks : NULL,
        .store_host = me->where,
        .store_port = m->where.n ? (uint16_t)m->port : 0,
    };
    if (!me->granted)
        notify_joined(me, fx);
}

static void core_on_closed(struct session_core *me, struct session_fx *fx)
{
    const bool known = me->closed;

    me->closed = true;
    core_done(fx, &me->close, RDZV_EV_CLOSE, 0, NULL);
    core_refused(me, fx, MUSTER_ECLOSED,
                 span_str("the rendezvous is closed: the run has ended; use a "
                          "new run id"));
    if (!known && me->member)
        core_news(me, fx, RDZV_NEWS_CLOSED, 0, span_str("the run was closed"));
}

static void on_gathered(struct session_core *me, const struct run_msg *m,
                        struct now now)
{
    me->gathered = m->count;
    me->start_by_ms =
        m->grace_ms > MONO_NEVER - now.mono_ms ? MONO_NEVER : now.mono_ms + m->grace_ms;
    if (!m->text.n)
        return;
    names_copy(me->names, m->text);
    names_copy(me->missing, m->addr);
}

/* The HELLO itself was refused, so a later attempt needs a new one. A node that is not
 * a member has no place to leave, and cannot close the run. */
static void on_turned_away(struct session_core *me, struct session_fx *fx,
                           const struct run_msg *m, struct now now)
{
    me->leaves_unanswered = 0;
    me->link = LINK_PAUSED;
    me->redial_ms = now.mono_ms + SESSION_MAX_PAUSE_MS;
    me->away_ms = MONO_NEVER;
    (void)snprintf(me->text, sizeof me->text, "%.*s", (int)MIN_OF(m->text.n, 1100),
                   (const char *)m->text.p);
    core_done(fx, &me->leave, RDZV_EV_LEAVE, 0, NULL);
    core_done(fx, &me->close, RDZV_EV_CLOSE, m->code < 0 ? m->code : MUSTER_EPROTO,
              me->text);
}

/* What the host sent before it had our LEAVE is about the place that we gave up, not
 * about the one that we may have asked for since. The answer LEFT comes after it. */
static bool is_stale(const struct session_core *me, const struct run_msg *m)
{
    return me->leaves_unanswered > 0 && me->link == LINK_WELCOMED &&
           m->kind != MSG_LEFT && m->kind != MSG_PING &&
           !(m->kind == MSG_NEWS && m->what == WIRE_CLOSED);
}

static void on_news(struct session_core *me, struct session_fx *fx,
                    const struct run_msg *m, struct now now)
{
    /* The round that we are to begin in is over before we have: ask for another. */
    if (m->what == WIRE_LOST || (m->what == WIRE_WAITING && m->count > 0))
        me->granted = false;
    switch ((enum wire_news)m->what) {
    case WIRE_CLOSED:
        core_on_closed(me, fx);
        return;
    case WIRE_WAITING:
        me->waiting = m->count == WIRE_MEMBER_WAITS ? 1 : m->count;
        if (m->count > 0 && me->member)
            core_news(me, fx, RDZV_NEWS_WAITING, 0, span_str(""));
        if (m->count == WIRE_MEMBER_WAITS && me->member)
            core_news(me, fx, RDZV_NEWS_MOVED_ON, 0,
                      span_str("a member of the round waits for the next one"));
        return;
    case WIRE_SPARE:
        /* Like torch's, a spare waits for as long as the run goes on. Once it stops
         * being a spare, its time to join begins again. */
        me->join.by_ms = m->count ? MONO_NEVER : now.mono_ms + me->cfg.settings.join_ms;
        return;
    case WIRE_LOST:
        if (me->member)
            core_news(me, fx, RDZV_NEWS_LOST, 0, m->text);
        return;
    case WIRE_EVICTED:
        if (me->member)
            core_news(me, fx, RDZV_NEWS_EVICTED, 0, m->text);
        me->member = false;
        return;
    case WIRE_DIFFERS:
        if (!me->differs)
            log_line(me->cfg.log, LOG_WARN, AT_RENDEZVOUS, "run '%s': %.*s", me->run_id,
                     (int)MIN_OF(m->text.n, 1100), (const char *)m->text.p);
        me->differs = true;
        return;
    case WIRE_HOST: /* That is for the record. */
    case WIRE_NEWS_COUNT:
        return;
    }
}

static void core_hear(struct session_core *me, const struct session_event *ev,
                      struct session_fx *fx)
{
    const struct run_msg *m = ev->msg;

    me->heard_ms = ev->now.mono_ms;
    if (is_stale(me, m))
        return;
    switch (m->kind) {
    case MSG_WELCOME:
        me->link = LINK_WELCOMED;
        fence_answered(&me->fence);
        if (me->away_ms != MONO_NEVER)
            log_line(me->cfg.log, me->cfg.seats ? LOG_INFO : LOG_DEBUG, AT_RENDEZVOUS,
                     "the host of the rendezvous '%s' is back after %" PRIu64 " ms",
                     me->run_id, ev->now.mono_ms - me->away_ms);
        me->away_ms = MONO_NEVER;
        me->away_notified = false;
        core_effect(fx, SESSION_FX_WELCOMED);
        return;
    case MSG_JOINED:
        on_joined(me, fx, m);
        return;
    case MSG_REFUSED:
        core_refused(me, fx, m->code < 0 ? m->code : MUSTER_EPROTO, m->text);
        if (me->link == LINK_UP)
            on_turned_away(me, fx, m, ev->now);
        return;
    case MSG_LEFT:
        me->member = false;
        me->leaves_unanswered = MAX_OF(me->leaves_unanswered - 1, 0);
        core_done(fx, &me->leave, RDZV_EV_LEAVE, 0, NULL);
        return;
    case MSG_NEWS:
        on_news(me, fx, m, ev->now);
        return;
    case MSG_GATHERED:
        on_gathered(me, m, ev->now);
        return;
    case MSG_PING:
        if (m->mono_us) /* It answers our BEAT. */
            fence_answered(&me->fence);
        return;
    default:
        return; /* Of the record, or of a later version. */
    }
}

/* ---- what is due with time ---- */

static bool due(const struct request_state *r, struct now now)
{
    return r->on && now.mono_ms >= r->by_ms;
}

static void time_out(struct session_core *me, struct session_fx *fx, struct now now)
{
    const char *away = me->away_ms == MONO_NEVER ? "" : "; its host cannot be reached";
    char text[300];

    if (due(&me->join, now)) {
        (void)snprintf(text, sizeof text,
                       "could not join the rendezvous '%.100s' within %" PRIu64
                       " s (join_timeout): %" PRId64 " of at least %" PRId64
                       " node(s) had joined%s",
                       me->run_id, me->cfg.settings.join_ms / 1000, me->gathered,
                       me->cfg.settings.min_nodes, away);
        core_refused(me, fx, MUSTER_ETIMEDOUT, span_str(text));
        core_send_leave(me, fx);
    }
    if (me->join.on && me->cfg.away_ms && me->away_ms != MONO_NEVER &&
        now.mono_ms - me->away_ms >= me->cfg.away_ms) {
        (void)snprintf(
            text, sizeof text,
            "the host of the rendezvous '%.100s' has been unreachable for %" PRIu64
            " s (read_timeout): it has ended, or the network is down",
            me->run_id, me->cfg.away_ms / 1000);
        core_refused(me, fx, MUSTER_ECONN, span_str(text));
        core_send_leave(me, fx);
    }
    if (due(&me->leave, now))
        core_done(fx, &me->leave, RDZV_EV_LEAVE, MUSTER_ETIMEDOUT,
                  "the host did not confirm in time that this node has left");
    if (due(&me->close, now))
        core_done(
            fx, &me->close, RDZV_EV_CLOSE, MUSTER_ETIMEDOUT,
            "the host did not confirm within close_timeout that the run is closed");
}

/* A member judges its host as the host judges a node: silent for this long is dead. */
static uint64_t away_limit_ms(const struct session_core *me)
{
    return MAX_OF(rdzv_session_dead_after_ms(&me->cfg.settings), 1000u);
}

/* When the host counts as silent. It answers a HELLO at once, and after that each
 * ALIVE. We give the connection up while the host has not yet given us up, so that we
 * can come back in time. */
static uint64_t silent_at_ms(const struct session_core *me)
{
    const uint64_t dead_ms = rdzv_session_dead_after_ms(&me->cfg.settings);
    const uint64_t interval_ms = rdzv_session_interval_ms(&me->cfg.settings);

    if (me->link == LINK_UP)
        return me->heard_ms + MAX_OF(MIN_OF(dead_ms, WELCOME_MS), 1000u);
    if (me->link != LINK_WELCOMED)
        return MONO_NEVER;
    return me->heard_ms + MAX_OF(dead_ms - MIN_OF(interval_ms, dead_ms), interval_ms);
}

static void hang_up_if_silent(struct session_core *me, struct session_fx *fx,
                              struct now now)
{
    const struct session_event down = { .kind = SESSION_EV_DOWN,
                                        .now = now,
                                        .code = MUSTER_EHANGUP,
                                        .text = "it does not answer" };

    if (now.mono_ms < silent_at_ms(me))
        return;
    core_effect(fx, SESSION_FX_HANG_UP);
    core_down(me, &down, me->heard_ms);
}

/* A timer that comes an interval late means that this process did not run: it was
 * stopped, or suspended. The host could not be heard meanwhile, so that time does not
 * count. */
static void forgive_absence(struct session_core *me, struct now now)
{
    const uint64_t due_ms = session_core_deadline(me);
    const uint64_t late_ms = now.mono_ms > due_ms ? now.mono_ms - due_ms : 0;

    if (late_ms < rdzv_session_interval_ms(&me->cfg.settings))
        return;
    /* What came while we were away may have been read just before this timer. */
    me->heard_ms = MIN_OF(me->heard_ms + late_ms, now.mono_ms);
    if (me->away_ms != MONO_NEVER)
        me->away_ms = MIN_OF(me->away_ms + late_ms, now.mono_ms);
    if (me->join.by_ms != MONO_NEVER) { /* It may have begun after we were back. */
        const uint64_t began_ms = me->join.by_ms - me->cfg.settings.join_ms;

        me->join.by_ms += MIN_OF(late_ms, now.mono_ms - MIN_OF(began_ms, now.mono_ms));
    }
    fence_absent(&me->fence, now.mono_ms);
    log_line(me->cfg.log, LOG_WARN, AT_RENDEZVOUS,
             "this process has been away for %.1f s (stopped, suspended or starved); "
             "asking the host of the rendezvous '%s' whether this node still counts",
             (double)late_ms / 1e3, me->run_id);
}

/* The host may be about to let the others begin without us. */
static void judge(struct session_core *me, struct session_fx *fx, struct now now)
{
    const bool was_absent = me->fence.asked;
    const bool away = me->away_ms != MONO_NEVER && !me->away_notified &&
                      now.mono_ms - me->away_ms >= away_limit_ms(me);
    const bool fenced = me->member && fence_passed(&me->fence, now.mono_ms);

    if (fenced && was_absent) {
        core_news(me, fx, RDZV_NEWS_EVICTED, 0,
                  span_str("this node was away for longer than a node may be silent "
                           "(keep_alive_interval * keep_alive_max_attempt)"));
        me->member = false;
        return;
    }
    if (!away && !fenced)
        return;
    me->away_notified = true;
    if (me->member)
        core_news(me, fx, RDZV_NEWS_BACKEND, MUSTER_ECONN,
                  span_str("the host of the rendezvous has been unreachable for as "
                           "long as a node may be silent (keep_alive_interval * "
                           "keep_alive_max_attempt)"));
}

static void core_timer(struct session_core *me, struct session_fx *fx, struct now now)
{
    forgive_absence(me, now);
    time_out(me, fx, now);
    hang_up_if_silent(me, fx, now);
    if (me->link == LINK_PAUSED && now.mono_ms >= me->redial_ms)
        core_dial(me, fx);
    if (is_welcomed(me) && now.mono_ms >= me->beat_ms) {
        me->beat_ms = now.mono_ms + rdzv_session_interval_ms(&me->cfg.settings);
        fence_sent(&me->fence, now.mono_ms);
        core_send(fx, (struct run_msg){ .kind = MSG_BEAT,
                                        .mono_us = (int64_t)now.mono_ms * 1000 + 1 });
    }
    judge(me, fx, now);
}

uint64_t session_core_deadline(const struct session_core *me)
{
    uint64_t by = MONO_NEVER;

    if (me->join.on)
        by = MIN_OF(by, me->join.by_ms);
    if (me->join.on && me->cfg.away_ms && me->away_ms != MONO_NEVER)
        by = MIN_OF(by, me->away_ms + me->cfg.away_ms);
    if (me->leave.on)
        by = MIN_OF(by, me->leave.by_ms);
    if (me->close.on)
        by = MIN_OF(by, me->close.by_ms);
    if (me->link == LINK_PAUSED)
        by = MIN_OF(by, me->redial_ms);
    by = MIN_OF(by, silent_at_ms(me));
    if (is_welcomed(me))
        by = MIN_OF(by, me->beat_ms);
    if (me->away_ms != MONO_NEVER && !me->away_notified)
        by = MIN_OF(by, me->away_ms + away_limit_ms(me));
    return MIN_OF(by, session_core_fence_due(me));
}

uint64_t session_core_fence_due(const struct session_core *me)
{
    return me->member ? fence_due(&me->fence) : MONO_NEVER;
}

/* ---- what the agent wants ---- */

static void begin(struct session_core *me, struct session_fx *fx,
                  struct request_state *r, uint64_t timeout_ms, struct run_msg msg,
                  struct now now)
{
    *r = (struct request_state){ true, now.mono_ms + timeout_ms };
    if (can_send(me) && msg.kind == MSG_LEAVE)
        core_send_leave(me, fx);
    else if (can_send(me))
        core_send(fx, msg);
    else if (me->link == LINK_NONE ||
             (me->link == LINK_PAUSED && me->away_ms == MONO_NEVER))
        core_dial(me, fx); /* A host that turned us away is there. */
}

static void core_on_request(struct session_core *me, const struct session_event *ev,
                            struct session_fx *fx)
{
    const struct rdzv_settings *s = &me->cfg.settings;

    if (ev->request == RDZV_EV_JOIN && me->granted && me->member) {
        notify_joined(me, fx);
    } else if (ev->request == RDZV_EV_JOIN) {
        me->granted = false;
        me->member = false;
        me->joins++;
        me->gathered = 0;
        me->names[0] = me->missing[0] = '\0';
        me->start_by_ms = MONO_NEVER;
        begin(me, fx, &me->join, s->join_ms, join_msg(me), ev->now);
    } else if (ev->request == RDZV_EV_CLOSE) {
        begin(me, fx, &me->close, s->close_ms, (struct run_msg){ .kind = MSG_CLOSE },
              ev->now);
    } else if (ev->request == RDZV_EV_LEAVE) {
        core_refused(me, fx, MUSTER_ECANCELED, span_str("leaving"));
        me->member = false;
        if (me->link == LINK_NONE) {
            me->leave.on = true;
            core_done(fx, &me->leave, RDZV_EV_LEAVE, 0, NULL);
        } else {
            me->leave_pending = true;
            begin(me, fx, &me->leave, s->close_ms,
                  (struct run_msg){ .kind = MSG_LEAVE }, ev->now);
        }
    }
}

static void take(struct session_core *me, const struct session_event *ev,
                 struct session_fx *fx)
{
    switch (ev->kind) {
    case SESSION_EV_ATTACH:
        if (me->link == LINK_NONE)
            core_dial(me, fx);
        return;
    case SESSION_EV_REQUEST:
        core_on_request(me, ev, fx);
        return;
    case SESSION_EV_UP:
        core_up(me, fx, ev->now);
        return;
    case SESSION_EV_DOWN:
        /* It may have broken while we were stopped, and then no heartbeat is due any
         * more by which the timer could tell. */
        forgive_absence(me, ev->now);
        core_down(me, ev, ev->now.mono_ms);
        return;
    case SESSION_EV_MSG:
        core_hear(me, ev, fx);
        return;
    case SESSION_EV_TIMER:
        core_timer(me, fx, ev->now);
        return;
    }
}

/* What holds between two steps, whatever the host said. */
static void check(const struct session_core *me)
{
    assert(!me->member || (me->rank >= 0 && me->rank < me->world));
    assert(!me->member || !me->join.on);
    assert(!me->join.on || me->link != LINK_NONE);
    assert(me->link != LINK_WELCOMED || me->away_ms == MONO_NEVER);
    assert(me->leaves_unanswered >= 0 && (me->leaves_unanswered == 0 || can_send(me)));
    assert(!me->leave_pending || !can_send(me));
    assert(me->pause_ms >= SESSION_FIRST_PAUSE_MS &&
           me->pause_ms <= SESSION_MAX_PAUSE_MS);
}

void session_core_step(struct session_core *me, const struct session_event *ev,
                       struct session_fx *fx)
{
    fx->count = 0;
    take(me, ev, fx);
    check(me);
}

/* ---- new and free ---- */

int session_core_new(const struct session_config *cfg, struct session_core **out,
                     struct muster_error *err)
{
    struct session_core *me;

    if (cfg->seats && (cfg->self.addr.n == 0 || cfg->self.addr.n > RDZV_MAX_ADDR))
        return err_set(err, MUSTER_EINVAL,
                       "a node's address has 1 to %u bytes, not %zu", RDZV_MAX_ADDR,
                       cfg->self.addr.n);
    me = mem_calloc(1, sizeof *me);
    if (!me)
        return err_nomem(err);
    me->cfg = *cfg;
    buf_init(&me->settings, WIRE_MAX);
    me->run_id = mem_strdup(cfg->run_id);
    me->addr = mem_strndup((const char *)cfg->self.addr.p, cfg->self.addr.n);
    if (!me->run_id || !me->addr ||
        rdzv_settings_print(&cfg->settings, &me->settings) < 0) {
        session_core_free(me);
        return err_nomem(err);
    }
    me->cfg.self.addr = span_str(me->addr);
    me->cfg.run_id = me->run_id;
    me->beat_ms = me->away_ms = MONO_NEVER;
    me->round = -1;
    me->pause_ms = SESSION_FIRST_PAUSE_MS;
    fence_init_beats(&me->fence, rdzv_session_interval_ms(&cfg->settings),
                     rdzv_session_dead_after_ms(&cfg->settings));
    me->fence.off |= cfg->settings.max_nodes == 1;
    *out = me;
    return 0;
}

void session_core_free(struct session_core *me)
{
    if (!me)
        return;
    buf_fini(&me->settings);
    mem_free(me->run_id);
    mem_free(me->addr);
    mem_free(me);
}

const struct seat_round *session_core_round(const struct session_core *me)
{
    return &me->told;
}

struct run_msg *session_core_hello(struct session_core *me)
{
    return &me->cfg.hello;
}

bool session_core_welcomed(const struct session_core *me)
{
    return is_welcomed(me);
}

int64_t session_core_waiting(const struct session_core *me)
{
    return me->waiting;
}

bool session_core_closed(const struct session_core *me)
{
    return me->closed;
}

bool session_core_progress(const struct session_core *me, struct rdzv_progress *out)
{
    if (!me->join.on)
        return false;
    *out = (struct rdzv_progress){
        .stage = !is_welcomed(me)               ? RDZV_AT_STORE
                 : me->join.by_ms == MONO_NEVER ? RDZV_AT_SPARE
                 : me->gathered == 0            ? RDZV_AT_NEXT
                                                : RDZV_AT_ROUND,
        .here = me->gathered,
        .min_nodes = me->cfg.settings.min_nodes,
        .max_nodes = me->cfg.settings.max_nodes,
        .by_ms = me->join.by_ms,
        .start_by_ms = me->start_by_ms,
        .dialled = true,
    };
    memcpy(out->names, me->names, sizeof out->names);
    memcpy(out->missing, me->missing, sizeof out->missing);
    return true;
}
