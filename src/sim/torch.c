/* torch.c - a node that runs torchrun, as torch 2.13 does it (the specification is in
 * launcher.md and rendezvous.md of PyTorch's behaviour; the decisions are those of
 * rendezvous/core/decisions.h, which equal torch's own, case by case).
 *
 *   one connection    for the state, the heartbeats and the agreement on ranks. A call
 *                     that waits holds back the heartbeats. If the connection breaks,
 *                     the agent ends: torch's client never reconnects.
 *   the state         is cached for a second and polled every second; who is dead is
 *                     decided by wall clocks; one write for each action.
 *   a round           rank and world as the sanitized state says, the workers' address
 *                     from rank 0, ranks through role_info and assigned_ranks.
 *   its workers       one that fails costs a restart of this node's own; a node that
 *                     waits costs none. Whoever is done counts itself in and waits.
 *   the end           closes the run for everybody.
 *
 * Unlike torchrun's, its workers die with it: nobody would look at what they do alone.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "rendezvous/core/cas_node.h"
#include "rendezvous/core/decisions.h"
#include "rendezvous/core/rank_exchange.h"
#include "rendezvous/core/state_pickle.h"
#include "sim/job.h"
#include "store/async_store.h"
#include "store/server.h"

#define READ_MS    60000u           /* for each call to the store */
#define CACHE_MS   1000u            /* for which a node does not read the state again */
#define STOP_US    (30 * OS_SECOND) /* from SIGTERM to SIGKILL */
#define BARRIER_US (300 * OS_SECOND)

struct torchrun {
    struct job_node *node;
    struct job_store talk;
    struct rdzv_settings settings;
    struct rdzv_state state;
    struct buf token; /* the state as it was read */
    bool has_token;
    uint64_t synced_ms; /* 0: never */
    uint64_t beat_ms;   /* when the next heartbeat is due */
    int64_t round, rank, world;
    char prefix[48]; /* of the round's keys */
    char address[64];
    char port[12];
    bool serves; /* it has a server for workers */
    int64_t restarts;
    struct rank_range range;
    struct job_worker *workers[JOB_NPROC];
};

static struct now torch_now(void)
{
    uv_timeval64_t tv;

    (void)uv_gettimeofday(&tv);
    return (struct now){ uv_hrtime() / 1000000,
                         tv.tv_sec * INT64_C(1000000) + tv.tv_usec };
}

static struct rdzv_node torch_identity(void)
{
    return (struct rdzv_node){ span_str(os.current->machine->name), os.current->pid,
                               0 };
}

/* ---- the shared state ---- */

static int torch_ask(struct torchrun *t, const struct c10d_request *req)
{
    return job_store_wait(&t->talk,
                          async_store_call(t->talk.store, req, 0, READ_MS,
                                           job_store_on_reply, &t->talk, NULL));
}

static void torch_take(struct torchrun *t, bool wrote)
{
    const struct span value = buf_span(&t->talk.value);
    const bool none = value.n == 0 || span_eq(value, span_str(RDZV_C10D_SENTINEL));
    struct rdzv_state is;

    if (!none && pickle_read_text(value, &is, NULL) < 0) {
        os_fail("%s cannot read the state", os.current->name);
    } else if (!none) {
        rdzv_state_fini(&t->state);
        t->state = is;
    } else if (!wrote) { /* After a write, torch keeps its own state all the same. */
        rdzv_state_fini(&t->state);
        rdzv_state_init(&t->state);
    }
    t->has_token = !none;
    buf_clear(&t->token);
    os_must(buf_append_span(&t->token, value));
    t->synced_ms = torch_now().mono_ms;
    (void)rdzv_sanitize(&t->state, &t->settings, torch_now().wall_us);
}

/* _BackendRendezvousStateHolder.sync */
static int torch_sync(struct torchrun *t, bool dirty)
{
    struct c10d_request req = { .op = C10D_GET,
                                .key = span_str(RDZV_C10D_PREFIX JOB_RUN) };
    struct buf value;
    int rc;

    if (!dirty && t->synced_ms && t->synced_ms + CACHE_MS >= torch_now().mono_ms)
        return 0;
    buf_init(&value, SIZE_MAX);
    if (dirty) {
        os_must(pickle_write_text(&t->state, &value));
        req.op = C10D_COMPARE_SET;
        req.value = buf_span(&value);
        req.expected =
            t->has_token ? buf_span(&t->token) : span_str(RDZV_C10D_SENTINEL);
    }
    rc = torch_ask(t, &req);
    if (rc == 0)
        torch_take(t, dirty);
    buf_fini(&value);
    return rc;
}

/* _DistributedRendezvousOpExecutor.run. A decision follows each sync. */
static int torch_run(struct torchrun *t,
                     enum rdzv_action (*next)(const struct rdzv_view *v),
                     uint64_t *due_ms)
{
    const struct rdzv_node me = torch_identity();
    bool dirty = false;

    for (;;) {
        const int rc = torch_sync(t, dirty);
        const struct rdzv_view v =
            rdzv_view_of(&t->state, &me, &t->settings, torch_now(), *due_ms);
        const enum rdzv_action a = rc < 0 ? RDZV_FINISH : next(&v);

        dirty = false;
        switch (a) {
        case RDZV_FINISH:
            return rc;
        case RDZV_FAIL_CLOSED:
            return MUSTER_ECLOSED;
        case RDZV_FAIL_TIMEOUT:
            return MUSTER_ETIMEDOUT;
        case RDZV_DISMISSED:
            return MUSTER_EGRACEFUL;
        case RDZV_SYNC:
            job_store_sleep(&t->talk, os.t + OS_SECOND);
            continue;
        default:
            os_must(rdzv_apply(&t->state, a, &me, &t->settings, torch_now().wall_us));
            if (a == RDZV_DROP_SPARE)
                *due_ms = torch_now().mono_ms + t->settings.join_ms;
            dirty = true;
        }
    }
}

static int torch_close(struct torchrun *t)
{
    uint64_t due_ms = torch_now().mono_ms + t->settings.close_ms;

    return torch_run(t, rdzv_close_next, &due_ms);
}

static int torch_join(struct torchrun *t)
{
    uint64_t due_ms = torch_now().mono_ms + t->settings.join_ms;
    const struct rdzv_node me = torch_identity();
    int rc;

    job_tell(os.current->name, "wants to join");
    if (t->state.round == 0)
        job_store_sleep(&t->talk, os.t + os_random(0, 300 * OS_MS));
    rc = torch_run(t, rdzv_exit_next, &due_ms);
    if (rc == 0)
        rc = torch_run(t, rdzv_join_next, &due_ms);
    if (rc < 0)
        return rc;
    t->round = t->state.round;
    t->rank = rdzv_state_find(&t->state, &me)->rank;
    t->world = (int64_t)rdzv_count(&t->state, RDZV_PLACES);
    t->beat_ms = torch_now().mono_ms + rdzv_interval_ms(&t->settings);
    (void)snprintf(t->prefix, sizeof t->prefix, RDZV_C10D_PREFIX JOB_RUN ".%" PRId64,
                   t->round);
    job_tell(os.current->name,
             "joins round %" PRId64 " as rank %" PRId64 " of %" PRId64, t->round,
             t->rank, t->world);
    return 0;
}

/* ---- keys of the round ---- */

static struct span torch_key(const struct torchrun *t, char *to, size_t size,
                             const char *name, int64_t number)
{
    if (number < 0)
        (void)snprintf(to, size, "%s/%s", t->prefix, name);
    else
        (void)snprintf(to, size, "%s/%s%" PRId64, t->prefix, name, number);
    return span_str(to);
}

static int torch_set(struct torchrun *t, const char *name, int64_t number,
                     struct span value)
{
    char key[128];

    return job_store_wait(
        &t->talk,
        async_store_set(t->talk.store, torch_key(t, key, sizeof key, name, number),
                        value, READ_MS, job_store_on_reply, &t->talk, NULL));
}

static int torch_get(struct torchrun *t, const char *name, int64_t number,
                     uint64_t timeout_ms)
{
    char key[128];

    return job_store_wait(
        &t->talk,
        async_store_get(t->talk.store, torch_key(t, key, sizeof key, name, number),
                        timeout_ms, job_store_on_reply, &t->talk, NULL));
}

static int torch_serve(struct torchrun *t)
{
    struct store_server_opts so;
    struct store_server *server;
    struct muster_error err;

    store_server_opts_init(&so);
    if (store_server_open(&t->talk.loop, &so, &server, &err) < 0)
        return err.code;
    t->serves = true;
    return store_server_port(server);
}

/* Where the workers meet. torch remembers the first address that it was given, unless
 * the environment says that agents serve no stores for workers. */
static int torch_find_address(struct torchrun *t)
{
    const bool share = the_job->set.share;
    int rc = 0;

    if (share && t->address[0] && (t->rank != 0 || t->serves))
        return 0;
    if (t->rank == 0) {
        rc = share ? torch_serve(t) : (int)os_random(20000, 30000);
        if (rc < 0)
            return rc;
        (void)snprintf(t->port, sizeof t->port, "%d", rc);
        rc = torch_set(t, "MASTER_ADDR", -1, span_str(os.current->machine->name));
        if (rc == 0)
            rc = torch_set(t, "MASTER_PORT", -1, span_str(t->port));
    }
    if (rc == 0)
        rc = torch_get(t, "MASTER_ADDR", -1, READ_MS);
    (void)snprintf(t->address, sizeof t->address, "%.60s", job_store_text(&t->talk));
    if (rc == 0)
        rc = torch_get(t, "MASTER_PORT", -1, READ_MS);
    (void)snprintf(t->port, sizeof t->port, "%.11s", job_store_text(&t->talk));
    return rc;
}

/* Rank 0 reads what each node has told of itself, and tells each its ranks. */
static int torch_assign(struct torchrun *t)
{
    const size_t count = (size_t)t->world;
    struct role_info *infos = os_alloc(count * sizeof *infos);
    struct rank_range *ranges = os_alloc(count * sizeof *ranges);
    struct muster_error err;
    struct buf text;
    int rc = 0;

    for (size_t i = 0; i < count && rc == 0; i++) {
        rc = torch_get(t, RANKS_ROLE_KEY, (int64_t)i, READ_MS);
        if (rc == 0)
            rc = role_info_parse(&infos[i], buf_span(&t->talk.value), &err);
    }
    if (rc == 0)
        rc = ranks_assign(infos, count, ranges, &err);
    for (size_t i = 0; i < count && rc == 0; i++) {
        buf_init(&text, SIZE_MAX);
        os_must(rank_range_print(&text, &ranges[i]));
        rc = torch_set(t, RANKS_ASSIGNED_KEY, (int64_t)i, buf_span(&text));
        buf_fini(&text);
    }
    return rc;
}

static int torch_agree(struct torchrun *t)
{
    struct muster_error err;
    struct buf text;
    int rc;

    buf_init(&text, SIZE_MAX);
    os_must(role_info_print(&text, "default", t->rank, the_job->set.nproc));
    rc = torch_set(t, RANKS_ROLE_KEY, t->rank, buf_span(&text));
    buf_fini(&text);
    if (rc == 0 && t->rank == 0)
        rc = torch_assign(t);
    if (rc == 0)
        rc = torch_get(t, RANKS_ASSIGNED_KEY, t->rank, READ_MS);
    if (rc == 0)
        rc = rank_range_parse(&t->range, buf_span(&t->talk.value), &err);
    return rc;
}

/* An agent that waits in vain ends all the same, and with 0. */
static void torch_exit_barrier(struct torchrun *t)
{
    char key[128];
    int rc = job_store_wait(
        &t->talk, async_store_add(t->talk.store,
                                  torch_key(t, key, sizeof key, RANKS_MEMBERS_KEY, -1),
                                  1, READ_MS, job_store_on_reply, &t->talk, NULL));

    if (rc == 0 && t->talk.number == t->world)
        rc = torch_set(t, RANKS_LAST_KEY, -1, span_str(RANKS_LAST_VALUE));
    if (rc == 0)
        (void)torch_get(t, RANKS_LAST_KEY, -1, BARRIER_US / 1000);
}

/* ---- workers ---- */

static void on_worker_ended(void *ctx, struct os_process *p)
{
    struct job_worker *w = ctx;

    job_worker_ended(w);
    if (w->node->agent)
        os_wake(w->node->agent);
}

static void torch_start_worker(struct torchrun *t, size_t i)
{
    struct job_worker *w = os_alloc(sizeof *w);
    const int64_t rank = t->range.base_rank + (int64_t)i;
    char name[32];

    w->node = t->node;
    w->id = (uint32_t)(t->node->workers_started++);
    w->round = t->round;
    w->env = os_alloc(8 * sizeof *w->env);
    w->env[0] = os_text("RANK=%" PRId64, rank);
    w->env[1] = os_text("WORLD_SIZE=%" PRId64, t->range.world_size);
    w->env[2] = os_text("LOCAL_RANK=%zu", i);
    w->env[3] = os_text("MASTER_ADDR=%s", t->address);
    w->env[4] = os_text("MASTER_PORT=%s", t->port);
    w->env[5] = os_text("TORCHELASTIC_RESTART_COUNT=%" PRId64, t->restarts);
    w->env[6] = os_text("TORCHELASTIC_USE_AGENT_STORE=%s",
                        the_job->set.share ? "True" : "False");
    (void)snprintf(name, sizeof name, "%s.w%u", t->node->machine->name, w->id);
    w->process = os_process_start(t->node->machine, name, job_worker_main, w);
    w->process->ended = on_worker_ended;
    w->process->ended_ctx = w;
    t->workers[i] = w;
}

static size_t torch_living(const struct torchrun *t)
{
    size_t n = 0;

    for (size_t i = 0; i < JOB_NPROC; i++)
        n += t->workers[i] && t->workers[i]->process->state != OS_ENDED;
    return n;
}

static bool torch_failed(const struct torchrun *t)
{
    for (size_t i = 0; i < JOB_NPROC; i++)
        if (t->workers[i] && t->workers[i]->process->state == OS_ENDED &&
            t->workers[i]->process->exit_code != 0)
            return true;
    return false;
}

static void torch_signal(struct torchrun *t, int sig)
{
    for (size_t i = 0; i < JOB_NPROC; i++)
        if (t->workers[i])
            job_worker_signal(t->workers[i], sig);
}

static void torch_stop_workers(struct torchrun *t)
{
    const uint64_t kill_t = os.t + STOP_US;

    torch_signal(t, SIGTERM);
    while (torch_living(t) && os.t < kill_t)
        job_store_doze(&t->talk, kill_t);
    torch_signal(t, SIGKILL);
    while (torch_living(t))
        job_store_doze(&t->talk, OS_NEVER);
    memset(t->workers, 0, sizeof t->workers);
}

void job_torch_gone(struct job_node *n)
{
    struct torchrun *t = n->torchrun;

    n->torchrun = NULL;
    for (size_t i = 0; t && i < JOB_NPROC; i++)
        if (t->workers[i]) {
            t->workers[i]->told = true;
            os_signal(t->workers[i]->process, SIGKILL);
        }
}

/* ---- its life ---- */

/* Until its workers have ended, or somebody waits for the next round. */
static int torch_watch(struct torchrun *t)
{
    while (torch_living(t) && !torch_failed(t)) {
        uint64_t due_ms = torch_now().mono_ms + t->settings.heartbeat_ms;
        int rc = 0;

        if (torch_now().mono_ms >= t->beat_ms) {
            (void)torch_run(t, rdzv_keep_alive_next, &due_ms);
            t->beat_ms = torch_now().mono_ms + rdzv_interval_ms(&t->settings);
        }
        rc = torch_sync(t, false);
        if (rc < 0)
            return rc;
        if (rdzv_count(&t->state, RDZV_WAITS))
            return 0;
        job_store_doze(&t->talk, os.t + OS_SECOND);
    }
    return 0;
}

/* One round. 1: there is to be another one; 0: all is done. */
static int torch_round(struct torchrun *t)
{
    int rc = torch_join(t);

    if (rc == 0)
        rc = torch_find_address(t);
    if (rc == 0)
        rc = torch_agree(t);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < (size_t)the_job->set.nproc; i++)
        torch_start_worker(t, i);
    rc = torch_watch(t);
    if (rc == 0 && !torch_living(t) && !torch_failed(t)) {
        torch_exit_barrier(t);
        return 0;
    }
    const bool failed = torch_failed(t);
    torch_stop_workers(t);
    if (rc < 0)
        return rc;
    if (!failed)
        return 1;
    return t->restarts++ < the_job->set.max_restarts ? 1 : MUSTER_ECHILD;
}

int job_torch_main(void *arg)
{
    struct job_node *n = arg;
    struct torchrun *t = os_alloc(sizeof *t);
    const struct c10d_request prime = { .op = C10D_COMPARE_SET,
                                        .key = span_str(RDZV_C10D_PREFIX JOB_RUN),
                                        .value = span_str(RDZV_C10D_SENTINEL) };
    int rc;

    t->node = n;
    n->torchrun = t;
    n->error = 0;
    os.current->spared = the_job->set.spare_torch;
    job_store_init(&t->talk);
    rdzv_settings_init(&t->settings, the_job->set.min_nodes, the_job->set.max_nodes);
    t->settings.join_ms = the_job->set.join_s * 1000;
    t->settings.last_call_ms = the_job->set.last_call_s * 1000;
    rdzv_state_init(&t->state);
    buf_init(&t->token, SIZE_MAX);
    rc = job_store_open(&t->talk, job_host_name(n->job), JOB_PORT, READ_MS);
    if (rc == 0)
        rc = torch_ask(t, &prime);
    do
        rc = rc < 0 ? rc : torch_round(t);
    while (rc == 1);
    n->error = rc < 0 ? rc : 0;
    if (rc != MUSTER_ECONN && t->talk.store)
        (void)torch_close(t);
    return rc < 0;
}
