/* worker_health.c - what is watched while workers run, beside their exits:
 * uninterruptible sleep, the file timer, and the health check that torchrun only talks
 * about. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

#include "agent/agent_int.h"
#include "agent/file_timer.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/py/repr.h"
#include "base/py/text.h"
#include "hang/hang.h"
#include "launch/core/derive.h"
#include "launch/core/options.h"
#include "logs/directories.h"

struct agent_health {
    uv_timer_t stuck_timer;
    struct watchdog *watchdog; /* while workers run, if asked for */
    char *timer_file;          /* owned; its FIFO */
};

/* --- uninterruptible sleep -------------------------------------------------------- */

static double stuck_limit(const struct agent *a)
{
    const char *text =
        env_get(a->opts.envp, "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT");
    double seconds = 0;

    if (!text || !py_float(text, &seconds) || !(seconds > 0))
        return 0;
    return seconds;
}

static void on_look(uv_timer_t *timer)
{
    struct agent *a = timer->data;
    const double limit = stuck_limit(a);
    const uint64_t now = uv_now(&a->loop);

    for (int64_t i = 0; i < a->config->nproc; i++) {
        struct agent_worker *w = &a->workers[i];
        if (w->exited || w->pid == 0 || proc_state(w->pid, NULL) != 'D') {
            w->stuck_since = 0;
            continue;
        }
        if (w->stuck_since == 0) {
            w->stuck_since = now;
            log_line(
                a->log, LOG_WARN, AT_STUCK_SOON,
                "[%s] Worker pid=%d entered uninterruptible sleep (D-state); will mark "
                "UNHEALTHY if it remains for %.1fs.",
                a->config->role, (int)w->pid, limit);
        } else if ((double)(now - w->stuck_since) >= limit * 1000) {
            log_line(
                a->log, LOG_ERROR, AT_STUCK,
                "[%s] Worker pid=%d stuck in uninterruptible sleep (D-state) for %.1fs "
                "(>= %.1fs); marking worker group UNHEALTHY and disabling restarts.",
                a->config->role, (int)w->pid, (double)(now - w->stuck_since) / 1000,
                limit);
            uv_timer_stop(&a->health->stuck_timer);
            agent_post(a, AGENT_EV_STUCK, i, 0);
            break;
        }
    }
    agent_pump(a);
}

/* --- the file timer --------------------------------------------------------------- */

static bool is_dead(pid_t pid)
{
    const char state = proc_state(pid, NULL);

    return state == 0 || state == 'Z';
}

struct expired {
    struct agent *a;
    struct timer_entry entry;
    char scope[256];
};

/* Like torchrun, which then ends itself the same way. The guard ends the rest. */
static void kill_expired(void *ctx)
{
    struct expired *x = ctx;
    struct agent *a = x->a;
    const struct timer_entry *e = &x->entry;

    if (!is_dead((pid_t)e->pid) && proc_descends((pid_t)e->pid, guard_root(a->guard)))
        kill((pid_t)e->pid, e->sig);
    agent_watchdog_event(a, "kill worker process", e);
    log_line(a->log, LOG_WARN, AT_AGENT,
             "the timer '%s' of process %d expired: it and this agent get signal %d",
             x->scope, (int)e->pid, e->sig);
    const int sig = e->sig;
    mem_free(x);
    if (a->core.phase != AGENT_DONE)
        kill(getpid(), sig);
}

static void on_expired(void *ctx, const struct timer_entry *e)
{
    struct agent *a = ctx;
    const pid_t pid = (pid_t)e->pid;

    if (e->pid > 1 &&
        is_dead(pid)) /* It ended in time; its exit is handled elsewhere. */
        return;
    agent_watchdog_event(a, "timer expired", e);
    if (e->sig == 0 || e->pid <= 1)
        return;
    /* The pid is whatever somebody wrote into the FIFO, so only our own workers and
     * their descendants are killed. */
    if (!proc_descends(pid, guard_root(a->guard))) {
        log_line(a->log, LOG_WARN, AT_AGENT,
                 "a timer names process %d, which is not a worker of ours: not killed",
                 pid);
        return;
    }
    struct expired *x = mem_calloc(1, sizeof *x);
    if (!x) {
        kill(getpid(), e->sig);
        return;
    }
    x->a = a;
    x->entry = *e;
    snprintf(x->scope, sizeof x->scope, "%s", e->scope ? e->scope : "");
    x->entry.scope = x->scope;
    watchdog_close(a->health->watchdog);
    a->health->watchdog = NULL;
    if (!agent_stacks_before(a, "took longer than their timer allows", kill_expired, x))
        kill_expired(x);
}

static void on_nonsense(void *ctx, const struct muster_error *err)
{
    struct agent *a = ctx;
    log_line(a->log, LOG_ERROR, AT_WATCHDOG, "Error running watchdog\n%s", err->text);
}

static char *timer_path(struct agent *a)
{
    const char *given = env_get(a->opts.envp, "TORCHELASTIC_TIMER_FILE");
    uint8_t random[16];
    char uuid[37];

    if (given)
        return mem_strdup(given);
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return NULL;
    derive_uuid(random, uuid);
    return mem_printf("%s/watchdog_timer_%s", log_dirs_temp(a->opts.envp), uuid);
}

static int open_watchdog(struct agent *a, struct muster_error *err)
{
    const char *on = env_get(a->opts.envp, "TORCHELASTIC_ENABLE_FILE_TIMER");

    if (!on || strcmp(on, "1") != 0)
        return 0;
    mem_free(a->health->timer_file);
    a->health->timer_file = timer_path(a);
    if (!a->health->timer_file)
        return err_nomem(err);
    const struct watchdog_opts opts = { &a->loop, a->health->timer_file, on_expired,
                                        on_nonsense, a };
    const int rc = watchdog_open(&opts, &a->health->watchdog, err);
    if (rc == 0)
        agent_watchdog_event(a, "watchdog started", NULL);
    return rc;
}

/* --- from start to stop ----------------------------------------------------------- */

static void log_health(struct agent *a)
{
    const char *port = env_get(a->opts.envp, "TORCHELASTIC_HEALTH_CHECK_PORT");
    int64_t number;

    if (port && py_int(span_str(port), &number))
        log_line(a->log, LOG_WARN, AT_HEALTH, "No health check server started");
}

int agent_watch_on(struct agent *a, struct muster_error *err)
{
    const double interval = a->config->monitor_interval_s;

    log_health(a);
    if (stuck_limit(a) > 0) {
        const uint64_t ms = (uint64_t)(MIN_OF(MAX_OF(interval, 0.01), 60.0) * 1000);
        uv_timer_start(&a->health->stuck_timer, on_look, ms, ms);
    }
    return open_watchdog(a, err);
}

const char *agent_timer_file(const struct agent *a)
{
    return a->health->watchdog ? a->health->timer_file : NULL;
}

void agent_watch_off(struct agent *a)
{
    hang_end(a->hang);
    uv_timer_stop(&a->health->stuck_timer);
    if (!a->health->watchdog)
        return;
    agent_watchdog_event(a, "watchdog stopped", NULL);
    watchdog_close(a->health->watchdog);
    a->health->watchdog = NULL;
}

int agent_health_open(struct agent *a, struct muster_error *err)
{
    a->health = mem_calloc(1, sizeof *a->health);
    if (!a->health)
        return err_nomem(err);
    (void)uv_timer_init(&a->loop, &a->health->stuck_timer);
    a->health->stuck_timer.data = a;
    return 0;
}

void agent_health_close(struct agent *a)
{
    if (!a->health)
        return;
    agent_watch_off(a);
    mem_free(a->health->timer_file);
    a->health->timer_file = NULL;
    uv_close((uv_handle_t *)&a->health->stuck_timer, NULL);
}
