/* world.c - virtual time: a heap of events and the loop that runs them; see sim.h. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "sim/etcd.h"
#include "sim/sim.h"
#include "store/core/reserved.h"

const char *const sim_kind_names[SIM_KINDS] = { "ours", "poller", "torch", "hosted" };

static const struct sim_driver *const drivers[SIM_KINDS] = { &sim_ours, &sim_ours,
                                                             &sim_torch, &sim_hosted };

static bool before(const struct sim_event *a, const struct sim_event *b)
{
    return a->t != b->t ? a->t < b->t : a->seq < b->seq;
}

struct sim_event *sim_at(struct sim *s, uint64_t t, enum sim_event_kind kind)
{
    size_t i;

    if (s->heap_count == s->heap_room) {
        s->heap_room = s->heap_room ? s->heap_room * 2 : 256;
        s->heap = mem_realloc_array(s->heap, s->heap_room, sizeof *s->heap);
        assert(s->heap);
    }
    /* Move a hole up the heap, then write the event into it. */
    const struct sim_event ev = { .t = t, .seq = s->seq++, .kind = kind };

    for (i = s->heap_count++; i > 0; i = (i - 1) / 2) {
        if (!before(&ev, &s->heap[(i - 1) / 2]))
            break;
        s->heap[i] = s->heap[(i - 1) / 2];
    }
    s->heap[i] = ev;
    return &s->heap[i];
}

/* The next event; false if there is none. */
static bool sim_next(struct sim *s, struct sim_event *out)
{
    struct sim_event last;
    size_t i = 0, child;

    if (s->heap_count == 0)
        return false;
    *out = s->heap[0];
    last = s->heap[--s->heap_count];
    while ((child = 2 * i + 1) < s->heap_count) {
        if (child + 1 < s->heap_count && before(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!before(&s->heap[child], &last))
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return true;
}

void sim_init(struct sim *s, const struct sim_config *cfg)
{
    *s = (struct sim){ .cfg = *cfg };
    rng_init(&s->rng, cfg->seed);
    buf_init(&s->out, SIZE_MAX);
    buf_init(&s->hashed, SIZE_MAX);
    s->hash = reserved_hash(span_of("", 0));
    buf_init(&s->host.last_value, SIZE_MAX);
    s->checks = sim_checks_new();
    sim_host_start(s);
}

static void event_fini(struct sim_event *ev)
{
    if (ev->conn)
        sim_conn_unref(ev->conn);
    if (ev->call)
        sim_call_unref(ev->call);
    mem_free(ev->bytes);
}

void sim_fini(struct sim *s)
{
    struct sim_event ev;

    for (size_t i = 0; i < s->count; i++)
        sim_kill(&s->nodes[i]);
    sim_host_stop(s);
    sim_etcd_stop(s);
    while (sim_next(s, &ev))
        event_fini(&ev);
    mem_free(s->heap);
    mem_free(s->nodes);
    mem_free(s->host.conns);
    buf_fini(&s->out);
    buf_fini(&s->hashed);
    buf_fini(&s->host.last_value);
    sim_checks_free(s->checks);
}

/* All nodes must be added before the first one starts, since adding one may move the
 * others in memory. */
struct sim_node *sim_add(struct sim *s, enum sim_kind kind, const char *name)
{
    struct sim_node *n;

    s->nodes = mem_realloc_array(s->nodes, s->count + 1, sizeof *s->nodes);
    assert(s->nodes);
    n = &s->nodes[s->count];
    *n = (struct sim_node){ .sim = s,
                            .kind = kind,
                            .driver = drivers[kind],
                            .index = (uint32_t)s->count,
                            .pid = 100,
                            .mono_off_ms = 1000000 * (s->count + 1),
                            .timer_t = SIM_NEVER,
                            .lost_since_t = SIM_NEVER };
    (void)snprintf(n->name, sizeof n->name, "%s", name);
    rng_init(&n->rng, rng_u64(&s->rng));
    s->count++;
    return n;
}

struct now sim_now(const struct sim_node *n)
{
    return (struct now){ n->sim->t / 1000 + n->mono_off_ms,
                         SIM_WALL_US + (int64_t)n->sim->t + n->skew_us };
}

struct rdzv_node sim_identity(const struct sim_node *n)
{
    return (struct rdzv_node){ span_str(n->name), n->pid, 0 };
}

bool sim_is_stopped(const struct sim_node *n)
{
    return n->stopped_t > n->sim->t;
}

void sim_arm(struct sim_node *n)
{
    const uint64_t due = n->driver->deadline(n);
    struct sim_event *ev;
    uint64_t t;

    if (due == MONO_NEVER)
        return;
    t = due > n->mono_off_ms ? (due - n->mono_off_ms) * 1000 : 0;
    t = MAX_OF(t, n->sim->t);
    if (n->timer_t <= t)
        return; /* An earlier event will call this again. */
    n->timer_t = t;
    ev = sim_at(n->sim, t, SIM_EV_TIMER);
    ev->node = n->index;
    ev->boot = n->boot;
}

static void world_on_timer(struct sim_node *n)
{
    const uint64_t due = n->driver->deadline(n);

    n->timer_t = SIM_NEVER;
    if (due != MONO_NEVER && due <= sim_now(n).mono_ms)
        n->driver->timer(n);
    if (n->alive)
        sim_arm(n);
}

static void dispatch(struct sim *s, struct sim_event *ev)
{
    struct sim_node *n = ev->node < s->count ? &s->nodes[ev->node] : NULL;

    switch (ev->kind) {
    case SIM_EV_UP:
    case SIM_EV_DOWN:
    case SIM_EV_OPENED:
    case SIM_EV_BROKEN:
    case SIM_EV_DROPPED:
        sim_net_event(s, ev);
        return;
    case SIM_EV_TIMER:
        if (n->alive && n->boot == ev->boot)
            world_on_timer(n);
        return;
    case SIM_EV_HOST_TIMER:
        sim_host_timer(s);
        return;
    case SIM_EV_AGENT:
        if (n->boot == ev->boot)
            sim_do(n, (enum sim_todo)ev->what);
        return;
    case SIM_EV_FAULT:
        sim_fault_now(s, ev);
        return;
    case SIM_EV_ETCD_AT:
        sim_etcd_request(s, ev->call);
        return;
    case SIM_EV_ETCD_BACK:
        sim_http_back(ev);
        return;
    case SIM_EV_ETCD_TICK:
        sim_etcd_tick(s, ev);
        return;
    }
}

/* A stopped process gets all its events when it wakes up, in order. */
static bool wait_for_wakeup(struct sim *s, const struct sim_event *ev)
{
    const struct sim_node *n;
    struct sim_event *later;
    uint64_t seq;

    if (ev->kind != SIM_EV_DOWN && ev->kind != SIM_EV_OPENED &&
        ev->kind != SIM_EV_BROKEN && ev->kind != SIM_EV_TIMER &&
        ev->kind != SIM_EV_AGENT && ev->kind != SIM_EV_ETCD_BACK)
        return false;
    n = &s->nodes[ev->node];
    if (!sim_is_stopped(n) || n->boot != ev->boot)
        return false;
    later = sim_at(s, n->stopped_t, ev->kind);
    seq = later->seq;
    *later = *ev;
    later->t = n->stopped_t;
    later->seq = seq;
    return true;
}

bool sim_run(struct sim *s, uint64_t until_t)
{
    struct sim_event ev;

    while (!s->fail[0] && s->heap_count && s->heap[0].t <= until_t) {
        (void)sim_next(s, &ev);
        s->t = MAX_OF(s->t, ev.t);
        if (wait_for_wakeup(s, &ev))
            continue;
        s->steps++;
        dispatch(s, &ev);
        event_fini(&ev);
        if ((s->steps & 15) == 0 && !s->cfg.many)
            sim_check_step(s);
    }
    if (!s->fail[0])
        s->t = until_t;
    return !s->fail[0];
}

void sim_must(int rc)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "muster-sim: %s\n", muster_code_text(rc));
    abort();
}

void sim_log(struct sim *s, const struct sim_node *n, const char *fmt, ...)
{
    char line[1200];
    va_list ap;

    if (s->cfg.quiet)
        return;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    (void)buf_printf(&s->out, "%9.3f  %-6s %s\n", (double)s->t / 1e6,
                     n         ? n->name
                     : s->etcd ? "etcd"
                               : "store",
                     line);
}

void sim_fail(struct sim *s, const char *fmt, ...)
{
    size_t len;
    va_list ap;

    if (s->fail[0])
        return;
    len = (size_t)snprintf(s->fail, sizeof s->fail, "at %.6f s: ", (double)s->t / 1e6);
    va_start(ap, fmt);
    (void)vsnprintf(s->fail + len, sizeof s->fail - len, fmt, ap);
    va_end(ap);
    sim_log(s, NULL, "BROKEN PROMISE %s", s->fail);
}
