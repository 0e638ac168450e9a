/* crowd.c - times one group of thousands of nodes: see sim.h. Time in the group is
 * virtual; the CPU time is real, for the host and all nodes together. */
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>

#include "sim/sim.h"

double sim_cpu_seconds(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static size_t count_life(const struct sim *s, enum sim_life life)
{
    size_t count = 0;

    for (size_t i = 0; i < s->count; i++)
        count += s->nodes[i].life == life;
    return count;
}

/* Runs until so many nodes run, or a minute of virtual time has passed. */
static bool run_until_running(struct sim *s, size_t want)
{
    const uint64_t end_t = s->t + 60000000;

    while (s->t < end_t && !s->fail[0]) {
        (void)sim_run(s, s->t + 1000);
        if (count_life(s, SIM_RUNNING) >= want)
            return true;
    }
    if (!s->fail[0])
        sim_fail(s, "%zu of %zu nodes are in a round", count_life(s, SIM_RUNNING),
                 want);
    return false;
}

static void report(const struct sim *s, const char *what, uint64_t from_t,
                   double from_cpu)
{
    printf("%-28s %9.3f s virtual, %7.3f s of CPU, %llu requests so far\n", what,
           (double)(s->t - from_t) / 1e6, sim_cpu_seconds() - from_cpu,
           (unsigned long long)s->host.requests);
}

static void play(struct sim *s, size_t nodes)
{
    double cpu = sim_cpu_seconds();
    uint64_t t = s->t;

    for (size_t i = 0; i < nodes; i++)
        sim_do_at(&s->nodes[i], s->t, SIM_DO_START);
    if (!run_until_running(s, nodes))
        return;
    report(s, "first join to last told", t, cpu);

    cpu = sim_cpu_seconds();
    t = s->t;
    if (!sim_run(s, s->t + 60000000))
        return;
    report(s, "a minute of beats", t, cpu);

    cpu = sim_cpu_seconds();
    t = s->t;
    sim_do(&s->nodes[nodes / 2], SIM_DO_END);
    while (count_life(s, SIM_RUNNING) && s->t < t + 30000000 && sim_run(s, s->t + 1000))
        ;
    report(s, "one lost, all stop workers", t, cpu);
    if (!run_until_running(s, nodes - 1))
        return;
    report(s, "... and are in a new round", t, cpu);
}

int sim_crowd(size_t nodes, enum sim_kind kind)
{
    struct sim_config cfg = {
        .seed = nodes, .delay_us = 100, .jitter_us = 100, .quiet = true, .many = true
    };
    struct rusage use;
    struct sim s;
    int failed;

    rdzv_settings_init(&cfg.settings, nodes > 1 ? (int64_t)nodes - 1 : 1,
                       (int64_t)nodes);
    cfg.settings.last_call_ms = 1000;
    sim_init(&s, &cfg);
    s.autopilot = true;
    s.react_us = 100000;
    for (size_t i = 0; i < nodes; i++) {
        char name[24];

        (void)snprintf(name, sizeof name, "n%06zu", i);
        (void)sim_add(&s, kind, name);
    }
    play(&s, nodes);
    failed = s.fail[0] != 0;
    if (failed)
        printf("FAILED %s\n", s.fail);
    sim_fini(&s);
    (void)getrusage(RUSAGE_SELF, &use);
    printf("%zu nodes of kind %s, peak memory %.1f MB for all of them and the host\n",
           nodes, sim_kind_names[kind], (double)use.ru_maxrss / 1024);
    return failed;
}
