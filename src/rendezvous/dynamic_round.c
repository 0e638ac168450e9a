/* dynamic_round.c - the dynamic handler's next(): joining, the store of the round that
 * came of it, and where its workers find theirs. */
#include "base/mem.h"
#include "loop/clock.h"
#include "rendezvous/core/state_pickle.h"
#include "rendezvous/dynamic_int.h"
#include <inttypes.h>
#include <stdlib.h>

void dynamic_next_failed(struct dynamic_handler *d, int code, const char *text)
{
    const rdzv_next_cb cb = d->next_cb;
    struct muster_error err;

    if (!cb)
        return;
    d->next_cb = NULL;
    d->joining = false;
    cb(d->next_ctx, err_set(&err, code, "%s", text), NULL, &err);
}

void dynamic_canceled(struct dynamic_handler *d)
{
    struct muster_error err;

    (void)err_set(&err, MUSTER_ECANCELED, "joining the run '%s' was canceled",
                  d->params.run_id);
    dynamic_next_failed(d, err.code, err.text);
}

static void on_master(void *ctx, enum rdzv_master_end end, const char *addr,
                      uint16_t port, const struct muster_error *err)
{
    struct dynamic_handler *d = ctx;
    const rdzv_next_cb cb = d->next_cb;

    if (!cb || d->canceling)
        return;
    switch (end) {
    case RDZV_MASTER_FAILED:
        dynamic_next_failed(d, err->code, err->text);
        return;
    case RDZV_MASTER_REJOIN:
        trace(d->trace, TRACE_WARN,
              "run '%s', round %" PRIu64
              ": the store lost the workers' address; joining "
              "again",
              d->params.run_id, d->round.round);
        dynamic_begin_join(d);
        return;
    case RDZV_MASTER_KNOWN:
        break;
    }
    d->round.master_addr = addr;
    d->round.master_port = port;
    d->next_cb = NULL;
    cb(d->next_ctx, 0, &d->round, NULL);
}

static void no_matter(void *ctx)
{
    (void)ctx;
}

void dynamic_close_stores(struct dynamic_handler *d)
{
    if (d->prefixed)
        async_store_close(d->prefixed, no_matter, NULL);
    if (d->store)
        async_store_close(d->store, no_matter, NULL);
    d->prefixed = d->store = NULL;
}

/* The workers' keys of the last round would mislead those of this one. No other agent's
 * workers have started yet: they wait for the ranks that our role_info is needed for,
 * unless ranks are not agreed upon at all. */
static void wipe_if_safe(struct dynamic_handler *d)
{
    const char *identical = getenv("TORCH_ELASTIC_WORKER_IDENTICAL");

    if (!identical || strcmp(identical, "1") != 0)
        rdzv_master_wipe(d->master);
}

static void find_master(struct dynamic_handler *d)
{
    struct rdzv_master_job job = { .round = d->round.round,
                                   .rank = d->round.rank,
                                   .store = d->store };
    struct muster_error err;

    if (!d->member) {
        job.members = participants(d->core, &job.count);
    } else if (d->members) {
        job.members = d->members;
        job.count = (size_t)d->round.world_size;
    } else {
        d->rank0 = member_rank0(member_driver_core(d->member));
        job.members = &d->rank0;
        job.count = 1;
    }
    if (rdzv_master_start(d->master, &job, on_master, d, &err) < 0)
        dynamic_next_failed(d, err.code, err.text);
}

void dynamic_joined(struct dynamic_handler *d, const struct rdzv_effect *e)
{
    char *prefix =
        mem_printf("torch.rendezvous.%s.%" PRId64, d->params.run_id, e->round);
    struct muster_error err;
    int rc = prefix ? 0 : err_nomem(&err);

    d->joining = false;
    if (d->canceling) { /* The LEAVE that ends this seat as well is on its way. */
        mem_free(prefix);
        dynamic_canceled(d);
        return;
    }
    if (d->member)
        trace(d->trace, TRACE_INFO,
              "The node '%s_%" PRId64 "_%" PRId64 "' has joined round %" PRId64
              " of the rendezvous '%s' as rank %" PRId64 " in a world of size %" PRId64
              ".",
              d->addr, d->pid, d->local_id, e->round, d->params.run_id, e->rank,
              e->world);
    if (rc == 0)
        rc = async_store_prefix(d->store, prefix, false, &d->prefixed, &err);
    mem_free(prefix);
    if (rc < 0) {
        dynamic_next_failed(d, rc, err.text);
        return;
    }
    d->round = (struct rdzv_round){ .round = (uint64_t)e->round,
                                    .rank = e->rank,
                                    .world_size = e->world,
                                    .store = d->prefixed };
    wipe_if_safe(d);
    if (d->member)
        dynamic_hosted_members(d, find_master);
    else
        find_master(d);
}

/* The core knows neither the run's place nor always its name. */
void dynamic_refused(struct dynamic_handler *d, const struct rdzv_effect *e)
{
    struct muster_error err;

    if (d->canceling) {
        dynamic_canceled(d);
        return;
    }
    if (e->code == MUSTER_EINVAL) /* It will not be let in, nor can it close the run. */
        d->refused = e->code;
    (void)err_set(&err, e->code, "%s", e->text);
    if (!strstr(err.text, d->params.run_id) ||
        !strstr(err.text, d->backend->ops->where(d->backend)))
        err_add(&err, " (run id '%s' at %s)", d->params.run_id,
                d->backend->ops->where(d->backend));
    if (e->code == MUSTER_ETIMEDOUT && d->other_runs[0])
        err_add(&err, "; %s", d->other_runs);
    dynamic_next_failed(d, e->code, err.text);
}

void dynamic_begin_join(struct dynamic_handler *d)
{
    const bool first = !d->store && !d->round.store;
    struct muster_error err;

    rdzv_master_cancel(d->master);
    dynamic_close_stores(d);
    d->round = (struct rdzv_round){ 0 };
    if (d->backend->ops->store(d->backend, &d->store, &err) < 0) {
        d->store = NULL;
        d->tell.next = true;
        d->tell.next_err = err;
        dynamic_arm(d);
        return;
    }
    if (first)
        dynamic_settings(d);
    d->joining = true;
    d->other_runs[0] = '\0';
    d->runs_at_ms = d->member ? clock_mono_ms() + RUNS_FIRST_MS : MONO_NEVER;
    dynamic_arm(d);
    /* torch's words, which the core of a node that is not a member says itself. */
    if (d->member)
        trace(d->trace, TRACE_INFO,
              "The node '%s_%" PRId64 "_%" PRId64
              "' attempts to join the next round of the rendezvous '%s'.",
              d->addr, d->pid, d->local_id, d->params.run_id);
    dynamic_request(d, RDZV_EV_JOIN);
}

void dynamic_opened(struct dynamic_handler *d)
{
    if (d->stopped)
        return;
    if (d->stage == STAGE_BROKEN) {
        if (d->next_cb && !d->canceling) {
            d->tell.next = true;
            d->tell.next_err = d->broken;
        }
        d->tell.close = d->close.cb != NULL;
        d->tell.stop |= d->stop.cb && d->stop_closes;
        dynamic_arm(d);
        return;
    }
    if (d->close_waits) {
        d->close_waits = false;
        dynamic_request(d, RDZV_EV_CLOSE);
    }
    if (d->next_cb && !d->canceling)
        dynamic_begin_join(d);
}

/* ---- As a member: the store is ours, so its coordinator owns the state, and this node
 * only says what it wants ---- */

static uint64_t nonce_of(const struct dynamic_handler *d)
{
    uint64_t n;

    if (uv_random(NULL, NULL, &n, sizeof n, 0, NULL) != 0)
        n = uv_hrtime() ^ (uint64_t)d->pid << 40;
    return n;
}

bool dynamic_be_member(struct dynamic_handler *d)
{
    struct member_config cfg = {
        .run_id = d->params.run_id,
        .self = { span_str(d->addr), d->pid, d->local_id },
        .settings = d->settings,
        .nonce = nonce_of(d),
        .grace_ms = (uint64_t)MAX_OF(d->grace_ms, 0),
        .away_ms = d->read_ms,
        .order = d->rank_order_key < 0 ? COORD_BY_NODE : COORD_BY_KEY,
        .rank_order_key = (uint64_t)MAX_OF(d->rank_order_key, 0),
        .auth = d->params.auth,
        .trace = d->trace,
    };
    struct member_driver *member;
    struct muster_error err;
    const char *host;
    uint16_t port;

    if (!d->hosted || !d->backend->ops->host ||
        !d->backend->ops->host(d->backend, &host, &port, &cfg.echoes))
        return false;
    if (member_driver_open(d->base.loop, &cfg, host, port, dynamic_on_effect, d,
                           &member, &err) < 0) {
        trace(d->trace, TRACE_WARN, "run '%s': without its host's help: %s",
              d->params.run_id, err.text);
        return false;
    }
    if (d->member)
        member_driver_close(d->member, NULL, NULL);
    d->member = member;
    return true;
}

void dynamic_forget_members(struct dynamic_handler *d)
{
    mem_free(d->members);
    rdzv_state_fini(d->seen);
    mem_free(d->seen);
    d->members = NULL;
    d->seen = NULL;
}

static int by_rank(const void *a, const void *b)
{
    const struct participant *const *x = a, *const *y = b;

    return ((*x)->rank > (*y)->rank) - ((*x)->rank < (*y)->rank);
}

/* The places of the state just read, in rank order; nothing if it is another round's.
 */
static void keep_members(struct dynamic_handler *d, struct span text)
{
    const size_t count = (size_t)d->round.world_size;
    const struct participant **sorted = mem_calloc(count, sizeof *sorted);
    size_t n = 0;

    d->seen = mem_calloc(1, sizeof *d->seen);
    d->members = mem_calloc(count, sizeof *d->members);
    if (sorted && d->seen && d->members && pickle_read_text(text, d->seen, NULL) == 0 &&
        (uint64_t)d->seen->round == d->round.round &&
        rdzv_count(d->seen, RDZV_PLACES) == count) {
        for (const struct participant *m = rdzv_first(d->seen, RDZV_PLACES); m;
             m = m->next[RDZV_PLACES])
            sorted[n++] = m;
        qsort(sorted, n, sizeof *sorted, by_rank);
        for (size_t i = 0; i < n; i++)
            d->members[i] = sorted[i]->node;
    }
    mem_free(sorted);
    if (n == 0)
        dynamic_forget_members(d);
}

static void on_members(void *ctx, const struct rdzv_event *ev)
{
    struct dynamic_handler *d = ctx;

    if (d->stopped || !d->next_cb || d->joining || d->canceling)
        return; /* The round is over already. */
    if (ev->kind == RDZV_EV_STATE && ev->present)
        keep_members(d, ev->value);
    d->found_members(d);
}

/* Nodes of torchrun remember the workers' address of an earlier round, and it counts as
 * long as the node that serves it is a member: only then must we know them all. */
void dynamic_hosted_members(struct dynamic_handler *d,
                            void (*cb)(struct dynamic_handler *d))
{
    dynamic_forget_members(d);
    if (member_torch_nodes(member_driver_core(d->member)) == 0) {
        cb(d);
        return;
    }
    d->found_members = cb;
    d->backend->ops->get(d->backend, d->read_ms, on_members, d);
}
