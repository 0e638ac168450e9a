/* notice.c - preemption with a clock. Word that a node, or all of the job, is to go
 * comes as a signal, by Slurm's end time, from a command of the site, or by `muster
 * notice`. It is an entry of the record, so that every agent hears it at once and tells
 * its workers: by a signal or a command, and by MUSTER_NOTICE_FILE. They have until the
 * deadline. The core ends the attempt; then the node that is to go leaves, and the
 * others begin without it once it has gone, if enough of them are left. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "agent/agent_int.h"
#include "base/err.h"
#include "base/escape.h"
#include "base/mem.h"
#include "logs/directories.h"
#include "loop/clock.h"
#include "policy/core/notice.h"

#define GOING_MOST  64u
#define SLACK_MS    5000u /* that a node may take to leave after its deadline */
#define LATEST_MS   2000u /* before the deadline those who are late are killed */
#define ANSWER_SIZE 64u

struct agent_notice {
    struct agent *agent;
    struct notice_sources from;
    int sig;                    /* for the workers; 0: a command */
    bool ours;                  /* this node is to go */
    bool ends;                  /* the job cannot go on without those who are to go */
    bool all;                   /* the whole job is */
    uint64_t began_ms;          /* when the first word came; 0: none has */
    uint64_t by_ms;             /* when the node that goes first must be gone */
    uint32_t going[GOING_MOST]; /* nodes that are to go and have not gone */
    size_t count;
    struct deadline end; /* of Slurm's job */
    char text[256];      /* from whom */
    char *path;          /* owned: MUSTER_NOTICE_FILE */
    int fd;
    struct guard_service *watcher; /* the command of --notice */
    struct guard_service *answer;  /* that of --on-notice, while it runs */
    struct deadline patience;      /* with it, once the workers have gone; then: */
    void (*then)(void *agent);
    int pipe; /* what it prints; -1: none */
};

static struct agent_notice *notice_of(struct agent *a)
{
    struct agent_notice *n = a->notice ? NULL : mem_calloc(1, sizeof *n);

    if (n) {
        n->agent = a;
        n->sig = SIGTERM;
        n->fd = n->pipe = -1;
        a->notice = n;
    }
    return a->notice;
}

const char *agent_notice_file(const struct agent *a)
{
    return a->notice ? a->notice->path : NULL;
}

/* --- the workers hear of it ------------------------------------------------------- */

static void write_file(struct agent_notice *n, int64_t deadline_us)
{
    char text[NOTICE_FILE_SIZE + 1];

    if (n->fd < 0)
        return;
    notice_file_text(text, deadline_us);
    if (pwrite(n->fd, text, NOTICE_FILE_SIZE, 0) != (ssize_t)NOTICE_FILE_SIZE)
        log_line(n->agent->log, LOG_WARN, AT_AGENT, "%s cannot be written", n->path);
}

static void make_file(struct agent_notice *n)
{
    n->path = mem_printf("%s/muster-notice-XXXXXX", log_dirs_temp(n->agent->opts.envp));
    n->fd = n->path ? mkostemp(n->path, O_CLOEXEC) : -1;
    if (n->fd < 0) {
        log_line(n->agent->log, LOG_WARN, AT_AGENT,
                 "no MUSTER_NOTICE_FILE: %s cannot be made", n->path ? n->path : "it");
        mem_free(n->path);
        n->path = NULL;
    }
    write_file(n, 0);
}

static void go_on(void *ctx)
{
    struct agent_notice *n = ((struct agent *)ctx)->notice;
    void (*then)(void *agent) = n->then;

    if (n->answer) { /* Its time is up. */
        guard_service_signal(n->answer, SIGKILL);
        guard_service_forget(n->answer);
        n->answer = NULL;
    }
    n->then = NULL;
    if (then)
        then(n->agent);
}

bool agent_notice_busy(struct agent *a, void (*then)(void *agent))
{
    struct agent_notice *n = a->notice;

    if (!n || !n->answer)
        return false;
    n->then = then;
    deadline_set(&n->patience, n->by_ms);
    return true;
}

static void on_answer_exit(void *ctx, int status, int errnum)
{
    struct agent *a = ctx;

    a->notice->answer = NULL;
    if (a->notice->then)
        deadline_set(&a->notice->patience, clock_mono_ms());
    if (status || errnum)
        log_line(a->log, LOG_WARN, AT_AGENT, "the command of --on-notice failed: %s",
                 errnum ? strerror(errnum) : "it did not exit with 0");
}

static const struct guard_service_events answer_events = { .on_exited =
                                                               on_answer_exit };

static struct guard_service *start_command(struct agent *a, const char *command,
                                           const char *seconds, int out,
                                           const struct guard_service_events *events)
{
    const char *const argv[] = { "/bin/sh", "-c", command, NULL };
    struct guard_service *service = NULL;
    struct text_list env = { 0 };
    struct muster_error err;

    for (char *const *e = a->opts.envp; e && *e; e++)
        (void)text_list_add(&env, *e, strlen(*e));
    (void)env_put(&env, "MUSTER_NOTICE_LEFT", seconds);
    if (a->notice->path)
        (void)env_put(&env, "MUSTER_NOTICE_FILE", a->notice->path);
    const struct guard_service_spec spec = {
        .proc = { .argv = (char *const *)(uintptr_t)argv,
                  .envp = env.items,
                  .fd = { -1, out, -1 },
                  .session = true },
        .fds = { -1, -1 },
    };
    if (env.err || guard_service_start(a->guard, &spec, events, a, &service, &err) < 0)
        log_line(a->log, LOG_WARN, AT_AGENT, "'%s' cannot be started", command);
    text_list_fini(&env);
    return service;
}

/* How many nodes are there, or would come if they could. */
static int64_t nodes_here(const struct agent *a)
{
    const struct record *r = session_record(a->job.session);
    int64_t n = 0;

    for (size_t i = 0; i < r->count; i++) {
        const struct record_entry e = record_at(r, i);
        struct span body = e.body;
        struct record_node node;

        while (e.kind == RECORD_NODES && record_nodes_next(&body, &node))
            n += !record_node_ended(r, node.number);
    }
    return MAX_OF(n, a->round.world_size);
}

static bool hosts_the_job(const struct agent *a, uint32_t node)
{
    struct record_entry round;

    return strncmp(a->config->rdzv.backend, "etcd", 4) != 0 &&
           record_find(session_record(a->job.session), RECORD_ROUND, -1, &round) &&
           round.node == node;
}

/* Whether the job cannot go on without those who are to go. */
static bool job_ends(const struct agent *a)
{
    const struct agent_notice *n = a->notice;

    for (size_t i = 0; i < n->count; i++)
        if (hosts_the_job(a, n->going[i]))
            return true;
    return n->all || nodes_here(a) - (int64_t)n->count < a->config->rdzv.min_nodes;
}

static void put_clock(char *to, size_t size, uint64_t ms_from_now)
{
    const time_t at = time(NULL) + (time_t)(ms_from_now / 1000);
    struct tm tm;

    if (!localtime_r(&at, &tm) || strftime(to, size, "%H:%M:%S", &tm) == 0)
        to[0] = '\0';
}

/* The first word of a round: tells the workers of this node. */
static void tell_workers(struct agent *a, const struct record_entry *e, uint64_t ms)
{
    struct agent_notice *n = a->notice;
    const struct span who = n->all ? span_str("the job") : e->host;
    char at[16], seconds[24];

    put_clock(at, sizeof at, ms);
    log_line(a->log, LOG_WARN, AT_JOB,
             "%s%.*s is to go at %s (%.*s). %s to %" PRId64 " rank%s on %" PRId64
             " node%s; %" PRIu64 " s left.",
             n->all ? "" : "node ", (int)who.n, (const char *)who.p, at, (int)e->text.n,
             (const char *)e->text.p, n->sig ? signal_name(n->sig) : "Word",
             a->range.world_size, a->range.world_size == 1 ? "" : "s",
             a->round.world_size, a->round.world_size == 1 ? "" : "s", ms / 1000);
    write_file(n, clock_now().wall_us + (int64_t)ms * 1000);
    if (n->sig == 0) {
        (void)snprintf(seconds, sizeof seconds, "%" PRIu64, ms / 1000);
        n->answer = start_command(a, a->config->on_notice, seconds, -1, &answer_events);
    }
}

/* --- word comes ------------------------------------------------------------------- */

static void hear(struct agent *a, const struct record_entry *e, bool ours)
{
    struct agent_notice *n = notice_of(a);
    const uint64_t ms = (uint64_t)MAX_OF(e->wait_us, 0) / 1000;
    const bool first = n && n->began_ms == 0;

    if (!n)
        return;
    n->all |= e->count > 0;
    n->ours |= ours || n->all;
    for (size_t i = 0; i < n->count; i++)
        if (n->going[i] == e->node)
            return;
    if (n->count < GOING_MOST)
        n->going[n->count++] = e->node;
    n->ends |= job_ends(a);
    if (first) {
        n->began_ms = clock_mono_ms();
        n->by_ms = n->began_ms + ms;
        (void)escape_text(n->text, sizeof n->text, e->text);
        tell_workers(a, e, ms);
    }
    const uint64_t work_ms = ms - MIN_OF(ms / 10, LATEST_MS);

    agent_post(a, n->ours ? AGENT_EV_NOTICE_OURS : AGENT_EV_NOTICE, (int64_t)work_ms,
               n->sig);
}

/* This node, or with all the whole job, is to go in so many milliseconds. */
static void publish_notice(struct agent *a, const char *text, uint64_t ms, bool all)
{
    struct record_entry e = { .kind = RECORD_NOTICE,
                              .cause = CAUSE_NOTICE,
                              .round = agent_job_round(a),
                              .node = session_node(a->job.session),
                              .rank = -1,
                              .local_rank = -1,
                              .pid = getpid(),
                              .count = all,
                              .wait_us = (int64_t)ms * 1000,
                              .text = span_str(text) };

    if (!notice_of(a) || a->notice->ours)
        return;
    if (session_state(a->job.session) != SESSION_NONE)
        (void)session_publish(a->job.session, &e);
    e.host = span_str(a->host);
    if (!all)
        hear(a, &e, true); /* even if nobody else can be told */
    else if (session_state(a->job.session) == SESSION_UNSHARED)
        log_line(a->log, LOG_WARN, AT_JOB,
                 "the other nodes cannot be told of the notice: a torchrun serves the "
                 "store");
    agent_pump(a);
}

void agent_notice_entry(struct agent *a, const struct record_entry *e)
{
    struct agent_notice *n = a->notice;

    if (e->kind == RECORD_NOTICE) {
        if (a->core.phase != AGENT_DONE && (!n || !n->ours) &&
            (e->count > 0 || e->node != session_node(a->job.session)))
            hear(a, e, false);
        return;
    }
    for (size_t i = 0; n && i < n->count; i++) /* LEFT or LOST */
        if (n->going[i] == e->node) {
            n->going[i] = n->going[--n->count];
            if (n->count == 0)
                agent_policy_release(a);
            return;
        }
}

bool agent_notice_signal(struct agent *a, int sig, const char *from)
{
    const struct agent_notice *n = a->notice;
    uint64_t ms = ms_of_seconds(a->config->shutdown_timeout_s);

    for (size_t i = 0; n && i < n->from.count; i++)
        if (n->from.signals[i].sig == sig) {
            if (n->ours) /* Again: whoever asks twice means it. */
                return false;
            publish_notice(a, from, n->from.signals[i].ms ? n->from.signals[i].ms : ms,
                           false);
            return true;
        }
    return false;
}

static void on_slurm_end(void *ctx)
{
    struct agent *a = ctx;

    publish_notice(a, "the time limit of its Slurm job", a->notice->from.slurm_ms,
                   false);
}

/* SLURM_JOB_END_TIME is in seconds since 1970. */
static void watch_slurm(struct agent *a)
{
    struct agent_notice *n = a->notice;
    const char *text = env_get(a->opts.envp, "SLURM_JOB_END_TIME");
    const long long end = text ? strtoll(text, NULL, 10) : 0;
    const int64_t left_ms =
        end > 0 ? (end * 1000000LL - clock_now().wall_us) / 1000 : INT64_MAX;

    if (n->from.count < NOTICE_SIGNALS)
        n->from.signals[n->from.count++].sig = SIGTERM;
    deadline_init(&n->end, &a->loop, on_slurm_end, a);
    uv_unref((uv_handle_t *)&n->end.timer);
    if (left_ms == INT64_MAX)
        log_line(
            a->log, LOG_WARN, AT_AGENT,
            "--notice=slurm: SLURM_JOB_END_TIME is not set, so only SIGTERM counts");
    else
        deadline_set(&n->end,
                     clock_mono_ms() +
                         (uint64_t)MAX_OF(left_ms - (int64_t)n->from.slurm_ms, 1));
}

/* The last number that it has printed is how many seconds are left. */
static void on_watcher_exit(void *ctx, int status, int errnum)
{
    struct agent *a = ctx;
    struct agent_notice *n = a->notice;
    char text[ANSWER_SIZE] = "";
    const ssize_t got = n->pipe >= 0 ? read(n->pipe, text, sizeof text - 1) : 0;

    n->watcher = NULL;
    text[got > 0 ? got : 0] = '\0';
    const double seconds = strtod(text, NULL);
    const uint64_t ms = seconds > 0 && seconds * 1000 < NOTICE_MOST_MS
                            ? (uint64_t)(seconds * 1000)
                            : ms_of_seconds(a->config->shutdown_timeout_s);

    if (status || errnum)
        log_line(
            a->log, LOG_WARN, AT_AGENT,
            "the command of --notice ended with an error, so it will tell nothing: "
            "%s",
            errnum ? strerror(errnum) : a->config->notice);
    else
        publish_notice(a, "the command of --notice", ms, false);
}

static const struct guard_service_events watcher_events = { .on_exited =
                                                                on_watcher_exit };

static void watch_command(struct agent *a)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
        return;
    a->notice->watcher =
        start_command(a, a->config->notice, "", ends[1], &watcher_events);
    close(ends[1]);
    a->notice->pipe = ends[0];
}

/* `muster notice`: the whole job is to go. */
static void on_asked(void *ctx, struct local_request *r, const json_t *body)
{
    struct agent *a = ctx;
    const json_int_t ms = json_integer_value(json_object_get(body, "ms"));

    if (ms <= 0 || ms > NOTICE_MOST_MS) {
        local_request_refuse(r, "the time must be between 1ms and 1d");
        return;
    }
    if (session_state(a->job.session) == SESSION_NONE) {
        local_request_refuse(r, "the job has not begun");
        return;
    }
    publish_notice(a, "muster notice", (uint64_t)ms, true);
    local_request_answer_json(r, json_pack("{s:I}", "ms", ms));
}

/* --- open and close --------------------------------------------------------------- */

int agent_notice_open(struct agent *a, struct muster_error *err)
{
    const struct launch_config *c = a->config;

    if (!c->notice && !c->on_notice)
        return 0;
    if (!notice_of(a))
        return err_nomem(err);
    int rc = notice_parse(&a->notice->from, c->notice, err);
    if (rc == 0)
        rc = notice_answer_parse(&a->notice->sig, c->on_notice, err);
    return rc;
}

void agent_notice_on(struct agent *a)
{
    if (a->local)
        (void)local_socket_register(a->local, "notice", on_asked, a);
    if (!a->notice)
        return;
    make_file(a->notice);
    deadline_init(&a->notice->patience, &a->loop, go_on, a);
    if (a->notice->from.slurm)
        watch_slurm(a);
    if (a->notice->from.command)
        watch_command(a);
}

int agent_notice_next_signal(const struct agent *a, size_t i)
{
    return a->notice && i < a->notice->from.count ? a->notice->from.signals[i].sig : 0;
}

void agent_notice_close(struct agent *a)
{
    struct agent_notice *n = a->notice;

    if (!n)
        return;
    if (n->end.fn)
        uv_close((uv_handle_t *)&n->end.timer, NULL);
    if (n->patience.fn)
        uv_close((uv_handle_t *)&n->patience.timer, NULL);
    if (n->watcher)
        guard_service_forget(n->watcher);
    if (n->answer)
        guard_service_forget(n->answer);
    n->watcher = n->answer = NULL;
    if (n->pipe >= 0)
        close(n->pipe);
    if (n->fd >= 0) {
        close(n->fd);
        (void)unlink(n->path);
    }
}

void agent_notice_free(struct agent *a)
{
    if (a->notice)
        mem_free(a->notice->path);
    mem_free(a->notice);
    a->notice = NULL;
}

/* --- what comes of it ------------------------------------------------------------- */

static bool is_pending(const struct agent *a)
{
    return a->notice && a->notice->began_ms && a->notice->count > 0;
}

int agent_notice_outcome(struct agent *a)
{
    const struct agent_notice *n = a->notice;
    const int64_t all = a->config->nproc;
    int64_t killed = 0;

    if (!n || n->began_ms == 0 ||
        (a->core.why != WHY_NOTICE && a->core.why != WHY_MEMBERSHIP))
        return 0;
    for (int64_t i = 0; i < all; i++)
        killed += a->workers[i].code == -SIGKILL;
    const char *then =
        n->ends || n->ours
            ? (a->config->exit_by_cause ? " (exit code 75: try again)" : "")
            : "; the job goes on without the node that leaves";
    const double s = (double)(clock_mono_ms() - n->began_ms) / 1e3;

    if (killed)
        log_line(a->log, LOG_WARN, AT_JOB,
                 "%" PRId64 " of %" PRId64
                 " ranks here were late and have been killed after %.1f s%s",
                 killed, all, s, then);
    else
        log_line(a->log, LOG_WARN, AT_JOB,
                 "%s%" PRId64 " rank%s here ended by %s after %.1f s%s",
                 all > 1 ? "all " : "", all, all > 1 ? "s" : "",
                 all > 1 ? "themselves" : "itself", s, then);
    return n->ends ? AGENT_JOB_ENDS : 0;
}

uint64_t agent_notice_until(const struct agent *a)
{
    return is_pending(a) && !a->notice->ours ? a->notice->by_ms + SLACK_MS : 0;
}

/* The others go on: what was told has been done. */
void agent_notice_over(struct agent *a)
{
    struct agent_notice *n = a->notice;

    if (!n || n->began_ms == 0 || n->ours)
        return;
    n->began_ms = n->by_ms = 0;
    n->count = 0;
    write_file(n, 0);
}

const char *agent_notice_text(const struct agent *a)
{
    return a->notice ? a->notice->text : "";
}
