/* guest.c - a node of a hosted rendezvous; see guest.h. */
#include "rdzv/guest.h"

#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "rdzv/guest_int.h"

/* ---- effects ---- */

void guest_send(struct rdzv_guest_fx *fx, struct hosted_msg msg)
{
    fx->at[fx->count++] =
        (struct rdzv_guest_effect){ .kind = RDZV_GUEST_SEND, .msg = msg };
}

void guest_tell(struct rdzv_guest_fx *fx, struct rdzv_effect told)
{
    fx->at[fx->count++] =
        (struct rdzv_guest_effect){ .kind = RDZV_GUEST_TELL, .told = told };
}

void guest_news(struct rdzv_guest *g, struct rdzv_guest_fx *fx, enum rdzv_news news,
                int code, struct span text)
{
    (void)snprintf(g->text, sizeof g->text, "%.*s", (int)MIN_OF(text.n, 1100),
                   (const char *)text.p);
    guest_tell(fx, (struct rdzv_effect){ .kind = RDZV_FX_NEWS,
                                         .news = news,
                                         .count = g->waiting,
                                         .code = code,
                                         .text = g->text });
}

void guest_done(struct rdzv_guest_fx *fx, struct wish_state *w,
                enum rdzv_event_kind wish, int code, const char *text)
{
    if (!w->on)
        return;
    w->on = false;
    guest_tell(fx,
               (struct rdzv_effect){
                   .kind = RDZV_FX_DONE, .wish = wish, .code = code, .text = text });
}

void guest_refused(struct rdzv_guest *g, struct rdzv_guest_fx *fx, int code,
                   struct span text)
{
    if (!g->join.on)
        return;
    g->join.on = false;
    (void)snprintf(g->text, sizeof g->text, "%.*s", (int)MIN_OF(text.n, 1100),
                   (const char *)text.p);
    guest_tell(fx, (struct rdzv_effect){
                       .kind = RDZV_FX_REFUSED, .code = code, .text = g->text });
}

/* ---- what the agent wants ---- */

static void begin(struct rdzv_guest *g, struct rdzv_guest_fx *fx, struct wish_state *w,
                  uint64_t timeout_ms, struct hosted_msg msg, struct now now)
{
    *w = (struct wish_state){ true, now.mono_ms + timeout_ms };
    if (guest_held(g) && msg.kind == HOSTED_LEAVE)
        guest_goodbye(g, fx);
    else if (guest_held(g))
        guest_send(fx, msg);
    else if (g->link == LINK_NONE ||
             (g->link == LINK_PAUSED && g->away_ms == MONO_NEVER))
        guest_dial(g, fx); /* A host that turned us away is there: ask it at once. */
}

static void on_wish(struct rdzv_guest *g, const struct rdzv_guest_event *ev,
                    struct rdzv_guest_fx *fx)
{
    const struct rdzv_settings *s = &g->cfg.settings;

    if (ev->wish == RDZV_EV_JOIN) {
        g->member = false;
        g->joins++;
        g->gathered = 0;
        g->names[0] = g->missing[0] = '\0';
        g->start_by_ms = MONO_NEVER;
        begin(g, fx, &g->join, s->join_ms,
              (struct hosted_msg){ .kind = HOSTED_JOIN, .count = g->joins }, ev->now);
    } else if (ev->wish == RDZV_EV_CLOSE) {
        begin(g, fx, &g->close, s->close_ms,
              (struct hosted_msg){ .kind = HOSTED_CLOSE }, ev->now);
    } else if (ev->wish == RDZV_EV_LEAVE) {
        guest_refused(g, fx, MUSTER_ECANCELED, span_str("leaving"));
        g->member = false;
        if (g->link == LINK_NONE) {
            g->leave.on = true;
            guest_done(fx, &g->leave, RDZV_EV_LEAVE, 0, NULL);
        } else {
            g->owed = true;
            begin(g, fx, &g->leave, s->close_ms,
                  (struct hosted_msg){ .kind = HOSTED_LEAVE }, ev->now);
        }
    }
}

void rdzv_guest_step(struct rdzv_guest *g, const struct rdzv_guest_event *ev,
                     struct rdzv_guest_fx *fx)
{
    fx->count = 0;
    switch (ev->kind) {
    case RDZV_GUEST_WISH:
        on_wish(g, ev, fx);
        return;
    case RDZV_GUEST_UP:
        guest_up(g, fx, ev->now);
        return;
    case RDZV_GUEST_DOWN:
        guest_down(g, ev);
        return;
    case RDZV_GUEST_MSG:
        guest_hear(g, ev, fx);
        return;
    case RDZV_GUEST_TIMER:
        guest_timer(g, fx, ev->now);
        return;
    }
}

/* ---- new and free ---- */

int rdzv_guest_new(const struct rdzv_guest_config *cfg, struct rdzv_guest **out,
                   struct muster_error *err)
{
    struct rdzv_guest *g;

    if (cfg->self.addr.n == 0 || cfg->self.addr.n > RDZV_MAX_ADDR)
        return err_set(err, MUSTER_EINVAL,
                       "a node's address has 1 to %u bytes, not %zu", RDZV_MAX_ADDR,
                       cfg->self.addr.n);
    g = mem_calloc(1, sizeof *g);
    if (!g)
        return err_nomem(err);
    g->cfg = *cfg;
    buf_init(&g->settings, HOSTED_MAX);
    g->run_id = mem_strdup(cfg->run_id);
    g->addr = mem_strndup((const char *)cfg->self.addr.p, cfg->self.addr.n);
    if (!g->run_id || !g->addr ||
        rdzv_settings_print(&cfg->settings, &g->settings) < 0) {
        rdzv_guest_free(g);
        return err_nomem(err);
    }
    g->cfg.self.addr = span_str(g->addr);
    g->cfg.run_id = g->run_id;
    g->beat_ms = g->away_ms = MONO_NEVER;
    g->round = -1;
    g->pause_ms = GUEST_FIRST_PAUSE_MS;
    *out = g;
    return 0;
}

void rdzv_guest_free(struct rdzv_guest *g)
{
    if (!g)
        return;
    buf_fini(&g->settings);
    mem_free(g->run_id);
    mem_free(g->addr);
    mem_free(g);
}

int64_t rdzv_guest_waiting(const struct rdzv_guest *g)
{
    return g->waiting;
}

bool rdzv_guest_closed(const struct rdzv_guest *g)
{
    return g->closed;
}

bool rdzv_guest_up(const struct rdzv_guest *g)
{
    return g->link == LINK_HELD;
}

struct rdzv_node rdzv_guest_zero(const struct rdzv_guest *g)
{
    return (struct rdzv_node){ span_str(g->zero), g->zero_pid, g->zero_local_id };
}

int64_t rdzv_guest_strangers(const struct rdzv_guest *g)
{
    return g->strangers;
}

bool rdzv_guest_progress(const struct rdzv_guest *g, struct rdzv_progress *out)
{
    if (!g->join.on)
        return false;
    *out = (struct rdzv_progress){
        .stage = !guest_held(g)                ? RDZV_AT_STORE
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
