/* rdzv.c - muster-bench rdzv: N nodes in a few processes, each node with a connection
 * of its own, rendezvous at a real `muster store`. See rdzv.h for the other files.
 *
 *   --nodes N        nodes of ours                         (128)
 *   --more N         others that join the round by themselves: torchrun's (0)
 *   --processes P    the nodes are spread over             (2)
 *   --rounds R       one after the other                   (1)
 *   --wait           before each further round, for a line on standard input
 *   --lose           kill one process's first node, time until all others are told
 *   --beat SECONDS   stay joined, and see what the heartbeats cost the host
 *   --torch          the same with torch's handlers in Python beside it
 *   --python PATH    that has torch                        (venv/bin/python beside us)
 *   --endpoint H:P   use this store instead of starting one
 *   --muster PATH    the binary to start                   (beside this one)
 *
 * The last line is JSON: nodes; seconds from the first join to the last rank told; what
 * the store did for it: operations (requests), answers, bytes both ways; the host's CPU
 * seconds and peak memory. again_, lost_ and beat_ tell the same of the last further
 * round, of the loss and of the heartbeats; -1 is what was not measured. Ranks are
 * checked: each of 0 .. n - 1 once, every round. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "bench.h"
#include "rdzv.h"

double rdzv_now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- the parent ---- */

/* What something cost the store; negative if it did not say. */
struct cost {
    int64_t operations, answers, bytes;
};

static const struct cost unknown = { -1, -1, -1 };

struct run {
    struct rdzv_options o;
    pid_t store, crews[RDZV_MAX_PROCESSES];
    int orders[RDZV_MAX_PROCESSES];
    int reports;
    struct rdzv_report got[1024]; /* read and not yet looked at */
    size_t got_count, got_next;
    bool *seen;
    bool has_stats;
    struct rdzv_stats stats; /* at the last look */
    struct cost looking;     /* what the look itself costs */
};

/* Since the last look. */
static struct cost look(struct run *r)
{
    const struct rdzv_stats was = r->stats;

    r->has_stats = r->has_stats && rdzv_store_stats(&r->o, &r->stats);
    if (!r->has_stats || r->stats.requests < was.requests) /* a restarted store */
        return unknown;
    return (struct cost){
        (int64_t)(r->stats.requests - was.requests) - r->looking.operations,
        (int64_t)(r->stats.answers - was.answers) - r->looking.answers,
        (int64_t)(r->stats.bytes_in + r->stats.bytes_out - was.bytes_in -
                  was.bytes_out) -
            r->looking.bytes,
    };
}

/* A store with a secret tells its counts to those who prove that they hold it. */
static void look_first(struct run *r)
{
    r->has_stats = !getenv("MUSTER_TOKEN");
    (void)look(r);
    r->looking = look(r);
}

static void order(struct run *r, char what)
{
    for (long p = 0; p < r->o.processes; p++) {
        if (write(r->orders[p], &what, 1) != 1)
            exit(3);
    }
}

static bool next_report(struct run *r, struct rdzv_report *out, int timeout_ms)
{
    struct pollfd p = { .fd = r->reports, .events = POLLIN };
    ssize_t n;

    if (r->got_next == r->got_count) {
        if (poll(&p, 1, timeout_ms) != 1)
            return false;
        n = read(r->reports, r->got, sizeof r->got);
        if (n <= 0 || (size_t)n % sizeof r->got[0] != 0)
            return false;
        r->got_count = (size_t)n / sizeof r->got[0];
        r->got_next = 0;
    }
    *out = r->got[r->got_next++];
    return true;
}

/* Seconds from the order to the last rank told; negative if something was wrong. */
static double one_round(struct run *r, int round)
{
    const double start = rdzv_now_s();
    double last = start;
    struct rdzv_report got;

    memset(r->seen, 0, (size_t)(r->o.nodes + r->o.more));
    order(r, 'j');
    for (long told = 0; told < r->o.nodes;) {
        if (!next_report(r, &got, 120000)) {
            fprintf(stderr, "muster-bench: %ld of %ld nodes were told\n", told,
                    r->o.nodes);
            return -1;
        }
        if (got.kind == REPORT_FAILED)
            return -1;
        if (got.kind != REPORT_RANK || got.round != round)
            continue;
        if (got.world != r->o.nodes + r->o.more || got.rank >= got.world ||
            r->seen[got.rank]) {
            fprintf(stderr, "muster-bench: wrong rank %" PRId64 " of %" PRId64 "\n",
                    got.rank, got.world);
            return -1;
        }
        r->seen[got.rank] = true;
        last = MAX_OF(last, got.at_s);
        told++;
    }
    return last - start;
}

static double one_loss(struct run *r)
{
    const double start = rdzv_now_s();
    double last = start;
    struct rdzv_report got;
    const char kill_one = 'k';

    if (write(r->orders[0], &kill_one, 1) != 1)
        return -1;
    for (long told = 0; told < r->o.nodes - 1; told++) {
        if (!next_report(r, &got, 30000) || got.kind != REPORT_LOST)
            return -1;
        last = MAX_OF(last, got.at_s);
    }
    return last - start;
}

static int start_crews(struct run *r)
{
    int reports[2];

    if (pipe(reports) < 0)
        return -1;
    r->reports = reports[0];
    for (long p = 0, first = 0; p < r->o.processes; p++) {
        const long count =
            r->o.nodes / r->o.processes + (p < r->o.nodes % r->o.processes ? 1 : 0);
        int orders[2];

        if (pipe(orders) < 0)
            return -1;
        r->crews[p] = fork();
        if (r->crews[p] == 0) {
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* nobody else would end it */
            rdzv_crew_run(&r->o, first, count, orders[0], reports[1]);
        }
        if (r->crews[p] < 0)
            return -1;
        r->orders[p] = orders[1];
        (void)close(orders[0]);
        first += count;
    }
    (void)close(reports[1]);
    return 0;
}

static void stop(struct run *r)
{
    for (long p = 0; p < r->o.processes; p++) {
        if (r->crews[p] > 0) {
            (void)kill(r->crews[p], SIGKILL);
            (void)waitpid(r->crews[p], NULL, 0);
        }
    }
    if (r->store > 0) {
        (void)kill(r->store, SIGTERM);
        (void)waitpid(r->store, NULL, 0);
    }
}

static void allow_many(void)
{
    struct rlimit most = { 65536, 65536 };

    (void)signal(SIGPIPE, SIG_IGN);
    (void)setrlimit(RLIMIT_NOFILE, &most);
}

struct result {
    long peak_kb;
    double seconds, again_s, lost_s, beat_cpu, cpu_s, torch_s;
    struct cost first, again, lost, beat;
};

static bool all_rounds(struct run *r, struct result *out)
{
    look_first(r);
    for (int i = 0; i < r->o.rounds; i++) {
        double s;

        if (i && r->o.wait) {
            printf("joined\n");
            (void)fflush(stdout);
            (void)getchar();
        }
        s = one_round(r, i);
        if (s < 0)
            return false;
        *(i ? &out->again_s : &out->seconds) = s;
        *(i ? &out->again : &out->first) = look(r);
        if (!i)
            out->cpu_s = rdzv_store_cpu_s(r->store);
    }
    return true;
}

static bool measure(struct run *r, struct result *out)
{
    double cpu;

    if (!all_rounds(r, out))
        return false;
    if (r->o.beat_s) {
        cpu = rdzv_store_cpu_s(r->store);
        (void)sleep((unsigned)r->o.beat_s);
        out->beat_cpu = (rdzv_store_cpu_s(r->store) - cpu) / (double)r->o.beat_s;
        out->beat = look(r);
    }
    if (r->o.lose) {
        out->lost_s = one_loss(r);
        out->lost = look(r);
        if (out->lost_s < 0)
            return false;
    }
    out->peak_kb = rdzv_store_peak_kb(r->store);
    return true;
}

static void print_cost(const char *prefix, struct cost c)
{
    printf("\"%soperations\": %" PRId64 ", \"%sanswers\": %" PRId64
           ", \"%sbytes\": %" PRId64 ", ",
           prefix, c.operations, prefix, c.answers, prefix, c.bytes);
}

static void print_result(const struct run *r, const struct result *x)
{
    printf("{\"bench\": \"rdzv\", \"nodes\": %ld, \"more\": %ld, \"seconds\": %.4f, ",
           r->o.nodes, r->o.more, x->seconds);
    print_cost("", x->first);
    printf("\"host_cpu_seconds\": %.3f, \"host_peak_kb\": %ld, "
           "\"again_seconds\": %.4f, ",
           x->cpu_s, x->peak_kb, x->again_s);
    print_cost("again_", x->again);
    printf("\"lost_seconds\": %.4f, ", x->lost_s);
    print_cost("lost_", x->lost);
    printf("\"beat_cpu\": %.4f, ", x->beat_cpu);
    print_cost("beat_", x->beat);
    printf("\"torch_seconds\": %.4f}\n", x->torch_s);
}

int bench_rdzv(int argc, char **argv)
{
    static struct run r;
    struct result out = {
        0, -1, -1, -1, -1, -1, -1, unknown, unknown, unknown, unknown
    };
    int rc = 1;

    if (!rdzv_parse(argc, argv, &r.o)) {
        fputs("muster-bench rdzv: wrong options, see bench/rdzv.c\n", stderr);
        return 2;
    }
    allow_many();
    r.seen = calloc((size_t)(r.o.nodes + r.o.more), sizeof *r.seen);
    if (!r.o.port)
        r.store = rdzv_store_start(&r.o);
    if (!r.seen || r.store < 0 || start_crews(&r) < 0)
        fprintf(stderr, "muster-bench: cannot start %s\n", r.o.muster);
    else if (measure(&r, &out))
        rc = 0;
    stop(&r);
    if (rc == 0 && r.o.torch && (out.torch_s = rdzv_torch_round(&r.o)) < 0)
        rc = 1;
    if (rc == 0)
        print_result(&r, &out);
    free(r.seen);
    return rc;
}
