/* agent.c - how an agent reacts to its rendezvous. It joins and runs; when a node comes
 * or is lost, it stops its workers and joins again; when the run is closed, it ends. */
#include "sim/sim.h"

/* ---- names for the transcript ---- */

static const char *news_name(enum rdzv_news news)
{
    switch (news) {
#define NAME(name, text)                                                               \
    case RDZV_NEWS_##name:                                                             \
        return #name;
        RDZV_NEWS_KINDS(NAME)
#undef NAME
    }
    return "?";
}

static const char *event_name(enum rdzv_event_kind kind)
{
    switch (kind) {
#define NAME(name)                                                                     \
    case RDZV_EV_##name:                                                               \
        return #name;
        RDZV_EVENTS(NAME)
#undef NAME
    }
    return "?";
}

void sim_do_at(struct sim_node *n, uint64_t t, enum sim_todo todo)
{
    struct sim_event *ev = sim_at(n->sim, t, SIM_EV_AGENT);

    ev->node = n->index;
    ev->boot = n->boot;
    ev->what = (int)todo;
}

/* Does it after a while, since stopping workers takes time. */
static void defer(struct sim_node *n, uint64_t least_us, enum sim_todo todo)
{
    const uint64_t more = n->sim->react_us;

    if (n->sim->autopilot)
        sim_do_at(n, n->sim->t + least_us + (more ? rng_below(&n->rng, more) : 0),
                  todo);
}

static void start(struct sim_node *n)
{
    if (n->alive)
        return;
    n->boot++;
    n->alive = true;
    n->pid++; /* A new process is a different node to the others. */
    n->wants_in = true;
    n->stopped_t = 0;
    n->timer_t = SIM_NEVER;
    n->round = -1;
    n->epoch = n->sim->host.epoch;
    n->calm_from_t = n->sim->t;
    n->driver->start(n);
    sim_do(n, SIM_DO_JOIN);
}

static void join(struct sim_node *n)
{
    if (!n->alive || n->life == SIM_JOINING || !n->wants_in)
        return;
    sim_check_gone(n);
    n->life = SIM_JOINING;
    n->spare = false;
    n->join_t = n->sim->t;
    n->join_by_t = n->sim->t + n->sim->cfg.settings.join_ms * 1000;
    sim_log(n->sim, n, "wants to JOIN");
    n->driver->request(n, RDZV_EV_JOIN);
}

void sim_kill(struct sim_node *n)
{
    if (!n->alive)
        return;
    sim_check_gone(n);
    n->life = SIM_OFF;
    n->driver->stop(n);
    n->alive = false;
    n->boot++;
}

void sim_do(struct sim_node *n, enum sim_todo todo)
{
    switch (todo) {
    case SIM_DO_START:
        start(n);
        return;
    case SIM_DO_JOIN:
        join(n);
        return;
    case SIM_DO_FAIL:
        if (n->life == SIM_RUNNING && n->round == n->fail_round)
            join(n);
        return;
    case SIM_DO_LEAVE:
        if (!n->alive || n->kind == SIM_TORCH)
            return;
        sim_check_gone(n);
        n->life = SIM_LEAVING;
        n->wants_in = false;
        sim_log(n->sim, n, "wants to LEAVE");
        n->driver->request(n, RDZV_EV_LEAVE);
        return;
    case SIM_DO_CLOSE:
        if (!n->alive)
            return;
        n->closing = true;
        sim_log(n->sim, n, "wants to CLOSE");
        n->driver->request(n, RDZV_EV_CLOSE);
        return;
    case SIM_DO_END:
        if (n->alive)
            sim_log(n->sim, n, "ends");
        n->wants_in = false;
        sim_kill(n);
        return;
    }
}

static void agent_on_refused(struct sim_node *n, const struct rdzv_effect *e)
{
    sim_log(n->sim, n, "REFUSED %s: %s", muster_code_name(e->code), e->text);
    if (n->life == SIM_JOINING)
        n->life = SIM_OFF;
    if (e->code == MUSTER_ECLOSED || e->code == MUSTER_EGRACEFUL) {
        n->wants_in = false;
        defer(n, 0, SIM_DO_END);
    } else if (e->code == MUSTER_EEXIST || e->code == MUSTER_ESTATE ||
               e->code == MUSTER_EPROTO || e->code == MUSTER_EINVAL) {
        sim_fail(n->sim, "%s: %s", n->name, e->text);
    } else if (n->kind == SIM_TORCH && e->code == MUSTER_ECONN) {
        sim_kill(n); /* torchrun ends, and whoever runs the job starts it again. */
        defer(n, 1000000, SIM_DO_START);
    } else if (n->wants_in) {
        defer(n, 1000000, SIM_DO_JOIN);
    }
}

static void agent_on_news(struct sim_node *n, const struct rdzv_effect *e)
{
    sim_log(n->sim, n, "NEWS %s%s%s", news_name(e->news), e->text ? ": " : "",
            e->text ? e->text : "");
    n->lost_since_t = SIM_NEVER;
    switch (e->news) {
    case RDZV_NEWS_WAITING:
    case RDZV_NEWS_LOST:
    case RDZV_NEWS_EVICTED:
        if (n->life == SIM_RUNNING) {
            n->fail_round = n->round;
            defer(n, 100000, SIM_DO_FAIL);
        }
        return;
    case RDZV_NEWS_MOVED_ON:
    case RDZV_NEWS_DESERTED:
        return;
    case RDZV_NEWS_CLOSED:
        n->wants_in = false;
        defer(n, 1000000, SIM_DO_END);
        return;
    case RDZV_NEWS_CUT_OFF:
    case RDZV_NEWS_BACKEND:
        if (n->kind != SIM_TORCH)
            return;
        sim_kill(n);
        defer(n, 1000000, SIM_DO_START);
        return;
    }
}

void sim_notified(struct sim_node *n, const struct rdzv_effect *e)
{
    switch (e->kind) {
    case RDZV_FX_JOINED:
        sim_log(n->sim, n, "JOINED round %lld as rank %lld of %lld",
                (long long)e->round, (long long)e->rank, (long long)e->world);
        sim_check_joined(n, e);
        n->life = SIM_RUNNING;
        n->round = e->round;
        n->round_epoch = n->epoch;
        n->rank = e->rank;
        n->world = e->world;
        n->lost_since_t = SIM_NEVER;
        return;
    case RDZV_FX_REFUSED:
        agent_on_refused(n, e);
        return;
    case RDZV_FX_DONE:
        sim_log(n->sim, n, "DONE %s%s%s", event_name(e->request),
                e->code ? ", but " : "", e->code ? e->text : "");
        if (e->request == RDZV_EV_LEAVE && n->life == SIM_LEAVING) {
            n->life = SIM_OFF;
            defer(n, 0, SIM_DO_END);
        }
        if (e->request == RDZV_EV_CLOSE && e->code == 0) {
            n->wants_in = false;
            defer(n, 2000000, SIM_DO_END);
        }
        return;
    case RDZV_FX_NEWS:
        agent_on_news(n, e);
        return;
    case RDZV_FX_READ_STATE:
    case RDZV_FX_WRITE_STATE:
    case RDZV_FX_WATCH:
        return;
    }
}
