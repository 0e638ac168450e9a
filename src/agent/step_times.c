/* step_times.c - how long each step from one attempt's end to the next one's start
 * takes: for the event log of this node, and for the report of the whole job. */
#include "agent/agent_int.h"
#include "base/err.h"
#include "base/mem.h"

/* X(name, state): as the report has it, and as the event log does. */
#define STEP_NAMES(X)                                                                  \
    X(STEP_STOP, "stop", "STOP_WORKERS")                                               \
    X(STEP_OUTPUT, "output", "PASS_OUTPUT")                                            \
    X(STEP_JUDGE, "judge", "JUDGE")                                                    \
    X(STEP_RENDEZVOUS, "rendezvous", NULL) /* torch's own events tell of these two */  \
    X(STEP_RANKS, "ranks", NULL)                                                       \
    X(STEP_START, "start", "START_WORKERS")

static const struct {
    const char *name, *state;
} names[STEPS] = {
#define STEP_ROW(step, name, state) [step] = { name, state },
    STEP_NAMES(STEP_ROW)
#undef STEP_ROW
};

struct agent_steps {
    enum restart_step now;
    uint64_t began_ns;   /* 0: the workers run */
    uint64_t us[STEPS];  /* since they ran last */
    uint64_t started_ms; /* loop time; 0: they do not run */
};

int agent_steps_open(struct agent *a, struct muster_error *err)
{
    a->steps = mem_calloc(1, sizeof *a->steps);
    return a->steps ? 0 : err_nomem(err);
}

static void step_ends(struct agent *a, uint64_t now)
{
    if (a->steps->began_ns)
        a->steps->us[a->steps->now] += (now - a->steps->began_ns) / 1000;
    a->steps->began_ns = 0;
}

void agent_step(struct agent *a, enum restart_step step)
{
    const uint64_t now = uv_hrtime();

    if (a->steps->began_ns && a->steps->now == step)
        return;
    step_ends(a, now);
    a->steps->now = step;
    a->steps->began_ns = now;
}

/* torch's handlers get torch's events alone. */
static void log_step(struct agent *a, const char *state, uint64_t us)
{
    if (state && agent_events_in_file(a))
        agent_event(a, state, (double)us / 1000, NULL);
}

void agent_steps_started(struct agent *a)
{
    struct session_phase sent[STEPS];
    size_t count = 0;

    step_ends(a, uv_hrtime());
    for (size_t i = 0; i < STEPS; i++) {
        if (a->steps->us[i] == 0)
            continue;
        sent[count++] = (struct session_phase){ names[i].name, a->steps->us[i] };
        log_step(a, names[i].state, a->steps->us[i]);
        a->steps->us[i] = 0;
    }
    session_phases(a->job.session, agent_job_round(a), sent, count);
    if (a->handler->ops->first_write_ms) /* Forget the old workers' first request. */
        (void)a->handler->ops->first_write_ms(a->handler);
    a->steps->started_ms = uv_now(&a->loop);
}

void agent_steps_over(struct agent *a)
{
    const uint64_t first = a->handler->ops->first_write_ms && a->steps->started_ms
                               ? a->handler->ops->first_write_ms(a->handler)
                               : 0;
    const uint64_t us =
        1000 * (first - MIN_OF(first, a->steps->started_ms)); /* loop time is in ms */
    const struct session_phase sent = { "first_request", us };

    if (first) {
        session_phases(a->job.session, agent_job_round(a), &sent, 1);
        log_step(a, "FIRST_REQUEST", us);
    }
    a->steps->started_ms = 0;
}
