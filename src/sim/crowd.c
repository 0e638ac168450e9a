/* crowd.c - times one group of thousands of nodes: see job.h. Time in the group is
 * virtual; the CPU time is real, for the store and all nodes together. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>

#include "sim/job.h"

double sim_cpu_seconds(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Runs until so many nodes are in that round, or ten minutes of virtual time have
 * passed.
 */
static bool run_until_seated(size_t want, int64_t round)
{
    const uint64_t end_t = os.t + 600 * OS_SECOND;
    size_t seated = 0;

    while (os.t < end_t && os_run(os.t + OS_MS)) {
        seated = 0;
        for (size_t i = 0; i < the_job->set.nodes; i++)
            seated += the_job->nodes[i].seated &&
                      the_job->nodes[i].seat_round == round &&
                      job_has_workers(&the_job->nodes[i]);
        if (seated == want)
            return true;
    }
    os_fail("%zu of %zu nodes are in round %" PRId64, seated, want, round);
    return false;
}

static void report(const char *what, uint64_t from_t, double from_cpu)
{
    printf("%-28s %9.3f s virtual, %7.3f s of CPU\n", what,
           (double)(os.t - from_t) / 1e6, sim_cpu_seconds() - from_cpu);
}

static void play(size_t nodes)
{
    double cpu = sim_cpu_seconds();
    uint64_t t = os.t;

    for (size_t i = 0; i < nodes; i++)
        job_start_node(&the_job->nodes[i], 0);
    if (!run_until_seated(nodes, 0))
        return;
    report("all started to all at work", t, cpu);

    cpu = sim_cpu_seconds();
    t = os.t;
    if (!os_run(os.t + 60 * OS_SECOND))
        return;
    report("a minute of heartbeats", t, cpu);

    cpu = sim_cpu_seconds();
    t = os.t;
    the_job->nodes[nodes / 2].killed = true;
    os_signal(the_job->nodes[nodes / 2].agent, SIGKILL);
    if (run_until_seated(nodes - 1, 1))
        report("one lost to all at work", t, cpu);
}

int crowd_play(size_t nodes)
{
    struct rusage use;
    int failed;

    job_begin(nodes, false, nodes);
    os.delay_us = os.jitter_us = 100;
    the_job->set.min_nodes = nodes > 1 ? (int64_t)nodes - 1 : 1;
    the_job->set.max_nodes = (int64_t)nodes;
    the_job->set.last_call_s = 1;
    the_job->set.store_apart = true;
    the_job->set.idle_workers = true;
    for (size_t i = 0; i < nodes; i++) {
        char name[24];

        (void)snprintf(name, sizeof name, "n%06zu", i);
        (void)job_add_node(JOB_OURS, name);
    }
    job_start_store(NULL, 0);
    play(nodes);
    failed = os.fail[0] != 0;
    if (failed)
        printf("FAILED %s\n", os.fail);
    job_end();
    (void)getrusage(RUSAGE_SELF, &use);
    printf("%zu nodes, peak memory %.1f MB for all of them and the store\n", nodes,
           (double)use.ru_maxrss / 1024);
    return failed;
}
