/* job_worker.c - a worker, as far as its agent can tell. It meets the others of its
 * world in the store that its environment names, as torch's init_process_group does,
 * computes while all of them are there, and ends when the job's work is done. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "sim/job.h"
#include "store/client.h"
#include "store/server.h"

#define COLLECTIVE_US (100 * OS_SECOND) /* until a worker gives up its peers */
#define STORE_MS      60000u /* for each call to the store, and to reach it */

static const char *job_env(const struct job_worker *w, const char *name)
{
    const size_t n = strlen(name);

    for (char **e = w->env; *e; e++)
        if (strncmp(*e, name, n) == 0 && (*e)[n] == '=')
            return *e + n + 1;
    return "";
}

int64_t job_worker_number(const struct job_worker *w, const char *name)
{
    return strtoll(job_env(w, name), NULL, 10);
}

/* ---- calls to a store, one after the other ---- */

static void on_open(void *ctx, int status, const struct muster_error *err)
{
    struct job_store *t = ctx;

    t->status = status;
    t->done = true;
}

void job_store_on_reply(void *ctx, int status, const struct c10d_reply *r,
                        const struct muster_error *err)
{
    struct job_store *t = ctx;

    if (err)
        os_log(os.current->name, "its store: %s", err->text);
    t->status = status;
    t->done = true;
    if (status)
        return;
    t->number = r->number;
    buf_clear(&t->value);
    os_must(buf_append_span(&t->value, r->value));
}

int job_store_wait(struct job_store *t, int rc)
{
    if (rc < 0)
        return rc;
    while (!t->done)
        if (!uv_run(&t->loop, UV_RUN_ONCE) && !t->done)
            return MUSTER_EIO;
    t->done = false;
    return t->status;
}

const char *job_store_text(struct job_store *t)
{
    const char *text;

    os_must(buf_u8(&t->value, 0));
    text = (const char *)buf_data(&t->value);
    return text ? text : "";
}

void job_store_init(struct job_store *t)
{
    (void)uv_loop_init(&t->loop);
    (void)uv_timer_init(&t->loop, &t->timer);
    buf_init(&t->value, SIZE_MAX);
}

int job_store_open(struct job_store *t, const char *host, uint16_t port,
                   uint64_t timeout_ms)
{
    const struct store_client_opts opts = { .host = host,
                                            .port = port,
                                            .timeout_ms = timeout_ms };

    return job_store_wait(
        t, store_client_open(&t->loop, &opts, on_open, t, &t->store, NULL));
}

static void on_time(uv_timer_t *timer)
{
}

/* Waits until then, or until the process is woken. If it hosts a store, its loop serves
 * the store meanwhile. */
void job_store_doze(struct job_store *t, uint64_t until_t)
{
    uv_update_time(&t->loop);
    (void)uv_timer_start(
        &t->timer, on_time,
        until_t == OS_NEVER ? UINT64_MAX : (until_t - os.t + OS_MS - 1) / OS_MS, 0);
    (void)uv_run(&t->loop, UV_RUN_ONCE);
    (void)uv_timer_stop(&t->timer);
}

void job_store_sleep(struct job_store *t, uint64_t until_t)
{
    while (os.t < until_t)
        job_store_doze(t, until_t);
}

static int worker_set(struct job_store *t, const char *key, const char *value)
{
    return job_store_wait(t, async_store_set(t->store, span_str(key), span_str(value),
                                             STORE_MS, job_store_on_reply, t, NULL));
}

static int worker_get(struct job_store *t, const char *key)
{
    return job_store_wait(t, async_store_get(t->store, span_str(key), STORE_MS,
                                             job_store_on_reply, t, NULL));
}

static int worker_add(struct job_store *t, const char *key)
{
    return job_store_wait(t, async_store_add(t->store, span_str(key), 1, STORE_MS,
                                             job_store_on_reply, t, NULL));
}

/* ---- the world that it is part of ---- */

static void meeting_wake(struct job_meeting *m)
{
    for (int64_t i = 0; i < m->world; i++)
        if (m->members[i])
            os_wake(m->members[i]);
}

static void on_work_done(void *arg, uint64_t full_t)
{
    struct job_meeting *m = arg;

    if (m->full_t != full_t || m->lost)
        return;
    the_job->done_us = the_job->set.work_us;
    the_job->done_t = MIN_OF(the_job->done_t, os.t);
    m->over = true;
    the_job->last = m;
    os_log("job", "all work is done");
    meeting_wake(m);
}

static int new_meeting(struct job_worker *w)
{
    struct job *j = the_job;
    struct job_meeting *m = os_alloc(sizeof *m);

    if (j->meeting_count == JOB_MEETINGS) {
        os_fail("the job has begun anew %d times", JOB_MEETINGS);
        return -1;
    }
    j->meetings[j->meeting_count] = m;
    m->world = job_worker_number(w, "WORLD_SIZE");
    m->members = os_alloc((size_t)m->world * sizeof(void *));
    (void)snprintf(m->master, sizeof m->master, "%.40s:%.8s", job_env(w, "MASTER_ADDR"),
                   job_env(w, "MASTER_PORT"));
    m->restarts = w->counted ? job_worker_number(w, "TORCHELASTIC_RESTART_COUNT") : -1;
    m->round = w->round;
    m->full_t = OS_NEVER;
    return (int)j->meeting_count++;
}

/* A world is whole, so that no worker of an earlier one may live, unless it is being
 * ended. An agent that is stopped or cut off cannot know that. */
static void check_alone(const struct job_meeting *m)
{
    for (const struct os_process *p = os.processes; p; p = p->next) {
        const struct job_worker *w = p->arg;

        if (p->main == job_worker_main && p->state != OS_ENDED && w->meeting != m &&
            w->meeting && w->round < m->round && !w->told &&
            w->node->kind != JOB_TORCH && job_awake(w->node))
            os_fail("%s of round %" PRId64
                    " lives beside the whole world of round %" PRId64,
                    p->name, w->round, m->round);
    }
}

/* The worker passes the barrier. Checks all that torch's process group relies on. */
static void join_meeting(struct job_worker *w, size_t index)
{
    struct job_meeting *m =
        index < the_job->meeting_count ? the_job->meetings[index] : NULL;
    const int64_t rank = job_worker_number(w, "RANK"),
                  world = job_worker_number(w, "WORLD_SIZE");
    char master[64];

    (void)snprintf(master, sizeof master, "%.40s:%.8s", job_env(w, "MASTER_ADDR"),
                   job_env(w, "MASTER_PORT"));
    /* The worker's agent has lost contact with its group, and has not stopped the
     * worker yet. If torchrun's nodes may be in the group, the store still has the
     * address of the round before, as torchrun's store has, and cannot keep the worker
     * out. Otherwise it must not come here. */
    if (m && (world != m->world || (rank < m->world && m->members[rank])) &&
        (the_job->set.plain || the_job->set.mixed ||
         strcmp(the_job->set.backend, "c10d") != 0) &&
        the_job->last_fault_t && !w->node->killed) {
        the_job->strays++;
        os_log(w->process->name, "has come to a later world");
        return;
    }
    if (!m || world != m->world || rank < 0 || rank >= world ||
        world > (int64_t)the_job->set.nodes * the_job->set.nproc) {
        os_fail("%s is rank %" PRId64 " of %" PRId64 " in a world of %" PRId64,
                w->process->name, rank, world, m ? m->world : -1);
        return;
    }
    if (strcmp(master, m->master) != 0)
        os_fail("%s has the master %s, others of its world have %s", w->process->name,
                master, m->master);
    if (!w->counted)
        m->restarts = -1;
    if (job_shares_budget(the_job) && m->restarts >= 0 &&
        m->restarts != job_worker_number(w, "TORCHELASTIC_RESTART_COUNT"))
        os_fail("%s is of restart %" PRId64 ", others of its world of %" PRId64,
                w->process->name, job_worker_number(w, "TORCHELASTIC_RESTART_COUNT"),
                m->restarts);
    if (m->members[rank])
        os_fail("%s and %s are both rank %" PRId64 " of one world", w->process->name,
                m->members[rank]->name, rank);
    m->members[rank] = w->process;
    w->meeting = m;
    w->node->met = m;
    if ((int64_t)++m->met < m->world || m->lost)
        return;
    m->full_t = os.t;
    check_alone(m);
    job_moment();
    os_log("job", "a world of %" PRId64 " is whole", m->world);
    /* If all the work is done already, this only takes a moment. */
    os_at(os.t + 10 * OS_MS + the_job->set.work_us -
              MIN_OF(the_job->done_us, the_job->set.work_us),
          on_work_done, m, os.t);
}

void job_worker_ended(struct job_worker *w)
{
    struct job_meeting *m = w->meeting;
    struct job *j = the_job;

    os_log(w->process->name, "ends with %d", w->process->exit_code);
    if (w->process->exit_code != 0 && j->failure_count < JOB_FAILURES)
        j->failures[j->failure_count++] =
            (struct job_failure){ .pid = w->process->pid,
                                  .node = w->node->index,
                                  .rank = job_worker_number(w, "RANK"),
                                  .round = w->round,
                                  .code = w->process->exit_code,
                                  .t = os.t,
                                  .echo = w->process->exit_code > 0,
                                  .met = m != NULL,
                                  .told = w->told };
    if (w->process->exit_code != 0 && !w->told)
        job_tell(w->node->machine->name, "loses its worker of rank %" PRId64,
                 job_worker_number(w, "RANK"));
    w->node->idle_t = os.t;
    job_moment();
    if (!m)
        return;
    m->lost++;
    if (m->full_t != OS_NEVER && !m->over) {
        if (the_job->done_us < the_job->set.work_us)
            the_job->done_us =
                MIN_OF(the_job->done_us + os.t - m->full_t, the_job->set.work_us - 1);
        m->full_t = OS_NEVER;
    }
    for (int64_t i = 0; i < m->world; i++)
        if (m->members[i] == w->process)
            m->members[i] = NULL;
    if (!m->over)
        meeting_wake(m);
}

/* ---- its life ---- */

static void on_term(void *arg, uint64_t sig)
{
    struct job_worker *w = arg;

    if (w->process && w->process->state != OS_ENDED)
        os_signal(w->process, (int)sig);
}

/* Its agent tells it to end. How soon it does depends on its manners. */
void job_worker_signal(struct job_worker *w, int sig)
{
    w->told = true;
    if (sig == SIGKILL)
        os_at(os.t + 100, on_term, w, SIGKILL);
    else if (the_job->set.manners == JOB_POLITE)
        os_at(os.t + os_random(100, 20 * OS_MS), on_term, w, (uint64_t)sig);
    else if (the_job->set.manners == JOB_SLOW)
        os_at(os.t + os_random(OS_MS, 3 * OS_SECOND), on_term, w, (uint64_t)sig);
}

static int meet(struct job_worker *w, struct job_store *t)
{
    const int64_t world = job_worker_number(w, "WORLD_SIZE"),
                  rank = job_worker_number(w, "RANK");
    char meeting[32], count[40], go[40], text[32];
    int rc = 0;

    /* As in torch, the keys of all attempts are the same, since each attempt begins
     * with an empty store. A store that a torchrun serves is not emptied, which would
     * cost its jobs more than we want to know of here. */
    (void)snprintf(meeting, sizeof meeting, "meeting%" PRId64,
                   the_job->torchruns ? w->round : 0);
    (void)snprintf(count, sizeof count, "%s/count", meeting);
    (void)snprintf(go, sizeof go, "%s/go", meeting);
    if (rank == 0) {
        (void)snprintf(text, sizeof text, "%d", new_meeting(w));
        rc = worker_set(t, meeting, text);
    }
    if (rc == 0)
        rc = worker_get(t, meeting);
    (void)snprintf(text, sizeof text, "%.20s", job_store_text(t));
    if (rc == 0)
        rc = worker_add(t, count);
    if (rc == 0 && t->number == world)
        rc = worker_set(t, go, "1");
    if (rc == 0)
        rc = worker_get(t, go);
    if (rc == 0)
        join_meeting(w, (size_t)strtoul(text, NULL, 10));
    return rc;
}

static int open_store(struct job_worker *w, struct job_store *t)
{
    const uint16_t port = (uint16_t)job_worker_number(w, "MASTER_PORT");
    struct store_server_opts so;
    struct store_server *server;
    struct muster_error err;

    if (job_worker_number(w, "RANK") == 0 &&
        strcmp(job_env(w, "TORCHELASTIC_USE_AGENT_STORE"), "True") != 0) {
        store_server_opts_init(&so);
        so.port = port;
        if (store_server_open(&t->loop, &so, &server, &err) < 0) {
            os_log(w->process->name, "%s", err.text);
            return err.code;
        }
    }
    return job_store_open(t, job_env(w, "MASTER_ADDR"), port, STORE_MS);
}

/* Says what a worker says that has lost its peers, and fails. */
static int fail_with(struct job_worker *w, const char *words)
{
    w->node->words[job_worker_number(w, "LOCAL_RANK") % JOB_NPROC] = words;
    return 1;
}

int job_worker_main(void *worker)
{
    struct job_worker *w = worker;
    struct job_store *t = os_alloc(sizeof *t);
    struct job *j = the_job;
    int rc;

    os.current->spared = true;
    while (j->set.idle_workers)
        os_wait(OS_NEVER);
    job_store_init(t);
    os_log(os.current->name, "RANK %s of %s at %s:%s, restart %s", job_env(w, "RANK"),
           job_env(w, "WORLD_SIZE"), job_env(w, "MASTER_ADDR"),
           job_env(w, "MASTER_PORT"), job_env(w, "TORCHELASTIC_RESTART_COUNT"));
    job_store_sleep(t, os.t + os_random(10 * OS_MS, j->set.import_us + 11 * OS_MS));
    rc = open_store(w, t);
    if (rc == 0)
        rc = meet(w, t);
    if (rc < 0) {
        os_log(os.current->name, "could not meet the others: %d", rc);
        return fail_with(w, "torch.distributed.DistNetworkError: the store is gone");
    }
    uint64_t late_t = os.t + COLLECTIVE_US; /* for workers that are missing */
    while (w->meeting && !w->meeting->over) {
        if (w->meeting->full_t == OS_NEVER && os.t >= late_t)
            return fail_with(w, "RuntimeError: Timed out waiting 100000ms");
        if (w->meeting->lost && j->set.workers_fail_with_peers) {
            job_store_sleep(t, os.t + os_random(50 * OS_MS, OS_SECOND));
            return fail_with(w, "RuntimeError: Connection closed by peer");
        }
        if (w->meeting->full_t != OS_NEVER)
            late_t = OS_NEVER;
        else if (late_t == OS_NEVER)
            late_t = os.t + COLLECTIVE_US;
        job_store_doze(t, late_t);
    }
    if (!w->meeting)
        return fail_with(w, "RuntimeError: Connection reset by peer");
    job_store_sleep(t, os.t + os_random(0, 500 * OS_MS));
    return 0;
}
