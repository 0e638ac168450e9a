/* member.c - see member.h. Effects, the connection, what the host says, what is due
 * with time, what the agent wants; then the step and the rest. */
#include "rendezvous/core/member.h"
#include "base/err.h"
#include "base/mem.h"
#include "rendezvous/core/state.h"
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

/* Between two attempts to reach the host, growing from the first to the second. */
#define MEMBER_FIRST_PAUSE_MS 20u
#define MEMBER_MAX_PAUSE_MS   1000u

#define WELCOME_MS 5000u /* a host that takes longer is not there */

enum link_state {
    LINK_NONE,    /* nobody wants anything yet */
    LINK_DIALING, /* DIAL is under way */
    LINK_UP,      /* HELLO is sent */
    LINK_HELD,    /* and WELCOME has come */
    LINK_PAUSED,  /* until redial_ms */
};

struct request_state {
    bool on;
    uint64_t by_ms;
};

struct member {
    char *run_id;        /* owned */
    char *addr;          /* owned; cfg.self.addr points to it */
    struct buf settings; /* as printed */
    struct member_config cfg;
    enum link_state link;
    uint64_t redial_ms, pause_ms;
    uint64_t beat_ms;  /* when the next ALIVE is due */
    uint64_t heard_ms; /* when the host last said something on this connection */
    uint64_t away_ms;  /* since when the host is away; MONO_NEVER: it is here */
    bool away_notified;
    int64_t joins;
    struct request_state join, leave, close;
    int64_t lefts_due;  /* LEAVEs said on this connection without an answer yet */
    bool leave_pending; /* a LEAVE that the host has not had: it may hold our place */
    bool member;
    int64_t round, rank, world;
    int64_t waiting;
    int64_t gathered;              /* have a place in the round that we wait for, */
    char names[RDZV_NAMES_SIZE];   /* who they are, */
    char missing[RDZV_NAMES_SIZE]; /* who was there before and is not now, */
    uint64_t start_by_ms;          /* and when it starts without them */
    bool closed;
    char rank0[RDZV_MAX_ADDR + 1]; /* rank 0 */
    int64_t rank0_pid, rank0_local_id;
    int64_t torch_nodes;
    bool all_read;
    char text[1200];
};

/* ---- effects ---- */

static void member_send(struct member_fx *fx, struct coord_msg msg)
{
    assert(fx->count < MEMBER_FX_MAX);
    fx->at[fx->count++] = (struct member_effect){ .kind = MEMBER_SEND, .msg = msg };
}

static void member_notify(struct member_fx *fx, struct rdzv_effect notice)
{
    assert(fx->count < MEMBER_FX_MAX);
    fx->at[fx->count++] =
        (struct member_effect){ .kind = MEMBER_NOTIFY, .notice = notice };
}

static void member_news(struct member *g, struct member_fx *fx, enum rdzv_news news,
                        int code, struct span text)
{
    (void)snprintf(g->text, sizeof g->text, "%.*s", (int)MIN_OF(text.n, 1100),
                   (const char *)text.p);
    member_notify(fx, (struct rdzv_effect){ .kind = RDZV_FX_NEWS,
                                            .news = news,
                                            .count = g->waiting,
                                            .code = code,
                                            .text = g->text });
}

static void member_done(struct member_fx *fx, struct request_state *w,
                        enum rdzv_event_kind request, int code, const char *text)
{
    if (!w->on)
        return;
    w->on = false;
    member_notify(
        fx, (struct rdzv_effect){
                .kind = RDZV_FX_DONE, .request = request, .code = code, .text = text });
}

static void member_refused(struct member *g, struct member_fx *fx, int code,
                           struct span text)
{
    if (!g->join.on)
        return;
    g->join.on = false;
    (void)snprintf(g->text, sizeof g->text, "%.*s", (int)MIN_OF(text.n, 1100),
                   (const char *)text.p);
    member_notify(fx, (struct rdzv_effect){
                          .kind = RDZV_FX_REFUSED, .code = code, .text = g->text });
}

/* ---- the connection to the host: made, lost, made again ---- */

static bool member_held(const struct member *g)
{
    return g->link == LINK_HELD;
}

static void member_dial(struct member *g, struct member_fx *fx)
{
    assert(g->link != LINK_HELD && fx->count < MEMBER_FX_MAX);
    g->link = LINK_DIALING;
    fx->at[fx->count++] = (struct member_effect){ .kind = MEMBER_DIAL };
}

static void hello(struct member *g, struct member_fx *fx)
{
    member_send(fx, (struct coord_msg){
                        .kind = COORD_HELLO,
                        .run_id = span_str(g->run_id),
                        .addr = g->cfg.self.addr,
                        .pid = g->cfg.self.pid,
                        .local_id = g->cfg.self.local_id,
                        .nonce = g->cfg.nonce,
                        .settings = buf_span(&g->settings),
                        .order = g->cfg.order,
                        .rank_order_key = g->cfg.rank_order_key,
                        .grace_ms = g->cfg.grace_ms,
                        .round = g->round,
                        .rank = g->rank,
                        .world = g->member ? g->world : 0,
                    });
}

static void member_goodbye(struct member *g, struct member_fx *fx)
{
    g->leave_pending = !member_held(g);
    if (g->leave_pending)
        return;
    g->lefts_due++;
    member_send(fx, (struct coord_msg){ .kind = COORD_LEAVE });
}

/* Says everything that has no answer yet, in an order that makes sense to the host. */
static void member_send_again(struct member *g, struct member_fx *fx)
{
    if (g->leave.on || g->leave_pending)
        member_goodbye(g, fx);
    if (g->close.on)
        member_send(fx, (struct coord_msg){ .kind = COORD_CLOSE });
    if (g->join.on)
        member_send(fx, (struct coord_msg){ .kind = COORD_JOIN, .count = g->joins });
}

static void member_up(struct member *g, struct member_fx *fx, struct now now)
{
    assert(g->link != LINK_UP && g->link != LINK_HELD);
    g->link = LINK_UP;
    g->heard_ms = now.mono_ms;
    g->beat_ms = now.mono_ms + rdzv_interval_ms(&g->cfg.settings);
    hello(g, fx);
}

/* The connection is gone; since_ms: since when nothing came over it. */
static void member_down(struct member *g, const struct member_event *ev,
                        uint64_t since_ms)
{
    /* A host that hangs up at our HELLO counts as one that cannot be reached. */
    if (g->link == LINK_HELD)
        g->pause_ms = MEMBER_FIRST_PAUSE_MS;
    else
        g->pause_ms = MIN_OF(g->pause_ms * 2, MEMBER_MAX_PAUSE_MS);
    g->link = LINK_PAUSED;
    g->leave_pending = g->leave_pending || g->lefts_due > 0;
    g->lefts_due = 0;
    if (g->join.by_ms == MONO_NEVER) /* a spare, until the host says so again */
        g->join.by_ms = ev->now.mono_ms + g->cfg.settings.join_ms;
    g->redial_ms = ev->now.mono_ms + g->pause_ms;
    g->beat_ms = MONO_NEVER;
    if (g->away_ms == MONO_NEVER) {
        g->away_ms = since_ms;
        trace(g->cfg.trace, TRACE_WARN,
              "the host of the rendezvous '%s' is away: %s; trying again", g->run_id,
              ev->text ? ev->text : "the connection broke");
    }
    (void)snprintf(g->text, sizeof g->text, "%.1000s",
                   ev->text ? ev->text : "the connection broke");
}

/* ---- what the host says ---- */

static void on_joined(struct member *g, struct member_fx *fx, const struct coord_msg *m)
{
    if (!g->join.on)
        return; /* We gave up meanwhile, and have said so or shall. */
    if (m->world < 1 || m->rank < 0 || m->rank >= m->world ||
        m->addr.n > RDZV_MAX_ADDR) {
        (void)snprintf(g->text, sizeof g->text,
                       "the host told rank %" PRId64 " of %" PRId64
                       " nodes, which cannot be",
                       m->rank, m->world);
        g->join.on = false;
        member_notify(fx, (struct rdzv_effect){ .kind = RDZV_FX_REFUSED,
                                                .code = MUSTER_EPROTO,
                                                .text = g->text });
        return;
    }
    g->join.on = false;
    g->member = true;
    g->waiting = 0;
    g->round = m->round;
    g->rank = m->rank;
    g->world = m->world;
    if (m->addr.n)
        memcpy(g->rank0, m->addr.p, m->addr.n);
    g->rank0[m->addr.n] = '\0';
    g->rank0_pid = m->pid;
    g->rank0_local_id = m->local_id;
    g->torch_nodes = MAX_OF(m->count, 0);
    g->all_read = m->count == COORD_ALL_READ;
    member_notify(fx, (struct rdzv_effect){ .kind = RDZV_FX_JOINED,
                                            .round = m->round,
                                            .rank = m->rank,
                                            .world = m->world });
}

static void member_on_closed(struct member *g, struct member_fx *fx)
{
    const bool known = g->closed;

    g->closed = true;
    member_done(fx, &g->close, RDZV_EV_CLOSE, 0, NULL);
    member_refused(g, fx, MUSTER_ECLOSED,
                   span_str("the rendezvous is closed: the run has ended; use a "
                            "new run id"));
    if (!known && g->member)
        member_news(g, fx, RDZV_NEWS_CLOSED, 0, span_str("the run was closed"));
}

static void on_gathered(struct member *g, const struct coord_msg *m, struct now now)
{
    g->gathered = m->count;
    g->start_by_ms =
        m->grace_ms > MONO_NEVER - now.mono_ms ? MONO_NEVER : now.mono_ms + m->grace_ms;
    if (!m->text.n)
        return;
    names_copy(g->names, m->text);
    names_copy(g->missing, m->addr);
}

/* The HELLO itself is refused: a later try needs a new one. A node that is not a member
 * has no place to leave, and cannot close the run. */
static void on_turned_away(struct member *g, struct member_fx *fx,
                           const struct coord_msg *m, struct now now)
{
    g->link = LINK_PAUSED;
    g->redial_ms = now.mono_ms + MEMBER_MAX_PAUSE_MS;
    g->away_ms = MONO_NEVER;
    (void)snprintf(g->text, sizeof g->text, "%.*s", (int)MIN_OF(m->text.n, 1100),
                   (const char *)m->text.p);
    member_done(fx, &g->leave, RDZV_EV_LEAVE, 0, NULL);
    member_done(fx, &g->close, RDZV_EV_CLOSE, m->code < 0 ? m->code : MUSTER_EPROTO,
                g->text);
}

/* What was said before the host heard our LEAVE is about the place that we gave up, not
 * about the one that we may have asked for since: its LEFT comes after it. */
static bool is_stale(const struct member *g, enum coord_kind kind)
{
    return g->lefts_due > 0 && kind != COORD_LEFT && kind != COORD_CLOSED;
}

static void member_hear(struct member *g, const struct member_event *ev,
                        struct member_fx *fx)
{
    const struct coord_msg *m = ev->msg;

    g->heard_ms = ev->now.mono_ms;
    if (is_stale(g, m->kind))
        return;
    switch (m->kind) {
    case COORD_WELCOME:
        g->link = LINK_HELD;
        if (g->away_ms != MONO_NEVER)
            trace(g->cfg.trace, TRACE_INFO,
                  "the host of the rendezvous '%s' is back after %" PRIu64 " ms",
                  g->run_id, ev->now.mono_ms - g->away_ms);
        g->away_ms = MONO_NEVER;
        g->away_notified = false;
        member_send_again(g, fx);
        return;
    case COORD_JOINED:
        on_joined(g, fx, m);
        return;
    case COORD_REFUSED:
        member_refused(g, fx, m->code < 0 ? m->code : MUSTER_EPROTO, m->text);
        if (g->link == LINK_UP)
            on_turned_away(g, fx, m, ev->now);
        return;
    case COORD_LEFT:
        g->member = false;
        g->lefts_due = MAX_OF(g->lefts_due - 1, 0);
        member_done(fx, &g->leave, RDZV_EV_LEAVE, 0, NULL);
        return;
    case COORD_CLOSED:
        member_on_closed(g, fx);
        return;
    case COORD_GATHERED:
        on_gathered(g, m, ev->now);
        return;
    case COORD_WAITING:
        g->waiting = m->count == COORD_MEMBER_WAITS ? 1 : m->count;
        if (m->count > 0 && g->member)
            member_news(g, fx, RDZV_NEWS_WAITING, 0, span_str(""));
        if (m->count == COORD_MEMBER_WAITS && g->member)
            member_news(g, fx, RDZV_NEWS_MOVED_ON, 0,
                        span_str("a member of the round waits for the next one"));
        return;
    case COORD_SPARE:
        /* Like torch's, a spare waits for as long as the run goes on; once it is none,
         * its time begins anew. */
        g->join.by_ms =
            m->count ? MONO_NEVER : ev->now.mono_ms + g->cfg.settings.join_ms;
        return;
    case COORD_LOST:
        if (g->member)
            member_news(g, fx, RDZV_NEWS_LOST, 0, m->text);
        return;
    case COORD_EVICTED:
        if (g->member)
            member_news(g, fx, RDZV_NEWS_EVICTED, 0, m->text);
        g->member = false;
        return;
    case COORD_HELLO:
    case COORD_JOIN:
    case COORD_LEAVE:
    case COORD_CLOSE:
    case COORD_ALIVE:
    case COORD_KIND_COUNT:
        return; /* A host does not say such things; nothing depends on it. */
    }
}

/* ---- what is due with time ---- */

static bool due(const struct request_state *w, struct now now)
{
    return w->on && now.mono_ms >= w->by_ms;
}

static void time_out(struct member *g, struct member_fx *fx, struct now now)
{
    const char *away = g->away_ms == MONO_NEVER ? "" : "; its host is away";
    char text[300];

    if (due(&g->join, now)) {
        (void)snprintf(text, sizeof text,
                       "could not join the rendezvous '%.100s' within %" PRIu64
                       " s (join_timeout): %" PRId64 " node(s) of at least %" PRId64
                       " were there%s",
                       g->run_id, g->cfg.settings.join_ms / 1000, g->gathered,
                       g->cfg.settings.min_nodes, away);
        member_refused(g, fx, MUSTER_ETIMEDOUT, span_str(text));
        member_goodbye(g, fx);
    }
    if (g->join.on && g->cfg.away_ms && g->away_ms != MONO_NEVER &&
        now.mono_ms - g->away_ms >= g->cfg.away_ms) {
        (void)snprintf(text, sizeof text,
                       "the host of the rendezvous '%.100s' has been away for %" PRIu64
                       " s (read_timeout); it ended, or cannot be reached",
                       g->run_id, g->cfg.away_ms / 1000);
        member_refused(g, fx, MUSTER_ECONN, span_str(text));
        member_goodbye(g, fx);
    }
    if (due(&g->leave, now))
        member_done(fx, &g->leave, RDZV_EV_LEAVE, MUSTER_ETIMEDOUT,
                    "the host did not answer the goodbye in time");
    if (due(&g->close, now))
        member_done(
            fx, &g->close, RDZV_EV_CLOSE, MUSTER_ETIMEDOUT,
            "the host did not confirm within close_timeout that the run is closed");
}

/* A member judges its host as it would any other: silent for so long is dead. */
static uint64_t away_limit_ms(const struct member *g)
{
    return MAX_OF(rdzv_dead_after_ms(&g->cfg.settings), 1000u);
}

/* A HELLO is answered at once. After that the host answers each ALIVE; it has been
 * silent for too long while it has not yet given us up, so that we can come back in
 * time. */
static uint64_t silent_at_ms(const struct member *g)
{
    const uint64_t dead_ms = rdzv_dead_after_ms(&g->cfg.settings);
    const uint64_t interval_ms = rdzv_interval_ms(&g->cfg.settings);

    if (g->link == LINK_UP)
        return g->heard_ms + MAX_OF(MIN_OF(dead_ms, WELCOME_MS), 1000u);
    if (g->link != LINK_HELD || !g->cfg.echoes)
        return MONO_NEVER;
    return g->heard_ms + MAX_OF(dead_ms - MIN_OF(interval_ms, dead_ms), interval_ms);
}

static void hang_up_if_silent(struct member *g, struct member_fx *fx, struct now now)
{
    const struct member_event down = { .kind = MEMBER_DOWN,
                                       .now = now,
                                       .code = MUSTER_EHANGUP,
                                       .text = "it does not answer" };

    if (now.mono_ms < silent_at_ms(g))
        return;
    assert(fx->count < MEMBER_FX_MAX);
    fx->at[fx->count++] = (struct member_effect){ .kind = MEMBER_HANG_UP };
    member_down(g, &down, g->heard_ms);
}

static void member_timer(struct member *g, struct member_fx *fx, struct now now)
{
    time_out(g, fx, now);
    hang_up_if_silent(g, fx, now);
    if (g->link == LINK_PAUSED && now.mono_ms >= g->redial_ms)
        member_dial(g, fx);
    if (member_held(g) && now.mono_ms >= g->beat_ms) {
        g->beat_ms = now.mono_ms + rdzv_interval_ms(&g->cfg.settings);
        member_send(fx, (struct coord_msg){ .kind = COORD_ALIVE });
    }
    if (g->away_ms != MONO_NEVER && !g->away_notified &&
        now.mono_ms - g->away_ms >= away_limit_ms(g)) {
        g->away_notified = true;
        if (g->member)
            member_news(
                g, fx, RDZV_NEWS_BACKEND, MUSTER_ECONN,
                span_str("the host of the rendezvous has been away for as long as "
                         "a node may be silent (keep_alive_interval * "
                         "keep_alive_max_attempt)"));
    }
}

uint64_t member_deadline(const struct member *g)
{
    uint64_t by = MONO_NEVER;

    if (g->join.on)
        by = MIN_OF(by, g->join.by_ms);
    if (g->join.on && g->cfg.away_ms && g->away_ms != MONO_NEVER)
        by = MIN_OF(by, g->away_ms + g->cfg.away_ms);
    if (g->leave.on)
        by = MIN_OF(by, g->leave.by_ms);
    if (g->close.on)
        by = MIN_OF(by, g->close.by_ms);
    if (g->link == LINK_PAUSED)
        by = MIN_OF(by, g->redial_ms);
    by = MIN_OF(by, silent_at_ms(g));
    if (member_held(g))
        by = MIN_OF(by, g->beat_ms);
    if (g->away_ms != MONO_NEVER && !g->away_notified)
        by = MIN_OF(by, g->away_ms + away_limit_ms(g));
    return by;
}

/* ---- what the agent wants ---- */

static void begin(struct member *g, struct member_fx *fx, struct request_state *w,
                  uint64_t timeout_ms, struct coord_msg msg, struct now now)
{
    *w = (struct request_state){ true, now.mono_ms + timeout_ms };
    if (member_held(g) && msg.kind == COORD_LEAVE)
        member_goodbye(g, fx);
    else if (member_held(g))
        member_send(fx, msg);
    else if (g->link == LINK_NONE ||
             (g->link == LINK_PAUSED && g->away_ms == MONO_NEVER))
        member_dial(g, fx); /* A host that turned us away is there: ask it at once. */
}

static void member_on_request(struct member *g, const struct member_event *ev,
                              struct member_fx *fx)
{
    const struct rdzv_settings *s = &g->cfg.settings;

    if (ev->request == RDZV_EV_JOIN) {
        g->member = false;
        g->joins++;
        g->gathered = 0;
        g->names[0] = g->missing[0] = '\0';
        g->start_by_ms = MONO_NEVER;
        begin(g, fx, &g->join, s->join_ms,
              (struct coord_msg){ .kind = COORD_JOIN, .count = g->joins }, ev->now);
    } else if (ev->request == RDZV_EV_CLOSE) {
        begin(g, fx, &g->close, s->close_ms, (struct coord_msg){ .kind = COORD_CLOSE },
              ev->now);
    } else if (ev->request == RDZV_EV_LEAVE) {
        member_refused(g, fx, MUSTER_ECANCELED, span_str("leaving"));
        g->member = false;
        if (g->link == LINK_NONE) {
            g->leave.on = true;
            member_done(fx, &g->leave, RDZV_EV_LEAVE, 0, NULL);
        } else {
            g->leave_pending = true;
            begin(g, fx, &g->leave, s->close_ms,
                  (struct coord_msg){ .kind = COORD_LEAVE }, ev->now);
        }
    }
}

static void take(struct member *g, const struct member_event *ev, struct member_fx *fx)
{
    switch (ev->kind) {
    case MEMBER_REQUEST:
        member_on_request(g, ev, fx);
        return;
    case MEMBER_UP:
        member_up(g, fx, ev->now);
        return;
    case MEMBER_DOWN:
        member_down(g, ev, ev->now.mono_ms);
        return;
    case MEMBER_MSG:
        member_hear(g, ev, fx);
        return;
    case MEMBER_TIMER:
        member_timer(g, fx, ev->now);
        return;
    }
}

/* What holds between two steps, whatever the host said. */
static void check(const struct member *g)
{
    assert(!g->member || (g->rank >= 0 && g->rank < g->world));
    assert(!g->member || !g->join.on);
    assert(!g->join.on || g->link != LINK_NONE);
    assert(g->link != LINK_HELD || g->away_ms == MONO_NEVER);
    assert(g->lefts_due >= 0 && (g->lefts_due == 0 || g->link == LINK_HELD));
    assert(!g->leave_pending || g->link != LINK_HELD);
    assert(g->pause_ms >= MEMBER_FIRST_PAUSE_MS && g->pause_ms <= MEMBER_MAX_PAUSE_MS);
}

void member_step(struct member *g, const struct member_event *ev, struct member_fx *fx)
{
    fx->count = 0;
    take(g, ev, fx);
    check(g);
}

/* ---- new and free ---- */

int member_new(const struct member_config *cfg, struct member **out,
               struct muster_error *err)
{
    struct member *g;

    if (cfg->self.addr.n == 0 || cfg->self.addr.n > RDZV_MAX_ADDR)
        return err_set(err, MUSTER_EINVAL,
                       "a node's address has 1 to %u bytes, not %zu", RDZV_MAX_ADDR,
                       cfg->self.addr.n);
    g = mem_calloc(1, sizeof *g);
    if (!g)
        return err_nomem(err);
    g->cfg = *cfg;
    buf_init(&g->settings, COORD_MAX);
    g->run_id = mem_strdup(cfg->run_id);
    g->addr = mem_strndup((const char *)cfg->self.addr.p, cfg->self.addr.n);
    if (!g->run_id || !g->addr ||
        rdzv_settings_print(&cfg->settings, &g->settings) < 0) {
        member_free(g);
        return err_nomem(err);
    }
    g->cfg.self.addr = span_str(g->addr);
    g->cfg.run_id = g->run_id;
    g->beat_ms = g->away_ms = MONO_NEVER;
    g->round = -1;
    g->pause_ms = MEMBER_FIRST_PAUSE_MS;
    *out = g;
    return 0;
}

void member_free(struct member *g)
{
    if (!g)
        return;
    buf_fini(&g->settings);
    mem_free(g->run_id);
    mem_free(g->addr);
    mem_free(g);
}

int64_t member_waiting(const struct member *g)
{
    return g->waiting;
}

bool member_closed(const struct member *g)
{
    return g->closed;
}

struct rdzv_node member_rank0(const struct member *g)
{
    return (struct rdzv_node){ span_str(g->rank0), g->rank0_pid, g->rank0_local_id };
}

int64_t member_torch_nodes(const struct member *g)
{
    return g->torch_nodes;
}

bool member_all_read(const struct member *g)
{
    return g->all_read;
}

bool member_progress(const struct member *g, struct rdzv_progress *out)
{
    if (!g->join.on)
        return false;
    *out = (struct rdzv_progress){
        .stage = !member_held(g)               ? RDZV_AT_STORE
                 : g->join.by_ms == MONO_NEVER ? RDZV_AT_SPARE
                 : g->gathered == 0            ? RDZV_AT_NEXT
                                               : RDZV_AT_ROUND,
        .here = g->gathered,
        .min_nodes = g->cfg.settings.min_nodes,
        .max_nodes = g->cfg.settings.max_nodes,
        .by_ms = g->join.by_ms,
        .start_by_ms = g->start_by_ms,
        .dialled = true,
    };
    memcpy(out->names, g->names, sizeof out->names);
    memcpy(out->missing, g->missing, sizeof out->missing);
    return true;
}
