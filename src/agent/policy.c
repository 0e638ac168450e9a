/* policy.c - the agent's part in restarts by cause: a node that counts for itself
 * (static, legacy etcd, beside torchrun's nodes) also decides for itself; everywhere
 * the back-off is waited out here, before the next round is joined; and the exit code
 * says how the job ended. */
#include <sys/stat.h>

#include "agent/agent_int.h"
#include "base/err.h"
#include "base/mem.h"
#include "job/core/cause.h"
#include "loop/clock.h"

/* Without a progress file nobody knows: then an attempt that ran for so long has made
 * some. */
#define LONG_RUN_MS 600000u

struct agent_policy {
    struct agent *agent;
    bool given; /* to this node */
    struct policy set;
    struct policy_history past;
    struct buf text;
    bool decided; /* for the attempt that failed, by this node: */
    struct policy_decision decision;
    bool said;            /* that this node decides for itself */
    struct deadline hold; /* until the next round may be joined */
    uint64_t until_ms;    /* the same; 0: at once */
    void (*join)(struct agent *a);
};

static void on_hold_over(void *ctx)
{
    struct agent_policy *p = ctx;

    void (*join)(struct agent * a) = p->join;

    p->until_ms = 0;
    p->join = NULL;
    if (join)
        join(p->agent);
}

/* Made when it is needed: a node without a policy may be told to wait by the host's. */
static struct agent_policy *policy_of(struct agent *a)
{
    struct agent_policy *p = a->policy ? NULL : mem_calloc(1, sizeof *p);

    if (p) {
        p->agent = a;
        buf_init(&p->text, RECORD_TEXT_MAX);
        deadline_init(&p->hold, &a->loop, on_hold_over, p);
        a->policy = p;
    }
    return a->policy;
}

int agent_policy_open(struct agent *a, struct muster_error *err)
{
    if (!a->config->policy)
        return 0;
    if (!policy_of(a))
        return err_nomem(err);
    a->policy->given = true;
    return policy_scan(&a->policy->set, span_str(a->config->policy), err);
}

void agent_policy_close(struct agent *a)
{
    if (a->policy)
        uv_close((uv_handle_t *)&a->policy->hold.timer, NULL);
}

void agent_policy_free(struct agent *a)
{
    if (!a->policy)
        return;
    policy_fini(&a->policy->set);
    policy_history_fini(&a->policy->past);
    buf_fini(&a->policy->text);
    mem_free(a->policy);
    a->policy = NULL;
}

bool agent_made_progress(const struct agent *a)
{
    const char *path = a->config->progress_file;
    struct stat st;

    if (!path)
        return clock_mono_ms() - a->started_ms >= LONG_RUN_MS;
    return stat(path, &st) == 0 &&
           st.st_mtim.tv_sec * 1000000LL + st.st_mtim.tv_nsec / 1000 > a->started_us;
}

/* --- a node that decides for itself ----------------------------------------------- */

void agent_policy_started(struct agent *a)
{
    struct agent_policy *p = a->policy;

    if (!p || !p->given)
        return;
    p->decided = false;
    const bool alone =
        a->job.own_budget || session_state(a->job.session) == SESSION_UNSHARED;

    if (alone && !p->said && a->config->rdzv.max_nodes > 1)
        log_line(a->log, LOG_WARN, AT_JOB,
                 "each node decides about restarts for itself: nobody decides for all "
                 "with a static rendezvous, on etcd-v2, and beside torchrun's nodes");
    p->said |= alone;
}

void agent_policy_failed(struct agent *a, struct record_entry *e)
{
    struct agent_policy *p = a->policy;
    struct policy_failure f;

    if (!p || !p->given || !a->job.own_budget)
        return;
    if (!p->decided) {
        f = cause_of_entry(e);
        f.progress = agent_made_progress(a);
        f.used = agent_core_attempt(&a->core);
        f.allowed = a->config->max_restarts;
        f.now_us = clock_mono_ms() * 1000;
        if (policy_decide(&p->set, &p->past, &f, &p->decision) < 0)
            return;
        p->decided = true;
        if (p->decision.wait_us)
            agent_policy_hold(a, p->decision.wait_us / 1000);
    }
    cause_decided(e, &p->set, &p->decision, &p->text);
}

int agent_policy_outcome(const struct agent *a)
{
    const struct agent_policy *p = a->policy;

    if (!p || !p->decided || !a->job.own_budget)
        return 0;
    return p->decision.action == POLICY_STOP   ? AGENT_NO_RESTART
           : p->decision.action == POLICY_FREE ? AGENT_FREE_RESTART
                                               : 0;
}

/* --- the back-off ----------------------------------------------------------------- */

void agent_policy_hold(struct agent *a, uint64_t ms)
{
    if (ms && policy_of(a))
        a->policy->until_ms = clock_mono_ms() + ms;
}

bool agent_policy_holds(struct agent *a, void (*join)(struct agent *a))
{
    const uint64_t until_ms = agent_notice_until(a);
    struct agent_policy *p = until_ms ? policy_of(a) : a->policy;

    if (p)
        p->until_ms = MAX_OF(p->until_ms, until_ms);
    if (!p || p->until_ms <= clock_mono_ms())
        return false;
    p->join = join;
    deadline_set(&p->hold, p->until_ms);
    return true;
}

bool agent_policy_cancel(struct agent *a)
{
    struct agent_policy *p = a->policy;

    if (!p || p->until_ms == 0 || !p->join)
        return false;
    p->until_ms = 0;
    p->join = NULL;
    deadline_set(&p->hold, MONO_NEVER);
    return true;
}

void agent_policy_release(struct agent *a)
{
    if (a->policy && a->policy->join)
        deadline_set(&a->policy->hold, clock_mono_ms());
}

uint64_t agent_policy_wait_ms(const struct agent *a)
{
    return a->policy && a->policy->until_ms
               ? ms_left(a->policy->until_ms, clock_mono_ms())
               : 0;
}

/* --- the end ---------------------------------------------------------------------- */

int agent_exit_code(const struct agent *a, enum agent_core_why why, int usual)
{
    struct record_entry v;

    if (!a->config->exit_by_cause || usual == 0)
        return usual;
    if (why == WHY_NOTICE)
        return EXIT_TRY_AGAIN;
    if ((why == WHY_FAILURE || why == WHY_FATAL) &&
        record_find(session_record(a->job.session), RECORD_VERDICT, -1, &v))
        return cause_exit_code(&v);
    return usual;
}
