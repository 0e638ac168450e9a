/* rdzv_hosted.c - the dynamic handler as a guest: when the store is ours, its host owns
 * the state, and this node only says what it wants. See rdzv_driver.c. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/mem.h"
#include "io/rdzv_driver_int.h"
#include "wire/pickle.h"

static uint64_t nonce_of(const struct dynamic *d)
{
    uint64_t n;

    if (uv_random(NULL, NULL, &n, sizeof n, 0, NULL) != 0)
        n = uv_hrtime() ^ (uint64_t)d->pid << 40;
    return n;
}

bool dynamic_be_guest(struct dynamic *d)
{
    struct rdzv_guest_config cfg = {
        .run_id = d->params.run_id,
        .self = { span_str(d->addr), d->pid, d->local_id },
        .settings = d->settings,
        .nonce = nonce_of(d),
        .grace_ms = (uint64_t)MAX_OF(d->grace_ms, 0),
        .away_ms = d->read_ms,
        .order = d->order_key < 0 ? HOSTED_BY_NODE : HOSTED_BY_KEY,
        .order_key = (uint64_t)MAX_OF(d->order_key, 0),
        .trace = d->trace,
    };
    struct rdzv_guest_driver *guest;
    struct muster_error err;
    const char *host;
    uint16_t port;

    if (!d->hosted || !d->backend->ops->host ||
        !d->backend->ops->host(d->backend, &host, &port))
        return false;
    if (rdzv_guest_open(d->base.loop, &cfg, host, port, dynamic_told, d, &guest, &err) <
        0) {
        trace(d->trace, TRACE_WARN, "run '%s': without its host's help: %s",
              d->params.run_id, err.text);
        return false;
    }
    if (d->guest)
        rdzv_guest_close(d->guest, NULL, NULL);
    d->guest = guest;
    return true;
}

void dynamic_forget_members(struct dynamic *d)
{
    mem_free(d->members);
    rdzv_state_fini(d->seen);
    mem_free(d->seen);
    d->members = NULL;
    d->seen = NULL;
}

static int by_rank(const void *a, const void *b)
{
    const struct rdzv_member *const *x = a, *const *y = b;

    return ((*x)->rank > (*y)->rank) - ((*x)->rank < (*y)->rank);
}

/* The places of the state just read, in rank order; nothing if it is another round's.
 */
static void remember(struct dynamic *d, struct span text)
{
    const size_t count = (size_t)d->round.world_size;
    const struct rdzv_member **sorted = mem_calloc(count, sizeof *sorted);
    size_t n = 0;

    d->seen = mem_calloc(1, sizeof *d->seen);
    d->members = mem_calloc(count, sizeof *d->members);
    if (sorted && d->seen && d->members && pickle_read_text(text, d->seen, NULL) == 0 &&
        (uint64_t)d->seen->round == d->round.round &&
        rdzv_count(d->seen, RDZV_PLACES) == count) {
        for (const struct rdzv_member *m = rdzv_first(d->seen, RDZV_PLACES); m;
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
    struct dynamic *d = ctx;

    if (d->stopped || !d->next_cb || d->joining || d->canceling)
        return; /* The round is over already. */
    if (ev->kind == RDZV_EV_STATE && ev->present)
        remember(d, ev->value);
    d->found_members(d);
}

/* Nodes of torchrun remember the workers' address of an earlier round, and it counts as
 * long as the node that serves it is a member: only then must we know them all. */
void dynamic_hosted_members(struct dynamic *d, void (*cb)(struct dynamic *d))
{
    dynamic_forget_members(d);
    if (rdzv_guest_strangers(rdzv_guest_core(d->guest)) == 0) {
        cb(d);
        return;
    }
    d->found_members = cb;
    d->backend->ops->get(d->backend, d->read_ms, on_members, d);
}
