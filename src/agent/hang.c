/* hang.c - glue between the agent and hang/hang.h: when --hang watches, and what
 * follows when the job stands still. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "agent/agent_int.h"
#include "base/duration.h"
#include "hang/hang.h"
#include "logs/directories.h"
#include "loop/file.h"

static const char *terminated_text(struct buf *b)
{
    return buf_u8(b, 0) == 0 && buf_error(b) == 0 ? (const char *)buf_data(b)
                                                  : "(out of memory)";
}

/* --- the file --------------------------------------------------------------------- */

static int create_file(struct agent *a, char *path, size_t size)
{
    const char *run = logs_run(a->logs);

    for (int n = 1; n < 10000; n++) {
        if (!run)
            snprintf(path, size, "%s/muster-stacks-%d-%d.txt",
                     log_dirs_temp(a->opts.envp), (int)getpid(), n);
        else
            snprintf(path, size, "%s/stacks-%d.txt", run, n);
        const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

/* The file has the report that is in the log, and after it each rank in full. */
static bool write_file(struct agent *a, const char *text,
                       const struct stack_sample *sample,
                       const struct stack_findings *f, char *path, size_t size)
{
    const int fd = create_file(a, path, size);
    struct buf b;

    if (fd < 0)
        return false;
    buf_init(&b, SIZE_MAX);
    buf_printf(&b, "%s\n", text);
    (void)stack_findings_print(&b, f, sample);
    for (size_t i = 0; i < sample->count; i++) {
        buf_u8(&b, '\n');
        (void)stack_rank_print(&b, &sample->ranks[i]);
    }
    const bool good = buf_error(&b) == 0 && file_write_all(fd, buf_span(&b));
    buf_fini(&b);
    return close(fd) == 0 && good;
}

/* --- the report ------------------------------------------------------------------- */

static void put_hang_action(struct agent *a, struct buf *b)
{
    switch (a->config->hang_action) {
    case HANG_REPORT:
        buf_printf(b, "Nothing was stopped (--hang=%s:restart would restart).",
                   a->config->hang);
        break;
    case HANG_RESTART:
        buf_append_str(b, a->core.remaining > 0 ? "The workers are restarted."
                                                : "No restart is left: the job ends.");
        break;
    case HANG_STOP:
        buf_append_str(b, "The job ends.");
        break;
    }
}

/* The first of the suspects, or NULL if there are none. */
static const struct stack_rank *first_suspect(const struct stack_findings *f)
{
    return f->suspects > 0 && f->groups[0].suspect ? f->groups[0].ranks[0] : NULL;
}

/* Sends the report to all nodes, for their logs and the record. */
static void publish_hang(struct agent *a, enum record_kind kind, const char *text,
                         const char *body, const char *path,
                         const struct stack_rank *suspect)
{
    struct record_entry e = {
        .kind = kind,
        .cause = CAUSE_HANG,
        .round = agent_job_round(a),
        .rank = suspect ? suspect->rank : -1,
        .local_rank = suspect ? suspect->local_rank : -1,
        .pid = suspect ? suspect->processes[0].pid : -1,
        .code = a->config->hang_action == HANG_STOP,
        .count = agent_core_attempt(&a->core),
        .total = -1,
        .host = suspect ? span_str(suspect->node) : span_of(NULL, 0), /* else ours */
        .text = span_str(text),
        .path = span_str(path),
        .body = span_str(body),
    };

    record_trim(&e);
    (void)session_publish(a->job.session, &e);
}

/* Where restarts are counted for the whole job, the coordinator ends it on all
 * nodes. */
static void act_on_hang(struct agent *a, const char *failed,
                        const struct stack_rank *suspect)
{
    if (a->config->hang_action == HANG_REPORT)
        return;
    struct record_entry e = { .cause = CAUSE_HANG };

    agent_policy_failed(a, &e);
    if (a->job.own_budget || a->config->on_failure_finish)
        agent_post(a, AGENT_EV_HANG, 0, a->config->hang_action == HANG_STOP);
    else
        publish_hang(a, RECORD_FAILED, failed, "", "", suspect);
    agent_pump(a);
}

void agent_hang_entry(struct agent *a, const struct record_entry *e)
{
    if (e->cause != CAUSE_HANG || e->node == session_node(a->job.session))
        return; /* Our own words are in the log already. */
    log_line(a->log, LOG_WARN, AT_HANG, "%.*s%.*s", (int)e->body.n,
             (const char *)e->body.p, (int)e->text.n, (const char *)e->text.p);
}

/* The cause of a failure, as it follows "rank 5 on node2 failed: " or stands alone. */
static void put_hang_failure(struct buf *b, const struct hang_report *r,
                             const char *verdict)
{
    buf_append_str(b, "no rank has made progress for ");
    (void)duration_print(b, r->silent_ms);
    if (first_suspect(r->findings)) {
        const char *brief = r->findings->groups[0].brief;

        buf_printf(b, "; it %s%s", strncmp(brief, "wants ", 6) == 0 ? "" : "was in ",
                   brief);
    } else
        buf_printf(b, "; %s", verdict);
}

static void agent_on_hang(void *ctx, const struct hang_report *r)
{
    struct agent *a = ctx;
    char path[4400];
    struct buf text, last;

    buf_init(&text, SIZE_MAX); /* What is published is trimmed. */
    buf_init(&last, SIZE_MAX);
    buf_append_str(&text, "no rank has made progress for ");
    (void)duration_print(&text, r->silent_ms);
    buf_append_str(&text, ":\n");
    (void)stack_findings_report(&text, r->findings, "  ");
    for (size_t i = 0; i < r->sample->note_count; i++)
        buf_printf(&text, "  (%s)\n", r->sample->notes[i]);
    (void)stack_findings_verdict(&last, r->findings);
    const struct stack_rank *suspect = first_suspect(r->findings);
    const char *all = terminated_text(&text), *verdict = terminated_text(&last);
    struct buf line;
    buf_init(&line, SIZE_MAX);
    buf_printf(&line, "%s%s. ", all, verdict);
    if (write_file(a, all, r->sample, r->findings, path, sizeof path)) {
        buf_printf(&line, "Stacks: %s. ", path);
    } else {
        buf_printf(&line, "The stacks could not be written to a file: %s. ",
                   strerror(errno));
        path[0] = '\0';
    }
    put_hang_action(a, &line);
    log_line(a->log, LOG_WARN, AT_HANG, "%s", terminated_text(&line));
    publish_hang(a, RECORD_NOTE, verdict, all, path, suspect);
    struct buf failed;
    buf_init(&failed, SIZE_MAX);
    put_hang_failure(&failed, r, verdict);
    act_on_hang(a, terminated_text(&failed), suspect);
    buf_fini(&failed);
    buf_fini(&line);
    buf_fini(&text);
    buf_fini(&last);
}

static void agent_on_hang_over(void *ctx)
{
    const struct agent *a = ctx;

    log_line(a->log, LOG_WARN, AT_HANG, "the job makes progress again");
}

/* --- when ------------------------------------------------------------------------- */

/* The node of rank 0, or each for itself where other nodes cannot be asked at all. */
static bool hang_decides(void *ctx)
{
    const struct agent *a = ctx;
    const enum session_state state = session_state(a->job.session);

    if (a->core.phase != AGENT_RUNNING)
        return false;
    return state == SESSION_ALONE || state == SESSION_UNSHARED ||
           (state == SESSION_UP && a->round.rank == 0);
}

static uint64_t count_store_writes(void *ctx)
{
    const struct agent *a = ctx;
    const struct rdzv_handler_ops *ops = a->handler ? a->handler->ops : NULL;

    return ops && ops->worker_writes ? ops->worker_writes(a->handler) : 0;
}

void agent_hang_open(struct agent *a)
{
    const struct hang_opts opts = {
        .loop = &a->loop,
        .time_ms = a->config->hang_ms,
        .progress_file = a->config->progress_file,
        .stacks = a->stacks,
        .targets = agent_stacks_targets,
        .most = (size_t)a->config->nproc,
        .decides = hang_decides,
        .store_writes = count_store_writes,
        .on_hang = agent_on_hang,
        .on_over = agent_on_hang_over,
        .ctx = a,
    };

    if (a->config->hang_ms == 0)
        return;
    struct muster_error why = { .text = "stacks cannot be read" };
    if (!a->stacks || hang_open(&opts, &a->hang, &why) != 0)
        log_line(a->log, LOG_WARN, AT_HANG, "--hang has no effect: %s", why.text);
    else
        (void)hang_session(a->hang, a->job.session);
}

void agent_hang_close(struct agent *a)
{
    hang_close(a->hang);
    a->hang = NULL;
}
