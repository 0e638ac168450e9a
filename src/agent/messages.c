/* messages.c - glue between the core's effects and the log: the agent's messages in
 * torchrun's words, and what LOGLEVEL=INFO shows of the configuration and each round.
 */
#include "agent/agent_int.h"
#include <inttypes.h>
#include <signal.h>

/* {'timeout': 900} as Python shows a dict. */
static void put_conf_options(struct buf *b, const struct rdzv_params *p)
{
    buf_u8(b, '{');
    for (size_t i = 0; i < p->count; i++) {
        const struct rdzv_option *o = &p->options[i];
        buf_printf(b, "%s'%s': ", i ? ", " : "", o->key);
        if (o->kind == RDZV_STR)
            buf_printf(b, "'%s'", o->text);
        else if (o->kind == RDZV_BOOL)
            buf_append_str(b, o->number ? "True" : "False");
        else
            buf_printf(b, "%" PRId64, o->number);
    }
    buf_append(b, "}", 2);
}

static void put_filters(struct buf *b, const struct text_list *l)
{
    buf_u8(b, '[');
    for (size_t i = 0; i < l->count; i++)
        buf_printf(b, "%s'%s'", i ? ", " : "", l->items[i]);
    buf_append(b, "]", 2);
}

static const char *buf_text(const struct buf *b)
{
    return buf_len(b) ? (const char *)buf_data(b) : "";
}

void agent_log_config(struct agent *a)
{
    const struct launch_config *c = a->config;
    struct buf options, out, err;

    if (a->log->least > LOG_INFO)
        return;
    buf_init(&options, SIZE_MAX);
    buf_init(&out, SIZE_MAX);
    buf_init(&err, SIZE_MAX);
    put_conf_options(&options, &c->rdzv);
    put_filters(&out, &c->stdout_needles);
    put_filters(&err, &c->stderr_needles);
    log_line(a->log, LOG_INFO, AT_CONFIG,
             "Starting elastic_operator with launch configs:\n"
             "  entrypoint               : %s\n"
             "  min_nodes                : %" PRId64 "\n"
             "  max_nodes                : %" PRId64 "\n"
             "  nproc_per_node           : %" PRId64 "\n"
             "  run_id                   : %s\n"
             "  rdzv_backend             : %s\n"
             "  rdzv_endpoint            : %s\n"
             "  rdzv_configs             : %s\n"
             "  max_restarts             : %" PRId64 "\n"
             "  monitor_interval         : %g\n"
             "  log_dir                  : %s\n"
             "  metrics_cfg              : {}\n"
             "  event_log_handler        : %s\n"
             "  numa_options             : %s\n"
             "  signals_to_handle        : %s\n"
             "  duplicate_stdout_filters : %s\n"
             "  duplicate_stderr_filters : %s\n",
             worker_report_name(c), c->rdzv.min_nodes, c->rdzv.max_nodes, c->nproc,
             c->rdzv.run_id, c->rdzv.backend, c->rdzv.endpoint, buf_text(&options),
             c->max_restarts, c->monitor_interval_s, logs_base(a->logs),
             c->event_handler, c->numa == NUMA_NONE ? "None" : numa_mode_word(c->numa),
             c->signals, buf_text(&out), buf_text(&err));
    buf_fini(&options);
    buf_fini(&out);
    buf_fini(&err);
}

static void put_ranks(struct buf *b, const char *name, int64_t first, int64_t step,
                      int64_t count)
{
    buf_printf(b, "\n  %s=[", name);
    for (int64_t i = 0; i < count; i++)
        buf_printf(b, "%s%" PRId64, i ? ", " : "", first + i * step);
    buf_u8(b, ']');
}

void agent_log_round(struct agent *a)
{
    const int64_t n = a->config->nproc;
    const struct rank_range *r = &a->range;
    struct buf b;

    if (a->log->least > LOG_INFO)
        return;
    buf_init(&b, SIZE_MAX);
    put_ranks(&b, "local_ranks", 0, 1, n);
    put_ranks(&b, "role_ranks", r->base_role_rank, 1, n);
    put_ranks(&b, "global_ranks", r->base_rank, 1, n);
    put_ranks(&b, "role_world_sizes", r->role_world_size, 0, n);
    put_ranks(&b, "global_world_sizes", r->world_size, 0, n);
    buf_u8(&b, 0);
    log_line(a->log, LOG_INFO, AT_ROUND,
             "[%s] Rendezvous complete for workers. Result:\n"
             "  restart_count=%" PRId64 "\n  master_addr=%s\n  master_port=%u\n"
             "  group_rank=%" PRId64 "\n  group_world_size=%" PRId64 "%s\n"
             "  event_log_handler=%s\n",
             a->config->role, agent_core_attempt(&a->core), a->round.master_addr,
             a->round.master_port, a->round.rank, a->round.world_size, buf_text(&b),
             a->config->event_handler);
    buf_fini(&b);
}

/* The agent's messages while it works, in torchrun's words. */
static const struct agent_worker *worker_of(const struct agent *a,
                                            const struct agent_core_fx *fx)
{
    return &a->workers[fx->worker];
}

#define NAMED_MAX 8u /* ranks that one line names; the others are counted */

/* A handler of Python's for SIGTERM runs when the interpreter is back from native code:
 * a collective that waits for a rank that is gone keeps it from ending. */
static void log_waiting(struct agent *a)
{
    const bool stopped = a->core.why == WHY_SIGNAL;
    const uint64_t now = uv_now(&a->loop), by = a->core.due_ms;
    struct buf who;
    size_t count = 0;

    buf_init(&who, 512);
    for (int64_t i = 0; i < a->config->nproc; i++)
        if (!a->workers[i].exited && count++ < NAMED_MAX)
            buf_printf(&who, "%s%" PRId64 " (pid %d)", count > 1 ? ", " : "",
                       a->range.base_rank + i, (int)a->workers[i].pid);
    if (count > NAMED_MAX)
        buf_printf(&who, " and %zu more", count - NAMED_MAX);
    buf_printf(&who, " %s not ended %u s after %s, and ", count > 1 ? "have" : "has",
               AGENT_TELL_MS / 1000, signal_name(a->core.stop_sig));
    if (by == MONO_NEVER)
        buf_printf(&who, "%s time without end", count > 1 ? "have" : "has");
    else
        buf_printf(&who, "will be killed in %" PRIu64 " s", (by - now + 500) / 1000);
    log_line(a->log, LOG_WARN, AT_AGENT, "rank%s %.*s: --%s sets that time",
             count > 1 ? "s" : "", (int)buf_len(&who), buf_text(&who),
             stopped ? "shutdown-timeout" : "restart-grace");
    buf_fini(&who);
}

void agent_log(struct agent *a, const struct agent_core_fx *fx)
{
    const struct log *log = a->log;
    const struct log_screen *screen = a->opts.log->screen;

    switch (fx->kind) {
    case AGENT_FX_LOG_SIGNAL:
        log_line(log, LOG_WARN, AT_DEATH_SIGNAL,
                 "Received %d death signal, shutting down workers", fx->sig);
        break;
    case AGENT_FX_SIGNAL:
        if (worker_of(a, fx)->pid == 0) /* It was never started. */
            break;
        log_line(log, a->core.notice_ms ? LOG_INFO : agent_restart_level(a, LOG_WARN),
                 AT_CLOSING, "Sending process %d closing signal %s",
                 (int)worker_of(a, fx)->pid, signal_name(fx->sig));
        break;
    case AGENT_FX_LOG_WAITING:
        log_waiting(a);
        break;
    case AGENT_FX_LOG_KILL:
        log_line(log, LOG_WARN, AT_KILLING,
                 "Unable to shutdown process %d via %d, forcefully exiting via %d",
                 (int)worker_of(a, fx)->pid, fx->sig, SIGKILL);
        break;
    case AGENT_FX_KILL_ALL: /* In torch's words there is a line for each of them. */
        if (screen && screen->brief && a->core.alive > 0)
            log_line(log, LOG_WARN, AT_JOB, "killing %" PRId64 " worker%s",
                     a->core.alive, a->core.alive > 1 ? "s" : "");
        break;
    case AGENT_FX_LOG_ABANDONED:
        log_line(
            log, LOG_ERROR, AT_ABANDONED,
            "Process %d did not exit after SIGKILL within %us; abandoning and "
            "continuing teardown. Worker may be in uninterruptible kernel sleep (e.g. "
            "wedged on GPU/NIC); host may need to be recycled.",
            (int)worker_of(a, fx)->pid, AGENT_REAP_MS / 1000);
        break;
    case AGENT_FX_LOG_FAILED:
        agent_failed(a);
        break;
    case AGENT_FX_LOG_BARRIER:
        log_line(log, LOG_WARN, AT_BARRIER_SIGNAL, "Got termination signal: %d",
                 fx->sig);
        break;
    case AGENT_FX_LOG_NO_BARRIER:
        log_line(log, LOG_ERROR, AT_BARRIER_ERROR,
                 "Error waiting on exit barrier. Elapsed: %.2f seconds\n%s",
                 agent_event_lap_s(a),
                 a->fatal.code   ? a->fatal.text
                 : a->run_closed ? "Another node has closed the run: it failed, or was "
                                   "ended. Its log tells why."
                                 : "Another node was lost.");
        break;
    case AGENT_FX_LOG_SUCCEEDED:
    case AGENT_FX_LOG_TERMINATED:
    case AGENT_FX_JOIN:
    case AGENT_FX_CANCEL_JOIN:
    case AGENT_FX_ASSIGN:
    case AGENT_FX_START:
    case AGENT_FX_LEFTOVERS:
    case AGENT_FX_JUDGE:
    case AGENT_FX_DRAIN:
    case AGENT_FX_BARRIER:
    case AGENT_FX_LEAVE:
    case AGENT_FX_FINISH:
        break;
    }
}
