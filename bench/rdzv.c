/* rdzv.c - muster-bench rdzv: N nodes in a few processes, each node with a connection
 * of its own, rendezvous at a real `muster store`.
 *
 *   --nodes N        nodes of ours                         (128)
 *   --more N         others that join the round by themselves: torchrun's (0)
 *   --processes P    the nodes are spread over             (2)
 *   --rounds R       one after the other                   (1)
 *   --wait           before each further round, for a line on standard input
 *   --lose           kill one process's first node, time until all others are told
 *   --beat SECONDS   stay joined, and see what the heartbeats cost the host
 *   --endpoint H:P   use this store instead of starting one
 *   --muster PATH    the binary to start                   (beside this one)
 *
 * The last line is JSON. Ranks are checked: each of 0 .. n - 1 once, every round. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include "base/base.h"
#include "bench.h"
#include "io/rdzv_guest.h"
#include "rdzv/settings.h"

#define MAX_PROCESSES 64

struct options {
    long nodes, more, processes, rounds, beat_s;
    bool lose, wait;
    char host[256];
    uint16_t port;
    const char *muster;
};

/* What a process of nodes tells the parent. */
struct report {
    enum { REPORT_RANK, REPORT_LOST, REPORT_FAILED, REPORT_BYTES } kind;
    int32_t round;
    int64_t rank, world;
    double at_s;
};

static double now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- a process of nodes ---- */

struct crew;

struct node {
    struct crew *crew;
    struct rdzv_guest_driver *guest;
    bool lost_told;
};

struct crew {
    const struct options *o;
    struct node *nodes;
    long count, joined;
    int round;
    int report, orders; /* pipes */
    uv_loop_t loop;
    uv_poll_t poll;
};

static void report(const struct crew *c, struct report r)
{
    r.at_s = now_s();
    if (write(c->report, &r, sizeof r) != sizeof r)
        _exit(3);
}

static void on_told(void *ctx, const struct rdzv_effect *told)
{
    struct node *n = ctx;
    struct crew *c = n->crew;

    if (told->kind == RDZV_FX_JOINED) {
        report(c, (struct report){ REPORT_RANK, c->round, told->rank, told->world, 0 });
    } else if (told->kind == RDZV_FX_REFUSED) {
        fprintf(stderr, "muster-bench: a node was refused: %s\n", told->text);
        report(c, (struct report){ .kind = REPORT_FAILED });
    } else if (told->kind == RDZV_FX_NEWS && told->news == RDZV_NEWS_LOST &&
               !n->lost_told) {
        n->lost_told = true;
        report(c, (struct report){ .kind = REPORT_LOST });
    }
}

static void no_matter(uv_handle_t *h)
{
    (void)h;
}

/* Orders of the parent: 'j' join a round, 'k' drop the first node, 'q' end. */
static void on_order(uv_poll_t *p, int status, int events)
{
    struct crew *c = p->data;
    char order;

    (void)status;
    (void)events;
    if (read(c->orders, &order, 1) != 1 || order == 'q')
        _exit(0);
    if (order == 'k') {
        rdzv_guest_close(c->nodes[0].guest, NULL, NULL);
        c->nodes[0].guest = NULL;
        return;
    }
    c->round++;
    for (long i = 0; i < c->count; i++)
        rdzv_guest_wish(c->nodes[i].guest, RDZV_EV_JOIN);
}

static void crew_run(const struct options *o, long first, long count, int orders,
                     int reports)
{
    struct crew c = {
        .o = o, .count = count, .report = reports, .orders = orders, .round = -1
    };
    struct muster_error err;

    c.nodes = calloc((size_t)count, sizeof *c.nodes);
    if (!c.nodes || uv_loop_init(&c.loop) < 0)
        _exit(3);
    for (long i = 0; i < count; i++) {
        struct rdzv_guest_config cfg = { .run_id = "bench",
                                         .self = { span_str("bench"), first + i, 0 },
                                         .nonce = (uint64_t)(first + i) };

        rdzv_settings_init(&cfg.settings, o->nodes + o->more, o->nodes + o->more);
        c.nodes[i].crew = &c;
        if (rdzv_guest_open(&c.loop, &cfg, o->host, o->port, on_told, &c.nodes[i],
                            &c.nodes[i].guest, &err) < 0) {
            fprintf(stderr, "muster-bench: %s\n", err.text);
            _exit(3);
        }
    }
    (void)uv_poll_init(&c.loop, &c.poll, orders);
    c.poll.data = &c;
    (void)uv_poll_start(&c.poll, UV_READABLE, on_order);
    (void)uv_run(&c.loop, UV_RUN_DEFAULT);
    uv_close((uv_handle_t *)&c.poll, no_matter);
    _exit(0);
}

/* ---- the store ---- */

static pid_t store_start(struct options *o)
{
    char file[] = "/tmp/muster-bench-XXXXXX";
    const int fd = mkstemp(file);
    char text[32] = "";
    pid_t pid;

    if (fd < 0)
        return -1;
    pid = fork();
    if (pid == 0) {
        if (!freopen("/dev/null", "w", stdout))
            _exit(127);
        if (!freopen("/dev/null", "w", stderr))
            _exit(127);
        execl(o->muster, o->muster, "store", "--bind", "127.0.0.1", "--port", "0",
              "--port-file", file, (char *)NULL);
        _exit(127);
    }
    for (int i = 0; i < 5000 && !strchr(text, '\n'); i++) {
        (void)usleep(1000);
        memset(text, 0, sizeof text);
        FILE *f = fopen(file, "r");

        if (f && !fgets(text, sizeof text, f))
            text[0] = '\0';
        if (f)
            (void)fclose(f);
        if (text[0] && strtol(text, NULL, 10) > 0)
            break;
    }
    (void)close(fd);
    (void)unlink(file);
    o->port = (uint16_t)strtol(text, NULL, 10);
    (void)snprintf(o->host, sizeof o->host, "127.0.0.1");
    return o->port ? pid : -1;
}

static double store_cpu_s(pid_t pid)
{
    char path[64], text[1024];
    unsigned long user = 0, sys = 0;
    FILE *f;

    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    f = fopen(path, "r");
    if (f && fgets(text, sizeof text, f) && strrchr(text, ')'))
        (void)sscanf(strrchr(text, ')') + 2,
                     "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
                     &sys);
    if (f)
        (void)fclose(f);
    return (double)(user + sys) / (double)sysconf(_SC_CLK_TCK);
}

static long store_peak_kb(pid_t pid)
{
    char path[64], text[256];
    long kb = 0;
    FILE *f;

    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    f = fopen(path, "r");
    while (f && fgets(text, sizeof text, f))
        (void)sscanf(text, "VmHWM: %ld", &kb);
    if (f)
        (void)fclose(f);
    return kb;
}

/* ---- the parent ---- */

struct run {
    struct options o;
    pid_t store, crews[MAX_PROCESSES];
    int orders[MAX_PROCESSES];
    int reports;
    bool *seen;
};

static void order(struct run *r, char what)
{
    for (long p = 0; p < r->o.processes; p++) {
        if (write(r->orders[p], &what, 1) != 1)
            exit(3);
    }
}

static bool next_report(struct run *r, struct report *out, int timeout_ms)
{
    struct pollfd p = { .fd = r->reports, .events = POLLIN };

    return poll(&p, 1, timeout_ms) == 1 &&
           read(r->reports, out, sizeof *out) == (ssize_t)sizeof *out;
}

/* Seconds from the order to the last rank told; negative if something was wrong. */
static double one_round(struct run *r, int round)
{
    const double start = now_s();
    double last = start;
    struct report got;

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
    const double start = now_s();
    double last = start;
    struct report got;
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
        if (r->crews[p] == 0)
            crew_run(&r->o, first, count, orders[0], reports[1]);
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

static bool parse(int argc, char **argv, struct options *o)
{
    static const struct option longs[] = {
        { "nodes", 1, NULL, 'n' },     { "more", 1, NULL, 'm' },
        { "processes", 1, NULL, 'p' }, { "rounds", 1, NULL, 'r' },
        { "lose", 0, NULL, 'l' },      { "wait", 0, NULL, 'w' },
        { "beat", 1, NULL, 'b' },      { "endpoint", 1, NULL, 'e' },
        { "muster", 1, NULL, 'x' },    { 0 }
    };
    char *colon;
    int c;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        switch (c) {
        case 'n':
            o->nodes = strtol(optarg, NULL, 10);
            break;
        case 'm':
            o->more = strtol(optarg, NULL, 10);
            break;
        case 'p':
            o->processes = strtol(optarg, NULL, 10);
            break;
        case 'r':
            o->rounds = strtol(optarg, NULL, 10);
            break;
        case 'l':
            o->lose = true;
            break;
        case 'w':
            o->wait = true;
            break;
        case 'b':
            o->beat_s = strtol(optarg, NULL, 10);
            break;
        case 'x':
            o->muster = optarg;
            break;
        case 'e':
            colon = strrchr(optarg, ':');
            if (!colon || (size_t)(colon - optarg) >= sizeof o->host)
                return false;
            (void)snprintf(o->host, sizeof o->host, "%.*s", (int)(colon - optarg),
                           optarg);
            o->port = (uint16_t)strtol(colon + 1, NULL, 10);
            break;
        default:
            return false;
        }
    }
    return o->nodes > 0 && o->more >= 0 && o->rounds > 0 && o->processes > 0 &&
           o->processes <= MAX_PROCESSES && o->processes <= o->nodes;
}

static const char *beside_us(void)
{
    static char path[4096];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 8);
    char *slash;

    if (n <= 0)
        return "muster";
    path[n] = '\0';
    slash = strrchr(path, '/');
    (void)strcpy(slash + 1, "muster");
    return path;
}

static void allow_many(void)
{
    struct rlimit most = { 65536, 65536 };

    (void)signal(SIGPIPE, SIG_IGN);
    (void)setrlimit(RLIMIT_NOFILE, &most);
}

int bench_rdzv(int argc, char **argv)
{
    struct run r = { .o = { .nodes = 128, .processes = 2, .rounds = 1 } };
    double first = 0, again = 0, lost = -1, beat = -1, cpu;
    int rc = 1;

    r.o.muster = beside_us();
    if (!parse(argc, argv, &r.o)) {
        fputs("muster-bench rdzv: wrong options, see bench/rdzv.c\n", stderr);
        return 2;
    }
    allow_many();
    r.seen = calloc((size_t)(r.o.nodes + r.o.more), sizeof *r.seen);
    if (!r.o.port)
        r.store = store_start(&r.o);
    if (!r.seen || r.store < 0 || start_crews(&r) < 0) {
        fprintf(stderr, "muster-bench: cannot start %s\n", r.o.muster);
        goto out;
    }
    for (int i = 0; i < r.o.rounds; i++) {
        double s;

        if (i && r.o.wait) {
            printf("joined\n");
            (void)fflush(stdout);
            (void)getchar();
        }
        s = one_round(&r, i);

        if (s < 0)
            goto out;
        *(i ? &again : &first) = s;
    }
    cpu = store_cpu_s(r.store);
    if (r.o.beat_s) {
        (void)sleep((unsigned)r.o.beat_s);
        beat = (store_cpu_s(r.store) - cpu) / (double)r.o.beat_s;
    }
    if (r.o.lose && (lost = one_loss(&r)) < 0)
        goto out;
    printf("{\"bench\": \"rdzv\", \"nodes\": %ld, \"more\": %ld, \"seconds\": %.4f, "
           "\"again_seconds\": %.4f, \"lost_seconds\": %.4f, \"beat_cpu\": %.4f, "
           "\"host_cpu_seconds\": %.3f, \"host_peak_kb\": %ld}\n",
           r.o.nodes, r.o.more, first, again, lost, beat, cpu, store_peak_kb(r.store));
    rc = 0;
out:
    stop(&r);
    free(r.seen);
    return rc;
}
