/* group_wait.c - what a person sees while the agent waits for the group: on a terminal
 * one line that is kept up to date, in a log a line now and then. */
#include <time.h>

#include "group/options.h"
#include "group/waiting.h"
#include "io/clock.h"
#include "io/group_int.h"

#define LINE_MS      1000u /* a terminal's line is this old at most */
#define LOG_FIRST_MS 5000u /* of waiting, before a log should tell of it */
#define LOG_AGAIN_MS 30000u

static bool on_screen(const struct agent *a)
{
    return a->opts.notes->screen && a->opts.notes->screen->lines;
}

static int64_t seconds_of_day(void)
{
    const time_t now = time(NULL);
    struct tm tm;

    (void)localtime_r(&now, &tm);
    return tm.tm_hour * 3600 + tm.tm_min * 60 + tm.tm_sec;
}

static void show(struct agent *a, const struct rdzv_progress *p)
{
    const char *list =
        a->opts.envp ? env_get(a->opts.envp, "SLURM_STEP_NODELIST") : NULL;
    char expected[RDZV_NAMES_SIZE] = "";
    const struct waiting w = {
        .progress = p,
        .store = a->config->rdzv.endpoint,
        .expected = expected,
        .since_ms = a->wait_since_ms,
        .now_ms = clock_mono_ms(),
        .wall_s = seconds_of_day(),
    };
    struct buf b;

    if (list)
        waiting_slurm_names(list, expected);
    buf_init(&b, 4096);
    if (waiting_print(&b, &w) == 0 && buf_u8(&b, 0) == 0) {
        const char *text = (const char *)buf_data(&b);

        if (on_screen(a))
            notes_line(a->opts.notes, text);
        else
            note(a->opts.notes, NOTE_WARN, "muster/rendezvous", "run '%s': %s",
                 a->config->rdzv.run_id, text);
    }
    buf_fini(&b);
}

static void on_wait(uv_timer_t *timer)
{
    struct agent *a = timer->data;
    struct rdzv_progress p;

    if (!a->handler->ops->progress(a->handler, &p))
        return;
    if (p.stage == RDZV_AT_STORE && p.dialled && !on_screen(a))
        return;
    show(a, &p);
    a->wait_told = true;
}

void agent_wait_begin(struct agent *a)
{
    a->wait_since_ms = clock_mono_ms();
    a->wait_told = false;
    if (!a->handler->ops->progress || a->opts.notes->fd < 0)
        return;
    (void)uv_timer_start(&a->wait_timer, on_wait, on_screen(a) ? LINE_MS : LOG_FIRST_MS,
                         on_screen(a) ? LINE_MS : LOG_AGAIN_MS);
}

void agent_wait_end(struct agent *a, const struct rdzv_round *round)
{
    (void)uv_timer_stop(&a->wait_timer);
    notes_line(a->opts.notes, NULL);
    if (!a->wait_told || !round)
        return;
    a->wait_told = false;
    note(
        a->opts.notes, NOTE_WARN, "muster/rendezvous",
        "run '%s': the group is complete after %.1f s: %lld nodes, this is number %lld",
        a->config->rdzv.run_id, (double)(clock_mono_ms() - a->wait_since_ms) / 1000,
        (long long)round->world_size, (long long)round->rank);
}
