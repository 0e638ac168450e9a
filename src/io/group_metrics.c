/* group_metrics.c - what torch's agent measures of itself, to whoever --metrics-handler
 * names. torch times calls; we have events and effects, so a call begins and ends with
 * the effects that correspond to it. */
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "group/metrics.h"
#include "io/group_int.h"

int agent_metrics_open(struct agent *a, struct muster_error *err)
{
    const char *name = a->config->metrics_handler;

    a->metrics_json = strcmp(name, "console") != 0;
    return sink_open(&a->metrics, "--metrics-handler", name, STDOUT_FILENO, err);
}

static void put(struct agent *a, const char *name, int64_t value)
{
    struct timespec ts;
    struct buf b;

    if (a->metrics.fd < 0)
        return;
    clock_gettime(CLOCK_REALTIME, &ts);
    const struct metric m = { (double)ts.tv_sec + (double)ts.tv_nsec / 1e9, name,
                              value };
    buf_init(&b, SIZE_MAX);
    sink_put(&a->metrics, &b,
             a->metrics_json ? metric_print_json(&b, &m) : metric_print(&b, &m));
}

static void put_workers(struct agent *a, const char *what, int64_t value)
{
    struct buf name;

    buf_init(&name, SIZE_MAX);
    if (buf_printf(&name, "workers.%s.%s", a->config->role, what) == 0 &&
        buf_u8(&name, 0) == 0)
        put(a, (const char *)buf_data(&name), value);
    buf_fini(&name);
}

/* --- calls ------------------------------------------------------------------------ */

static void begin(struct agent *a, enum metric_call call)
{
    if (a->calls_ns[call] == 0)
        a->calls_ns[call] = uv_hrtime();
}

static void end(struct agent *a, enum metric_call call, bool well)
{
    char name[80];

    if (a->calls_ns[call] == 0)
        return;
    const uint64_t ns = uv_hrtime() - a->calls_ns[call];
    a->calls_ns[call] = 0;
    snprintf(name, sizeof name, "%s.%s", metric_call_name(call),
             well ? "success" : "failure");
    put(a, name, 1);
    snprintf(name, sizeof name, "%s.duration.ms", metric_call_name(call));
    put(a, name, (int64_t)(ns / 1000000));
}

static void call(struct agent *a, enum metric_call which)
{
    begin(a, which);
    end(a, which, true);
}

/* torch looks every --monitor-interval and says so each time; we when it changes. */
static void put_state(struct agent *a, const char *state, int64_t remaining)
{
    call(a, CALL_MONITOR);
    put_workers(a, "remaining_restarts", remaining);
    put_workers(a, state, 1);
}

/* --- when ------------------------------------------------------------------------- */

static void on_join(struct agent *a)
{
    begin(a, CALL_RUN);
    if (a->calls_ns[CALL_STOP] != 0) { /* for a new round: nodes came or went */
        a->calls_ns[CALL_RESTART] = a->calls_ns[CALL_STOP];
        end(a, CALL_STOP, true);
    }
    begin(a, CALL_INITIALIZE);
    begin(a, CALL_RENDEZVOUS);
}

void agent_measure(struct agent *a, const struct group_fx *fx)
{
    switch (fx->kind) {
    case GROUP_FX_JOIN:
        on_join(a);
        break;
    case GROUP_FX_ASSIGN:
        begin(a, CALL_ASSIGN);
        break;
    case GROUP_FX_START:
        end(a, CALL_ASSIGN, true);
        end(a, CALL_RENDEZVOUS, true);
        begin(a, CALL_START);
        break;
    case GROUP_FX_SIGNAL:
    case GROUP_FX_LEFTOVERS:
    case GROUP_FX_DRAIN: /* torch's looking includes the ending of a failed group */
        if (a->group.why == WHY_MEMBERSHIP)
            begin(a, CALL_STOP);
        else if (a->group.why == WHY_FAILURE || a->group.why == WHY_STUCK)
            begin(a, CALL_MONITOR);
        break;
    case GROUP_FX_SAY_SUCCEEDED:
        put_state(a, "succeeded", a->group.remaining);
        break;
    case GROUP_FX_SAY_FAILED:
        put_state(a, "failed", a->group.remaining + (fx->final ? 0 : 1));
        if (!fx->final)
            begin(a, CALL_RESTART);
        call(a, CALL_STOP);
        break;
    case GROUP_FX_SAY_TERMINATED:
        put_state(a, "unhealthy", a->group.remaining);
        call(a, CALL_STOP);
        break;
    case GROUP_FX_CANCEL_JOIN:
    case GROUP_FX_KILL_ALL:
    case GROUP_FX_BARRIER:
    case GROUP_FX_LEAVE:
    case GROUP_FX_FINISH:
    case GROUP_FX_SAY_SIGNAL:
    case GROUP_FX_SAY_KILL:
    case GROUP_FX_SAY_ABANDONED:
    case GROUP_FX_SAY_BARRIER:
    case GROUP_FX_SAY_NO_BARRIER:
        break;
    }
}

void agent_measure_started(struct agent *a)
{
    end(a, CALL_START, true);
    end(a, CALL_INITIALIZE, true);
    end(a, CALL_RESTART, true);
    put_state(a, "healthy", a->group.remaining);
}

void agent_measure_end(struct agent *a, enum group_why why)
{
    const struct group *g = &a->group;
    const bool failed = why == WHY_FAILURE;
    const bool again = g->remaining != g->set.max_restarts;

    if (why == WHY_SUCCESS || why == WHY_FAILURE || why == WHY_STUCK) {
        put_workers(a, "flakiness",
                    metric_flakiness(failed, g->remaining, g->set.max_restarts));
        put_workers(a, "run_total", 1);
        put_workers(a, "run_success_with_retries", !failed && again);
        put_workers(a, "run_success_no_retries", !failed && !again);
        put_workers(a, "run_failed_with_retries", failed && again);
        put_workers(a, "run_failed_no_retries", failed && !again);
        end(a, CALL_RUN, true);
    }
    /* The monitor's call is not under way in torch when a signal or the store ends it.
     */
    a->calls_ns[CALL_MONITOR] = 0;
    for (enum metric_call c = 0; c < CALLS; c++)
        end(a, c, a->fatal.code == MUSTER_EGRACEFUL);
}
