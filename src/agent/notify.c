/* notify.c - glue between the record and policy/notify.h: which entries are worth
 * telling, in which words. The node that has the coordinator tells, so that it is told
 * once. */
#include <inttypes.h>

#include <sys/socket.h>

#include "agent/agent_int.h"
#include "base/mem.h"
#include "job/core/report.h"
#include "policy/notify.h"

static const char *event_of(const struct record_entry *e)
{
    switch (e->kind) {
    case RECORD_RESTART:
        return "restart";
    case RECORD_VERDICT:
        return e->cause == CAUSE_SUCCEEDED ? "end" : "verdict";
    case RECORD_NOTICE:
        return "notice";
    case RECORD_NOTE:
        return e->cause == CAUSE_HANG ? "hang" : NULL;
    case RECORD_NONE:
    case RECORD_PHASES:
    case RECORD_NODES:
    case RECORD_ROUND:
    case RECORD_ENDED:
    case RECORD_LEFT:
    case RECORD_LOST:
    case RECORD_FAILED:
    case RECORD_ENDING:
    case RECORD_KIND_COUNT:
        break;
    }
    return NULL;
}

static void put_words(struct buf *b, const struct agent *a,
                      const struct record_entry *e)
{
    const struct verdict_style style = { .report_path = a->config->report };

    (void)buf_printf(b, "%s: ", a->config->rdzv.run_id);
    if (e->kind == RECORD_RESTART)
        (void)restart_print(b, e);
    else if (e->kind == RECORD_VERDICT && e->cause == CAUSE_SUCCEEDED)
        (void)buf_append_str(b, "the job succeeded");
    else if (e->kind == RECORD_VERDICT)
        (void)verdict_print(b, session_record(a->job.session), &style);
    else if (e->kind == RECORD_NOTICE)
        (void)buf_printf(b, "%.*s is to go in %" PRId64 " s (%.*s)",
                         e->count ? 7 : (int)e->host.n,
                         e->count ? "the job" : (const char *)e->host.p,
                         e->wait_us / 1000000, (int)e->text.n, (const char *)e->text.p);
    else /* A hang: who is where, and then the likely cause. */
        (void)buf_printf(b, "%.*s%.*s", (int)e->body.n, (const char *)e->body.p,
                         (int)e->text.n, (const char *)e->text.p);
}

void agent_notify_entry(struct agent *a, const struct record_entry *e)
{
    const char *event = event_of(e);
    struct buf words, json;

    if (a->opts.notify_fd <= 0 || !event ||
        (session_shared(a->job.session) && !session_is_local(a->job.session)))
        return;
    buf_init(&words, 16384);
    buf_init(&json, SIZE_MAX);
    put_words(&words, a, e);
    (void)buf_printf(&json, "%s ", event);
    if (report_event_json(&json, e, event, a->config->rdzv.run_id, buf_span(&words)) ==
        0)
        notify_send(a->opts.notify_fd, buf_span(&json));
    buf_fini(&words);
    buf_fini(&json);
}

/* --- what could not be delivered, said once ----------------------------------------
 */

static void on_word(uv_poll_t *poll, int status, int events)
{
    const struct agent *a = poll->data;
    char text[NOTIFY_WORD_MAX];
    const ssize_t n = recv(a->opts.notify_fd, text, sizeof text, MSG_DONTWAIT);

    (void)status;
    (void)events;
    if (n > 0)
        log_line(a->log, LOG_WARN, AT_JOB, "--notify: %.*s; more of this is not logged",
                 (int)n, text);
    (void)uv_poll_stop(poll);
}

void agent_notify_on(struct agent *a)
{
    uv_poll_t *poll = a->opts.notify_fd > 0 ? mem_calloc(1, sizeof *poll) : NULL;

    if (!poll)
        return;
    if (uv_poll_init(&a->loop, poll, a->opts.notify_fd) < 0) {
        mem_free(poll);
        return;
    }
    poll->data = a;
    a->notify = poll;
    (void)uv_poll_start(poll, UV_READABLE, on_word);
    uv_unref((uv_handle_t *)poll);
}

static void on_poll_closed(uv_handle_t *poll)
{
    mem_free(poll);
}

void agent_notify_close(struct agent *a)
{
    if (a->notify)
        uv_close((uv_handle_t *)a->notify, on_poll_closed);
    a->notify = NULL;
}
