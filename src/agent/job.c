/* job.c - this node as a part of its job: what it tells the coordinator over the job
 * session (job/session.h), and what follows from what the coordinator says. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agent/agent_int.h"
#include "base/escape.h"
#include "base/mem.h"
#include "job/core/judge.h"
#include "job/core/report.h"
#include "job/run_clock.h"
#include "loop/clock.h"
#include "loop/file.h"

#define LAST_MS 3000u /* before AGENT_CLOSE_MS, when the run is closed for all */
#define SYNC_MS 2000u /* a store that is there answers in milliseconds */
/* By then every living node has noticed the loss of the coordinator and left its round.
 */
#define STRAGGLERS_MS 1200u
#define GIVE_UP_MS                                                                     \
    300u /* likewise, for a node that must leave within AGENT_CLOSE_FATAL_MS */

static bool is_static(const struct agent *a)
{
    return strcmp(a->config->rdzv.backend, "static") == 0;
}

/* Nodes of a static rendezvous each count their own rounds. To the job it is one round,
 * in which nodes begin again. */
int64_t agent_job_round(const struct agent *a)
{
    return is_static(a) ? 0 : (int64_t)a->round.round;
}

/* --- who is gone ------------------------------------------------------------------ */

/* Whether this node takes part in a round right now. In the next round the seats belong
 * to other nodes, and a coordinator may have gone because nobody needed it any more. */
static bool is_member(const struct agent *a)
{
    return a->core.phase >= AGENT_ASSIGNING && a->core.phase <= AGENT_BARRIER;
}

/* Where nodes find out for themselves who is there, a broken connection says it sooner
 * than heartbeats that stop. */
static bool node_gone(struct agent *a, uint64_t round, int64_t rank)
{
    const struct rdzv_handler_ops *ops = a->handler->ops;

    if (!ops->node_gone || !ops->node_gone(a->handler, round, rank) || !is_member(a))
        return false;
    agent_post(a, AGENT_EV_NODE_LOST, 0, 0);
    return true;
}

/* Only the coordinator was connected to all nodes. A node that was lost together with
 * it shows by staying in a round that all others have left. */
static void on_stragglers(void *ctx)
{
    struct agent *a = ctx;

    if (a->core.phase == AGENT_JOINING && a->round.round == a->job.lost_round)
        (void)a->handler->ops->node_gone(a->handler, a->job.lost_round, -1);
}

static void on_host(void *ctx, bool there, int64_t round, int64_t rank)
{
    struct agent *a = ctx;

    if (there) {
        agent_post(a, AGENT_EV_JUDGE_BACK, 0, 0);
    } else if (round >= 0 && is_member(a) && node_gone(a, (uint64_t)round, rank)) {
        log_line(a->log, LOG_WARN, AT_AGENT,
                 "the node that served the workers' store of round %" PRIu64
                 " (%s) is gone: nobody listens there any more",
                 a->round.round, a->round.master_addr);
        agent_post(a, AGENT_EV_JUDGE_GONE, 0, 0);
        a->job.lost_round = (uint64_t)round;
        deadline_set(&a->job.stragglers, clock_mono_ms() + STRAGGLERS_MS);
    }
    agent_pump(a);
}

/* --- what the coordinator says ---------------------------------------------------- */

/* The warm interpreter has made all workers of this node. */
static bool all_warm(const struct agent *a)
{
    for (int64_t i = 0; i < a->config->nproc; i++)
        if (!a->workers[i].forked)
            return false;
    return true;
}

enum log_level agent_restart_level(const struct agent *a, enum log_level usual)
{
    return a->job.restarts.skipped ? LOG_DEBUG : usual;
}

/* All nodes have started their workers after a restart; said once. Nodes of a static
 * rendezvous restart each for itself. */
static void log_back_at_work(struct agent *a, const struct record_entry *e)
{
    struct record_entry round;

    if (a->job.failed_us == 0 || e->round <= a->job.failed_round ||
        !record_find(session_record(a->job.session), RECORD_ROUND, e->round, &round))
        return;
    const double ms = (double)(e->at_us - a->job.failed_us) / 1e3;
    char after[32];

    (void)snprintf(after, sizeof after, ms < 1000 ? "%.0f ms" : "%.1f s",
                   ms < 1000 ? ms : ms / 1e3);
    log_line(a->log, agent_restart_level(a, LOG_WARN), AT_JOB,
             "%" PRId64 " rank%s on %" PRId64 " node%s started again after %s%s",
             round.total, round.total == 1 ? "" : "s", round.count,
             round.count == 1 ? "" : "s", after, all_warm(a) ? " (warm)" : "");
    a->job.failed_us = 0;
}

static void agent_log_restart(struct agent *a, const struct record_entry *e);

/* The coordinator notices a loss later than the rendezvous, perhaps in the next round.
 * A node that is new to the job hears of all that was before, which is not its affair.
 */
static bool is_news(const struct agent *a, const struct record_entry *e)
{
    return a->starts > 0 && e->node != session_node(a->job.session) && e->round >= 0 &&
           e->round + 1 >= agent_job_round(a);
}

/* Nodes that were told to go may be many, and perhaps we are about to be told, too: so
 * one is named, and whatever waits for others counts them. */
static void on_node_gone(struct agent *a, const struct record_entry *e)
{
    struct gone_nodes *g = &a->job.gone;
    const bool lost = e->kind == RECORD_LOST;

    if (lost && e->node != a->job.gone_node)
        log_line(a->log, LOG_WARN, AT_JOB, "%.*s", (int)e->text.n,
                 (const char *)e->text.p);
    else if (!lost && g->count == 0 && a->core.signal == 0 && e->text.n)
        log_line(a->log, LOG_WARN, AT_JOB, "%.*s left the job (%.*s)", (int)e->host.n,
                 (const char *)e->host.p, (int)e->text.n, (const char *)e->text.p);
    a->job.gone_node = e->node;
    if (e->round != agent_job_round(a))
        return;
    g->count++;
    g->lost = lost;
    g->at_ms = clock_mono_ms();
    (void)escape_text(g->last, sizeof g->last, e->host);
    if (a->job.failed_us == 0) {
        a->job.failed_us = e->at_us;
        a->job.failed_round = e->round;
    }
}

static void on_entry(void *ctx, const struct record_entry *e)
{
    struct agent *a = ctx;
    const bool ours = a->job.ranks_sent && e->round == agent_job_round(a);
    const bool finish = a->config->on_failure_finish;

    agent_status_news(a);
    agent_notify_entry(a, e);
    if (e->kind == RECORD_RESTART) {
        agent_log_restart(a, e);
        if (a->job.restarts.skipped == 0)
            agent_write_report(a);
    }
    if ((e->kind == RECORD_LOST || e->kind == RECORD_LEFT) && is_news(a, e))
        on_node_gone(a, e);
    if (e->kind == RECORD_NOTICE
            ? e->count > 0 || (a->starts > 0 && e->round >= agent_job_round(a))
            : e->kind == RECORD_LEFT || e->kind == RECORD_LOST) {
        agent_notice_entry(a, e);
        agent_pump(a);
    }
    if (e->kind == RECORD_NOTE && a->hang)
        agent_hang_entry(a, e);
    if (e->kind == RECORD_NOTE && e->cause == CAUSE_POLICY &&
        e->node == session_node(a->job.session))
        log_line(a->log, LOG_WARN, AT_JOB, "%.*s", (int)e->text.n,
                 (const char *)e->text.p);
    /* Do so even if we have left the round because of another loss: otherwise the next
     * round would wait for this node, too. */
    if (e->kind == RECORD_LOST && e->total > 0 && a->core.phase <= AGENT_BARRIER &&
        node_gone(a, (uint64_t)e->total - 1, e->code))
        agent_pump(a);
    if (!ours)
        return;
    switch (e->kind) {
    case RECORD_ENDING:
        if (!finish)
            agent_post(a, AGENT_EV_PEER_FAILED, 0, (int)e->code);
        break;
    case RECORD_RESTART:
        if (e->cause == CAUSE_NOTICE) /* The workers here have until the deadline. */
            break;
        a->job.failed_us = e->at_us;
        a->job.failed_round = e->round;
        if (!a->job.own_budget)
            agent_policy_hold(a, (uint64_t)e->wait_us / 1000);
        if (!a->job.own_budget)
            agent_post(a, AGENT_EV_RESTART, e->count, 0);
        else if (e->cause == CAUSE_MEMBERSHIP && /* It has been counted here already. */
                 e->node == session_node(a->job.session))
            agent_post(a, AGENT_EV_RESTART, e->count, 1);
        else if (e->cause == CAUSE_MEMBERSHIP && a->core.phase == AGENT_JUDGING)
            agent_post(a, AGENT_EV_RESTART, agent_core_attempt(&a->core), 1);
        break;
    case RECORD_VERDICT:
        if (e->cause != CAUSE_SUCCEEDED && !(finish && a->core.alive > 0))
            agent_post(a, AGENT_EV_VERDICT, 0, 0);
        break;
    case RECORD_PHASES:
        log_back_at_work(a, e);
        break;
    case RECORD_NONE:
    case RECORD_NODES:
    case RECORD_ROUND:
    case RECORD_ENDED:
    case RECORD_LEFT:
    case RECORD_LOST:
    case RECORD_FAILED:
    case RECORD_NOTE:
    case RECORD_NOTICE:
    case RECORD_KIND_COUNT:
        break;
    }
    agent_pump(a);
}

int agent_job_open(struct agent *a, struct muster_error *err)
{
    const struct session_opts opts = { .loop = &a->loop,
                                       .run_id = a->config->rdzv.run_id,
                                       .host = a->host,
                                       .addr = a->config->rdzv.local_addr,
                                       .pid = getpid(),
                                       .nproc = a->config->nproc,
                                       .role = a->config->role,
                                       .max_restarts = a->config->max_restarts,
                                       .policy = a->config->policy,
                                       .auth = a->handler->auth,
                                       .nonce = a->handler->nonce,
                                       .log = a->log,
                                       .on_entry = on_entry,
                                       .on_host = on_host,
                                       .ctx = a };

    const int rc = session_open(&opts, &a->job.session, err);

    if (rc < 0)
        return rc;
    deadline_init(&a->job.stragglers, &a->loop, on_stragglers, a);
    if (a->handler->ops->use_session)
        a->handler->ops->use_session(a->handler, a->job.session);
    return 0;
}

void agent_job_close(struct agent *a)
{
    if (!a->job.session)
        return;
    session_close(a->job.session, NULL, NULL);
    uv_close((uv_handle_t *)&a->job.stragglers.timer, NULL);
    a->job.session = NULL;
}

/* --- rounds ----------------------------------------------------------------------- */

static void begin(struct agent *a)
{
    const struct rdzv_handler_ops *ops = a->handler->ops;
    const struct record *r = session_record(a->job.session);
    const int64_t round = agent_job_round(a);
    struct record_entry e;

    a->job.assigned = false;
    a->job.own_budget =
        is_static(a) || (ops->torch_nodes && ops->torch_nodes(a->handler) > 0);
    agent_policy_started(a);
    /* A worker of another node has failed before we were ready to start ours: this
     * round is over already. */
    if (!a->job.own_budget && record_find(r, RECORD_VERDICT, round, &e)) {
        agent_post(a, AGENT_EV_VERDICT, 0, 0);
        return;
    }
    if (!a->job.own_budget && record_find(r, RECORD_RESTART, round, &e)) {
        agent_post(a, AGENT_EV_NODE_LOST, 0, 0);
        return;
    }
    a->job.ranks_sent = true;
    session_ranks(a->job.session, round, a->range.base_rank, a->config->nproc,
                  a->round.world_size, a->job.own_budget);
    agent_post(a, AGENT_EV_ASSIGNED, r->restarts, !a->job.own_budget);
}

/* All entries from before this round have arrived; above all, we know which restart it
 * is. */
static void on_synced(void *ctx)
{
    struct agent *a = ctx;

    a->job.synced = true;
    if (a->job.assigned) {
        begin(a);
        agent_pump(a);
    }
}

void agent_job_joined(struct agent *a)
{
    const struct rdzv_handler_ops *ops = a->handler->ops;
    struct rdzv_store_at at = { 0 };

    a->job.synced = a->job.assigned = a->job.ranks_sent = false;
    a->job.gone = (struct gone_nodes){ 0 };
    if (a->round.rank == 0 && a->round.master_addr) /* That is us. */
        session_set_addr(a->job.session, a->round.master_addr);
    if (ops->store_at && ops->store_at(a->handler, &at) && !at.alone)
        session_attach(a->job.session, at.host, at.port, at.local, at.records);
    else
        session_attach_alone(a->job.session,
                             !at.alone && a->config->rdzv.max_nodes > 1);
    session_seat(a->job.session, (int64_t)a->round.round, a->round.rank);
    /* If the round came over the session, so did every entry from before it. */
    a->job.synced = session_has_seats(a->job.session);
    if (!a->job.synced)
        session_sync(a->job.session, SYNC_MS, on_synced, a);
}

/* A spare has no round yet, and may never have one. All the same it should know what
 * the job does, and the others should know that it is there. On etcd it learns only
 * with its round where the coordinator is. */
void agent_job_spare(struct agent *a)
{
    const struct rdzv_handler_ops *ops = a->handler->ops;
    struct rdzv_store_at at;

    if (session_state(a->job.session) == SESSION_NONE && ops->store_at &&
        ops->store_at(a->handler, &at) && !at.alone)
        session_attach(a->job.session, at.host, at.port, at.local, at.records);
}

void agent_job_assigned(struct agent *a)
{
    a->job.assigned = true;
    if (a->job.synced)
        begin(a);
}

static void agent_log_restart(struct agent *a, const struct record_entry *e)
{
    struct buf b;

    if (e->cause == CAUSE_NODE_LOST && e->node == a->job.gone_node)
        return; /* Its loss has been told. */
    buf_init(&b, 4096);
    if (e->cause == CAUSE_NODE_LOST)
        a->job.gone_node = e->node;
    const bool shown = restart_print_once(&b, &a->job.restarts, e);
    (void)buf_u8(&b, 0);
    if (shown && buf_error(&b) == 0)
        log_line(a->log, LOG_WARN, AT_JOB, "%s", (const char *)buf_data(&b));
    buf_fini(&b);
}

/* How far local time is ahead of UTC. */
static int64_t zone(void)
{
    const time_t now = time(NULL);
    struct tm tm;

    return localtime_r(&now, &tm) ? tm.tm_gmtoff : 0;
}

char *agent_verdict(struct agent *a, enum agent_core_why why)
{
    const struct log_screen *screen = a->opts.log->screen;
    const char *path = a->config->report;
    const char *slash = path ? strrchr(path, '/') : NULL;
    /* A hidden file is for a program, which removes it before a person could look. */
    const bool hidden = path && (slash ? slash[1] : path[0]) == '.';
    const struct verdict_style style = { .colours = screen && screen->colours,
                                         .report_path = hidden ? NULL : path,
                                         .zone_s = zone(),
                                         .exit_code = a->config->exit_by_cause
                                                          ? agent_exit_code(a, why, 1)
                                                          : 0 };
    const struct record *r = session_record(a->job.session);
    struct record_entry v;
    char *text = NULL;
    struct buf b;

    if ((why != WHY_FAILURE && why != WHY_FATAL) ||
        (why == WHY_FATAL && record_find(r, RECORD_VERDICT, -1, &v) &&
         (v.cause == CAUSE_RENDEZVOUS ||
          (v.cause == CAUSE_START && !session_shared(a->job.session)))))
        return NULL;
    buf_init(&b, SIZE_MAX);
    if (verdict_print(&b, r, &style))
        text = mem_strndup((const char *)buf_data(&b), buf_len(&b));
    buf_fini(&b);
    return text;
}

static struct span first_line(const char *text)
{
    return span_of(text, strcspn(text, "\n"));
}

static void on_last_entry(void *ctx)
{
    struct agent *a = ctx;

    session_detach(a->job.session);
    a->job.leave(a);
}

/* The node that serves the store leaves last, since others may be about to receive the
 * verdict or the barrier's result. Other nodes wait for the last entries, which are on
 * their way, so that their report is complete. */
void agent_job_leave(struct agent *a, void (*leave)(struct agent *a))
{
    struct record_entry e = { .kind = RECORD_LEFT,
                              .cause = CAUSE_STOPPED,
                              .round = agent_job_round(a),
                              .rank = -1,
                              .local_rank = -1,
                              .pid = getpid(),
                              .text = span_str(a->stopped_by) };

    a->job.leave = leave;
    if (a->core.why == WHY_NOTICE) {
        e.cause = CAUSE_NOTICE;
        e.text = span_str(agent_notice_text(a));
    }
    if (a->core.why == WHY_NOTICE && a->core.all_go && a->job.ranks_sent) {
        e.kind = RECORD_VERDICT;
        (void)session_publish(a->job.session, &e);
        e.kind = RECORD_LEFT;
    }
    if (a->core.why == WHY_SIGNAL || a->core.why == WHY_NOTICE)
        (void)session_publish(a->job.session, &e);
    if (a->core.why == WHY_FATAL && a->job.ranks_sent && !a->job.cut_off &&
        (a->fatal.code == MUSTER_ETIMEDOUT || a->fatal.code == MUSTER_ECLOSED)) {
        e.kind = RECORD_VERDICT; /* No round came: the coordinator may know why. */
        e.cause = CAUSE_RENDEZVOUS;
        e.text = first_line(a->fatal.text);
        (void)session_publish(a->job.session, &e);
        if (session_shared(a->job.session) && !session_is_local(a->job.session)) {
            session_sync(a->job.session, GIVE_UP_MS, on_last_entry, a);
            return;
        }
    }
    const bool away = session_state(a->job.session) == SESSION_CONNECTING;
    if (session_shared(a->job.session) && session_is_local(a->job.session))
        session_wait_last(
            a->job.session,
            a->core.why == WHY_NOTICE
                ? MAX_OF(ms_left(a->core.due_ms, uv_now(&a->loop)), 2000) - 1000
                : LAST_MS,
            on_last_entry, a);
    else if (a->core.why == WHY_SUCCESS && away) /* It may lack our report. */
        session_sync(a->job.session, 500, on_last_entry, a);
    else if (a->config->report && !away &&
             session_state(a->job.session) != SESSION_NONE)
        session_sync(a->job.session, 500, on_last_entry, a);
    else
        on_last_entry(a);
}

/* Copies s to *at, and moves *at behind the copy. */
static const char *put_text(char **at, struct span s)
{
    char *text = *at;

    if (s.n)
        memcpy(text, s.p, s.n);
    text[s.n] = '\0';
    *at += s.n + 1;
    return text;
}

/* One piece of memory, so that it is freed as one. NULL: there is none. */
static struct muster_failure *failure_of(const struct record_entry *v)
{
    struct muster_failure *f = mem_alloc(sizeof *f + v->text.n + v->host.n +
                                         v->place.n + v->path.n + v->body.n + 5);

    if (!f)
        return NULL;
    char *at = (char *)(f + 1);

    *f = (struct muster_failure){
        .cause = record_cause_name(v->cause),
        .text = put_text(&at, v->text),
        .host = put_text(&at, v->host),
        .place = put_text(&at, v->place),
        .log = put_text(&at, v->path),
        .last_words = put_text(&at, v->body),
        .rank = v->rank,
        .local_rank = v->local_rank,
        .pid = v->pid,
        .exit_code = v->code,
        .time_us = v->at_us,
        .unsure_us = v->unsure_us,
        .restarts = v->count,
        .restarts_allowed = v->total,
    };
    return f;
}

void agent_job_story(struct agent *a)
{
    const struct record *r = session_record(a->job.session);
    struct record_entry v;
    struct buf b;

    buf_init(&b, SIZE_MAX);
    if (report_json(&b, r, a->config->rdzv.run_id, MUSTER_VERSION) == 0)
        a->result->story = mem_strndup((const char *)buf_data(&b), buf_len(&b));
    buf_fini(&b);
    if (record_find(r, RECORD_VERDICT, -1, &v) && v.cause != CAUSE_SUCCEEDED)
        a->result->failure = failure_of(&v);
}

/* Something that exists and is not a regular file, such as /dev/stderr or a pipe, is
 * written to and not replaced. */
static bool is_special(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
}

/* Writes all of it or nothing; a failure is a warning and never fails the job. Agents
 * on nodes that share the directory may have the same process id, so the host is in the
 * name, too. */
void agent_write_report(struct agent *a)
{
    const char *path = a->config->report;
    const bool special = path && is_special(path);
    char *part = path ? mem_printf("%s.%s.%d", path, a->host, (int)getpid()) : NULL;
    struct buf b;
    int fd = -1;
    bool good;

    if (!part)
        return;
    buf_init(&b, SIZE_MAX);
    good = report_json(&b, session_record(a->job.session), a->config->rdzv.run_id,
                       MUSTER_VERSION) == 0;
    errno = ENOMEM;
    if (good && special)
        fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    else if (good)
        fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    good = fd >= 0 && file_write_all(fd, buf_span(&b));
    if (fd >= 0 && close(fd) < 0)
        good = false;
    if (!good || (!special && rename(part, path) < 0)) {
        log_line(a->log, LOG_WARN, AT_AGENT, "the report %s cannot be written: %s",
                 path, strerror(errno));
        if (!special)
            (void)unlink(part);
    }
    buf_fini(&b);
    mem_free(part);
}

/* --- without a coordinator --------------------------------------------------------
 */

/* A worker that we told to go, and that went, has not failed. */
static bool was_stopped(struct agent *a, int64_t i)
{
    const struct agent_worker *w = &a->workers[i];

    return w->signalled_us && (w->code == -a->core.stop_sig || w->code == -9) &&
           !agent_was_failing(a, i);
}

static struct record_entry entry_of(const struct agent *a, int64_t i)
{
    const struct run_now now = run_clock();

    return (struct record_entry){
        .kind = RECORD_FAILED,
        .cause = CAUSE_EXIT,
        .round = agent_job_round(a),
        .rank = a->range.base_rank + i,
        .local_rank = i,
        .pid = a->workers[i].pid,
        .code = a->workers[i].code,
        /* The clock may have been set since it exited. */
        .at_us = now.wall_us - ((int64_t)now.mono_us - a->workers[i].exited_mono_us),
        .count = a->attempt,
        .total = a->job.own_budget ? a->config->max_restarts : -1
    };
}

/* "node1", as far as the record tells who it was, or where it was looked for. */
static void put_coordinator(const struct agent *a, const struct record_node *node,
                            struct buf *text)
{
    const struct rdzv_handler_ops *ops = a->handler->ops;
    const char *endpoint = a->config->rdzv.endpoint;
    struct rdzv_store_at at;

    if (node->number)
        (void)buf_append_span(text, node->host);
    else if (endpoint && endpoint[0])
        (void)buf_printf(text, "the store at %s", endpoint);
    else if (ops->store_at && ops->store_at(a->handler, &at) && !at.alone)
        (void)buf_printf(text, "the store at %s:%u", at.host, at.port);
    else
        (void)buf_append_str(text, "the store of the rendezvous");
}

/* "node1 was lost (its connection broke): it hosted the rendezvous and ranks 0 to 1" if
 * its machine said so. Of silence we know only that we are cut off: "no sign of life
 * for 10.2 s from node1, which hosted the rendezvous and ranks 0 to 1". */
static void blame_coordinator(const struct agent *a, struct record_entry *e,
                              struct buf *text)
{
    const struct session_silence silence = session_silence(a->job.session);
    const struct record *r = session_record(a->job.session);
    struct record_entry round;
    struct record_ranks ranks;
    struct record_node node = { 0 };

    e->rank = e->local_rank = e->pid = -1;
    e->place = e->path = e->body = (struct span){ 0 };
    e->at_us = silence.heard_us;
    if (record_find(r, RECORD_ROUND, -1, &round) &&
        record_host_of(r, round.node, &node)) {
        e->node = node.number;
        e->host = node.host;
    }
    const struct span farewell = record_farewell(r, node.number);
    const bool cut_off = !farewell.n && !silence.broke;

    e->cause = cut_off ? CAUSE_CUT_OFF : CAUSE_NODE_LOST;
    if (cut_off)
        (void)buf_printf(text, "no sign of life for %.1f s from ", silence.silent_s);
    put_coordinator(a, &node, text);
    if (farewell.n)
        (void)buf_printf(text, " left the job (%.*s): it", (int)farewell.n,
                         (const char *)farewell.p);
    else
        (void)buf_append_str(text, cut_off ? ", which"
                                           : " was lost (its connection broke): it");
    (void)buf_append_str(text, strncmp(a->config->rdzv.backend, "etcd", 4) == 0
                                   ? " hosted the workers' store"
                                   : " hosted the rendezvous");
    while (node.number && record_ranks_next(&round.body, &ranks))
        if (ranks.node == node.number && ranks.count == 1)
            (void)buf_printf(text, " and rank %" PRId64, ranks.first);
        else if (ranks.node == node.number)
            (void)buf_printf(text, " and ranks %" PRId64 " to %" PRId64, ranks.first,
                             ranks.first + ranks.count - 1);
    e->text = buf_span(text);
}

/* Finds the failed worker of this node that is most likely the cause. */
static bool worst_of_ours(struct agent *a, struct record_entry *e,
                          struct failure_words *words)
{
    bool any = false;

    for (int64_t i = 0; i < a->config->nproc; i++) {
        const struct agent_worker *w = &a->workers[i];
        struct record_entry f = entry_of(a, i);
        struct failure_words its;

        if (!w->exited || w->code == 0 || was_stopped(a, i))
            continue;
        agent_describe(a, i, &its, &f);
        if (any && judge_compare(e, &f) <= 0) {
            agent_words_fini(&its);
            continue;
        }
        if (any)
            agent_words_fini(words);
        *words = its;
        *e = f;
        any = true;
    }
    return any;
}

/* A job that has ended must say so in its report, and why, also on a node whose
 * coordinator is gone. */
void agent_job_conclude(struct agent *a, enum agent_core_why why)
{
    struct record_entry e = { .kind = RECORD_VERDICT }, there;
    struct failure_words words = { 0 };
    struct buf text;
    bool ours = false;

    if ((why != WHY_FAILURE && why != WHY_FATAL) || a->fatal.code == MUSTER_EGRACEFUL ||
        !a->job.ranks_sent ||
        record_find(session_record(a->job.session), RECORD_VERDICT, -1, &there))
        return;
    buf_init(&text, RECORD_TEXT_MAX);
    const bool away =
        !session_is_local(a->job.session) &&
        (a->job.cut_off || session_state(a->job.session) == SESSION_CONNECTING);
    if (why == WHY_FAILURE)
        ours = worst_of_ours(a, &e, &words);
    if (ours)
        agent_policy_failed(a, &e);
    if (away && (!ours || judge_is_echo(&e))) {
        blame_coordinator(a, &e, &text);
    } else {
        if (!ours) {
            e.cause = a->refused ? CAUSE_START : CAUSE_RENDEZVOUS;
            e.rank = e.local_rank = e.pid = -1;
            e.text = a->refused ? span_str(a->job.refusal) : first_line(a->fatal.text);
        }
        /* A recorder adds it to what is published; here there may be none. */
        e.host = span_str(a->host);
    }
    e.kind = RECORD_VERDICT;
    e.round = agent_job_round(a);
    e.count = agent_core_attempt(&a->core);
    e.total = a->config->max_restarts;
    session_conclude(a->job.session, &e);
    if (ours)
        agent_words_fini(&words);
    buf_fini(&text);
}

void agent_job_refused(struct agent *a, struct span text)
{
    struct record_entry e = { .kind = RECORD_FAILED,
                              .cause = CAUSE_START,
                              .round = agent_job_round(a),
                              .rank = -1,
                              .local_rank = -1,
                              .pid = -1,
                              .code = 127,
                              .count = agent_core_attempt(&a->core),
                              .total = agent_core_attempt(&a->core),
                              .text = text };

    (void)snprintf(a->job.refusal, sizeof a->job.refusal, "%.*s", (int)text.n,
                   (const char *)text.p);
    (void)session_publish(a->job.session, &e);
}

/* --- failures --------------------------------------------------------------------- */

static void publish(struct agent *a, int64_t i)
{
    struct record_entry e = entry_of(a, i);
    struct failure_words words;

    agent_describe(a, i, &words, &e);
    agent_policy_failed(a, &e);
    (void)session_publish(a->job.session, &e);
    agent_words_fini(&words);
}

void agent_job_exited(struct agent *a, int64_t i)
{
    const struct run_now now = run_clock();
    struct agent_worker *w = &a->workers[i];

    w->exited_mono_us = (int64_t)now.mono_us - MAX_OF(now.wall_us - w->exited_us, 0);
    if (w->code != 0 && !w->signalled_us && a->job.ranks_sent &&
        (a->core.phase == AGENT_STARTING || a->core.phase == AGENT_RUNNING))
        publish(a, i);
}

static void put_codes(const struct agent *a, struct buf *b)
{
    struct record_codes run = { 0 };

    for (int64_t i = 0; i < a->config->nproc; i++)
        record_codes_add(
            b, &run,
            (struct record_codes){ a->range.base_rank + i, 1, a->workers[i].code });
    record_codes_end(b, &run);
}

void agent_job_moved(struct agent *a)
{
    if (a->job.ranks_sent)
        session_moved(a->job.session, agent_job_round(a));
}

void agent_job_report(struct agent *a)
{
    int64_t failed = 0, stopped = 0;
    struct buf codes;

    if (!a->job.ranks_sent)
        return;
    for (int64_t i = 0; i < a->config->nproc; i++) {
        const struct agent_worker *w = &a->workers[i];

        if (was_stopped(a, i)) {
            stopped++;
        } else if (w->exited && w->code != 0) {
            failed++;
            if (failed <= RECORD_FAILED_MAX)
                publish(a, i);
        }
    }
    buf_init(&codes, 4096);
    put_codes(a, &codes);
    session_reported(a->job.session, agent_job_round(a), failed, stopped,
                     agent_made_progress(a), buf_span(&codes));
    buf_fini(&codes);
}
