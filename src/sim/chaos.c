/* chaos.c - random runs: a group, its settings and its faults are drawn from one seed.
 *
 * After a while there are no more faults. Then all nodes must get together again. */
#include <stdio.h>

#include "base/mem.h"
#include "sim/sim.h"

#define FAULTS_US 40000000u /* faults begin within the first 40 s */

/* ---- faults ---- */

static void log_fault(struct sim *s, const struct sim_node *n, const char *what,
                      uint64_t until_t)
{
    if (until_t)
        sim_log(s, n, "-- %s until %.3f", what, (double)until_t / 1e6);
    else
        sim_log(s, n, "-- %s", what);
}

static void kill_node(struct sim *s, struct sim_node *n)
{
    const bool power = rng_below(&s->rng, 3) == 0; /* Not even a FIN is sent. */

    for (size_t i = 0; power && i < s->host.conn_count; i++) {
        if (s->host.conns[i] && s->host.conns[i]->node == n)
            s->host.conns[i]->power_lost = true;
    }
    log_fault(s, n, power ? "loses power" : "is killed", 0);
    sim_kill(n);
    if (rng_below(&s->rng, 10) < 7)
        sim_do_at(n, s->t + 100000 + rng_below(&s->rng, 8000000), SIM_DO_START);
    else
        n->wants_in = false;
}

static void reset_node(struct sim *s, struct sim_node *n)
{
    for (size_t i = 0; i < s->host.conn_count; i++) {
        struct sim_conn *c = s->host.conns[i];

        if (!c || c->node != n)
            continue;
        c->refs++;
        sim_drop(c);
        sim_host_left(s, c);
        sim_conn_unref(c);
    }
}

static void host_crash(struct sim *s)
{
    const uint64_t back_t = s->t + 100000 + rng_below(&s->rng, 12000000);

    if (!s->host.up)
        return;
    log_fault(s, NULL, "crashes, down", back_t);
    sim_host_stop(s);
    s->host_calm_t = back_t;
    sim_at(s, back_t, SIM_EV_FAULT)->what = SIM_HOST_BACK;
}

static void node_fault(struct sim *s, struct sim_node *n, enum sim_fault fault)
{
    const uint64_t for_us =
        100000 + rng_below(&s->rng, rng_below(&s->rng, 3) ? 8000000 : 35000000);

    n->calm_from_t = MAX_OF(n->calm_from_t, s->t);
    switch (fault) {
    case SIM_KILL:
        kill_node(s, n);
        return;
    case SIM_STOP:
        /* A join's time stands still meanwhile: the node could hear nobody. */
        if (s->t + for_us > n->stopped_t)
            n->join_by_t += s->t + for_us - MAX_OF(n->stopped_t, s->t);
        n->stopped_t = MAX_OF(n->stopped_t, s->t + for_us);
        n->calm_from_t = MAX_OF(n->calm_from_t, n->stopped_t);
        log_fault(s, n, "is stopped", n->stopped_t);
        return;
    case SIM_CUT:
        n->cut_t = MAX_OF(n->cut_t, s->t + for_us);
        n->calm_from_t = MAX_OF(n->calm_from_t, n->cut_t);
        log_fault(s, n, "is cut off", n->cut_t);
        return;
    case SIM_RESET:
        log_fault(s, n, "loses its connections", 0);
        reset_node(s, n);
        return;
    case SIM_JUMP:
        n->skew_us += (int64_t)rng_below(&s->rng, 200000000) - 100000000;
        log_fault(s, n, "has its clock set", 0);
        return;
    case SIM_HOST_CRASH:
    case SIM_HOST_BACK:
    case SIM_FAULTS:
        return;
    }
}

void sim_fault_now(struct sim *s, const struct sim_event *ev)
{
    struct sim_node *n = &s->nodes[ev->node];

    if (ev->what == SIM_HOST_CRASH) {
        host_crash(s);
    } else if (ev->what == SIM_HOST_BACK) {
        log_fault(s, NULL, "is back, empty", 0);
        sim_host_start(s);
    } else if (n->alive) {
        node_fault(s, n, (enum sim_fault)ev->what);
    }
}

/* ---- drawing a group ---- */

static enum sim_kind draw_kind(struct rng *r, const char *kinds)
{
    if (strcmp(kinds, "ours") == 0)
        return rng_below(r, 4) ? SIM_OURS : SIM_POLLER;
    if (strcmp(kinds, "torch") == 0)
        return SIM_TORCH;
    if (strcmp(kinds, "mixed") == 0)
        return rng_below(r, 2) ? SIM_OURS : SIM_TORCH;
    if (strcmp(kinds, "hosted") == 0)
        return SIM_HOSTED;
    if (strcmp(kinds, "fallback") == 0) /* some have hosted=0 */
        return rng_below(r, 3) ? SIM_HOSTED : SIM_OURS;
    return rng_below(r, 3) ? SIM_HOSTED : SIM_TORCH; /* "visited" */
}

static void draw_settings(struct rng *r, struct sim_config *cfg, size_t nodes)
{
    static const uint8_t beats[][2] = { { 2, 3 }, { 5, 3 }, { 3, 4 } };
    const size_t b = rng_below(r, ARRAY_LEN(beats));
    const int64_t max = 1 + (int64_t)rng_below(r, nodes);
    const int64_t min = 1 + (int64_t)rng_below(r, (uint64_t)max);

    rdzv_settings_init(&cfg->settings, min, max);
    cfg->settings.keep_alive_interval_s = beats[b][0];
    cfg->settings.keep_alive_max_attempt = beats[b][1];
    /* It must be longer than a second, since torch's nodes poll once a second. */
    cfg->settings.last_call_ms = 1500 + rng_below(r, 3000);
    cfg->settings.join_ms = 60000 + rng_below(r, 60000);
    cfg->delay_us = 50 + rng_below(r, 2000);
    cfg->jitter_us =
        rng_below(r, 4) ? rng_below(r, 1000) : rng_below(r, b == 1 ? 200000 : 20000);
    cfg->grace_ms = rng_below(r, 2) ? 0 : rng_below(r, 3000);
    cfg->any_cut = rng_below(r, 4) == 0;
}

static void draw_faults(struct sim *s, struct rng *r, const char *kinds)
{
    const size_t faults = rng_below(r, 4) ? rng_below(r, 7) : 0;
    const bool torch = strcmp(kinds, "mixed") == 0 || strcmp(kinds, "torch") == 0 ||
                       strcmp(kinds, "visited") == 0;

    for (size_t i = 0; i < faults; i++) {
        enum sim_fault fault = (enum sim_fault)rng_below(r, SIM_HOST_CRASH);
        struct sim_event *ev;

        if (rng_below(r, 12) == 0)
            fault = SIM_HOST_CRASH;
        if (torch && fault == SIM_JUMP)
            fault = SIM_CUT; /* After a jump, torch's nodes keep evicting each other. */
        ev = sim_at(s, rng_below(r, FAULTS_US), SIM_EV_FAULT);
        ev->what = (int)fault;
        ev->node = (uint32_t)rng_below(r, s->count);
    }
    if (rng_below(r, 10) == 0) {
        struct sim_node *n = &s->nodes[rng_below(r, s->count)];
        struct sim_event *ev = sim_at(s, rng_below(r, FAULTS_US), SIM_EV_AGENT);

        ev->node = n->index;
        ev->boot = 1;
        ev->what = rng_below(r, 2) ? SIM_DO_CLOSE : SIM_DO_LEAVE;
    }
    for (size_t i = 0; i < s->count && !torch; i++) {
        if (rng_below(r, 3) == 0)
            s->nodes[i].skew_us = (int64_t)rng_below(r, 120000000) - 60000000;
    }
}

static uint64_t calm_end(const struct sim *s)
{
    const struct rdzv_settings *set = &s->cfg.settings;
    uint64_t t = FAULTS_US + 20000000;

    for (size_t i = 0; i < s->count; i++)
        t = MAX_OF(t, MAX_OF(s->nodes[i].stopped_t, s->nodes[i].cut_t));
    return t + 1000 * (4 * rdzv_dead_after_ms(set) + 4 * set->last_call_ms + 30000);
}

bool sim_play(uint64_t seed, const char *kinds, bool loud, uint64_t *node_us,
              char *fail, size_t size)
{
    struct sim_config cfg = { .seed = rng_mix(seed), .quiet = !loud };
    struct rng r;
    struct sim s;
    size_t nodes;
    bool good;

    rng_init(&r, rng_mix(seed ^ 0x73696d));
    nodes = 1 + rng_below(&r, 6);
    draw_settings(&r, &cfg, nodes);
    sim_init(&s, &cfg);
    s.autopilot = true;
    s.react_us = 1500000;
    for (size_t i = 0; i < nodes; i++) {
        char name[24];

        (void)snprintf(name, sizeof name, "n%zu", i);
        (void)sim_add(&s, draw_kind(&r, kinds), name);
    }
    draw_faults(&s, &r, kinds);
    for (size_t i = 0; i < nodes; i++)
        sim_do_at(&s.nodes[i],
                  rng_below(&r, 4) ? rng_below(&r, 400000) : rng_below(&r, 20000000),
                  SIM_DO_START);
    good = sim_run(&s, FAULTS_US + 20000000) && sim_run(&s, calm_end(&s));
    if (good) {
        sim_check_end(&s);
        good = !s.fail[0];
    }
    *node_us += s.t * nodes;
    if (loud)
        (void)fwrite(buf_data(&s.out), 1, buf_len(&s.out), stdout);
    (void)snprintf(fail, size, "%s", s.fail);
    sim_fini(&s);
    return good;
}
