/* phases.c - how long each part of the way from one attempt's end to the next one's
 * start takes: for the event log of this node, and for the report of the whole job. */
#include "agent/agent_int.h"

/* X(name, state): as the report has it, and as the event log does. */
#define PHASE_NAMES(X)                                                                 \
    X(PHASE_STOP, "stop", "STOP_WORKERS")                                              \
    X(PHASE_OUTPUT, "output", "PASS_OUTPUT")                                           \
    X(PHASE_JUDGE, "judge", "JUDGE")                                                   \
    X(PHASE_RENDEZVOUS, "rendezvous", NULL) /* torch's own events tell of these two */ \
    X(PHASE_RANKS, "ranks", NULL)                                                      \
    X(PHASE_START, "start", "START_WORKERS")

static const struct {
    const char *name, *state;
} names[PHASES] = {
#define PHASE_ROW(phase, name, state) [phase] = { name, state },
    PHASE_NAMES(PHASE_ROW)
#undef PHASE_ROW
};

static void end_phase(struct agent *a, uint64_t now)
{
    if (a->phases.began_ns)
        a->phases.us[a->phases.now] += (now - a->phases.began_ns) / 1000;
    a->phases.began_ns = 0;
}

void agent_phase(struct agent *a, enum agent_phase phase)
{
    const uint64_t now = uv_hrtime();

    if (a->phases.began_ns && a->phases.now == phase)
        return;
    end_phase(a, now);
    a->phases.now = phase;
    a->phases.began_ns = now;
}

/* torch's handlers get torch's events alone. */
static void notify_event(struct agent *a, const char *state, uint64_t us)
{
    if (state && a->events.fd > STDERR_FILENO)
        agent_event(a, state, (double)us / 1000, NULL);
}

void agent_phases_started(struct agent *a)
{
    struct channel_phase sent[PHASES];
    size_t count = 0;

    end_phase(a, uv_hrtime());
    for (size_t i = 0; i < PHASES; i++) {
        if (a->phases.us[i] == 0)
            continue;
        sent[count++] = (struct channel_phase){ names[i].name, a->phases.us[i] };
        notify_event(a, names[i].state, a->phases.us[i]);
        a->phases.us[i] = 0;
    }
    channel_phases(a->job.channel, agent_job_round(a), sent, count);
    if (a->handler->ops->first_write_ms) /* Forget the old workers' first request. */
        (void)a->handler->ops->first_write_ms(a->handler);
    a->phases.started_ms = uv_now(&a->loop);
}

void agent_phases_over(struct agent *a)
{
    const uint64_t first = a->handler->ops->first_write_ms && a->phases.started_ms
                               ? a->handler->ops->first_write_ms(a->handler)
                               : 0;
    const uint64_t us =
        1000 * (first - MIN_OF(first, a->phases.started_ms)); /* loop time is in ms */
    const struct channel_phase sent = { "first_request", us };

    if (first) {
        channel_phases(a->job.channel, agent_job_round(a), &sent, 1);
        notify_event(a, "FIRST_REQUEST", us);
    }
    a->phases.started_ms = 0;
}
