/* store_hosts_runs.c - the runs that a store server is host of: found by the HELLOs of
 * their nodes, made by the first of them, and let go when there is room to be made. */
#include "base/mem.h"
#include "io/clock.h"
#include "io/store_hosts_int.h"

static struct hosted_run *run_new(struct store_server *s, struct span key)
{
    const size_t fixed = sizeof RUN_KEY - 1;
    struct hosted_run *run;

    if (map_reserve(&s->hosts->runs, 1) < 0)
        return NULL;
    run = mem_calloc(1, sizeof *run + key.n);
    if (!run)
        return NULL;
    run->host = rdzv_host_new(span_of(key.p + fixed, key.n - fixed), s->opts.trace);
    if (!run->host) {
        mem_free(run);
        return NULL;
    }
    memcpy(run + 1, key.p, key.n);
    run->link.key = span_of((uint8_t *)(run + 1), key.n);
    map_add(&s->hosts->runs, &run->link);
    run->next = s->hosts->first;
    s->hosts->first = run;
    return run;
}

void run_free(struct store_server *s, struct hosted_run *run)
{
    struct hosted_run **at = &s->hosts->first;

    while (*at != run)
        at = &(*at)->next;
    *at = run->next;
    map_remove(&s->hosts->runs, &run->link);
    rdzv_host_free(run->host);
    mem_free(run);
}

/* Lets go of the run that nobody has needed for the longest time; false if all are
 * needed. What is to be known of it later stays in its key, where a node that comes
 * late finds it: that it is closed, and how many rounds it had. */
static bool make_room(struct store_server *s)
{
    struct hosted_run *oldest = NULL;

    for (struct hosted_run *run = s->hosts->first; run; run = run->next)
        if (run->conns == 0 && rdzv_host_over(run->host) &&
            (!oldest || run->idle_ms < oldest->idle_ms))
            oldest = run;
    if (!oldest)
        return false;
    if (rdzv_host_closed(oldest->host) || rdzv_host_round(oldest->host) > 0)
        hosts_show(s, oldest, false);
    run_free(s, oldest);
    return true;
}

int run_of_hello(struct store_server *s, struct span run_id, struct hosted_run **out,
                 bool *begun)
{
    uint8_t key[sizeof RUN_KEY + HOSTED_MAX];
    const size_t fixed = sizeof RUN_KEY - 1;
    const struct span name = span_of(key, fixed + run_id.n);
    struct map_link *link;

    memcpy(key, RUN_KEY, fixed);
    memcpy(key + fixed, run_id.p, run_id.n);
    link = map_get(&s->hosts->runs, name);
    *begun = !link;
    if (link) {
        *out = CONTAINER_OF(link, struct hosted_run, link);
        return 0;
    }
    if (s->hosts->runs.count >= HOSTED_RUNS && !make_room(s))
        return MUSTER_EFULL;
    *out = run_new(s, name);
    return *out ? 0 : MUSTER_ENOMEM;
}

void run_hold(struct hosted_run *run, struct conn *c)
{
    c->run = run;
    run->conns++;
}

void run_let_go(struct conn *c)
{
    if (!c->run)
        return;
    if (--c->run->conns == 0)
        c->run->idle_ms = clock_now().mono_ms;
    c->run = NULL;
}
