/* answer.c - how wishes end: JOINED, REFUSED, DONE. */
#include "base/err.h"
#include "rdzv/rdzv_int.h"

void rdzv_done(struct rdzv *r, struct rdzv_wish *wish, enum rdzv_event_kind kind,
               int code, const char *text, struct rdzv_fx *fx)
{
    struct rdzv_effect *e;

    if (!wish->on)
        return;
    wish->on = false;
    if (kind == RDZV_EV_CLOSE && code == 0) {
        r->closed_told = true;
        trace(r->trace, TRACE_INFO, "The node '%s' has closed the rendezvous '%s'.",
              r->self_text, r->run_id);
    }
    e = rdzv_fx_add(fx, RDZV_FX_DONE);
    e->wish = kind;
    e->code = code;
    e->text = text;
}

/* The join ends. A seat that may be left behind is given up later, unless the run is
 * over or the seat belongs to another process. */
void rdzv_refuse(struct rdzv *r, struct now now, int code, struct rdzv_fx *fx)
{
    struct rdzv_effect *e = rdzv_fx_add(fx, RDZV_FX_REFUSED);

    e->code = code;
    e->text = r->why.text;
    r->mode = MODE_IDLE;
    if (code != MUSTER_ECLOSED && code != MUSTER_EGRACEFUL && code != MUSTER_EEXIST) {
        r->tidy = (struct rdzv_wish){ true, now.mono_ms + r->settings.close_ms };
        r->read_due_ms = now.mono_ms;
    }
}

void rdzv_time_is_up(struct rdzv *r, struct now now, struct rdzv_fx *fx)
{
    (void)err_set(&r->why, MUSTER_ETIMEDOUT,
                  "the node '%s' could not join the rendezvous '%s' within %llu s: "
                  "%zu node(s) of at least %lld were there%s",
                  r->self_text, r->run_id,
                  (unsigned long long)r->settings.join_ms / 1000,
                  rdzv_live(r, &r->seen, RDZV_PLACES, now.mono_ms),
                  (long long)r->settings.min_nodes,
                  r->seen.complete ? ", in a round that goes on without it" : "");
    if (r->busy != BUSY_NOT)
        err_add(&r->why, "; the store did not answer");
    rdzv_refuse(r, now, MUSTER_ETIMEDOUT, fx);
}

static void joined(struct rdzv *r, struct rdzv_plan *p, struct now now,
                   struct rdzv_fx *fx)
{
    struct rdzv_effect *e = rdzv_fx_add(fx, RDZV_FX_JOINED);

    rdzv_roster_fini(&r->roster);
    r->roster = p->roster;
    p->roster = (struct rdzv_roster){ 0 };
    r->mode = MODE_MEMBER;
    r->stay_until_ms = r->roster.count > 1 ? now.mono_ms + LINGER_MS : 0;
    r->waiting_told = r->lost_told = 0;
    r->closed_told = false;
    e->round = r->roster.round;
    e->world = (int64_t)r->roster.count;
    while (rdzv_node_cmp(&r->roster.nodes[e->rank], &r->self) != 0)
        e->rank++;
    trace(
        r->trace, TRACE_INFO,
        "The node '%s' has joined round %lld of the rendezvous '%s' as rank %lld in a "
        "world of size %lld.",
        r->self_text, (long long)e->round, r->run_id, (long long)e->rank,
        (long long)e->world);
}

/* The join came to an end by what the state says. */
void rdzv_end_join(struct rdzv *r, struct rdzv_plan *p, struct now now,
                   struct rdzv_fx *fx)
{
    if (p->refused) {
        r->why = p->why;
        rdzv_refuse(r, now, p->refused, fx);
    } else if (p->end == RDZV_FINISH) {
        joined(r, p, now, fx);
    } else if (p->end == RDZV_FAIL_TIMEOUT) {
        rdzv_time_is_up(r, now, fx);
    } else if (p->end == RDZV_FAIL_CLOSED) {
        (void)err_set(
            &r->why, MUSTER_ECLOSED,
            "The rendezvous '%s' is closed: the run has ended; use a new run id",
            r->run_id);
        rdzv_refuse(r, now, MUSTER_ECLOSED, fx);
    } else if (p->end == RDZV_DISMISSED) {
        (void)err_set(&r->why, MUSTER_EGRACEFUL,
                      "The rendezvous '%s' is closed, terminating pending rendezvous.",
                      r->run_id);
        rdzv_refuse(r, now, MUSTER_EGRACEFUL, fx);
    }
}
