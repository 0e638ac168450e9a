/* framework.c - what --for needs of the running agent: where the workers of all nodes
 * are, told before they start, and for MPI a PMI server while they run. Without --for
 * nothing of this is there. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "agent/agent_int.h"
#include "base/err.h"
#include "base/escape.h"
#include "base/mem.h"
#include "launch/core/framework.h"
#include "launch/mpi.h"
#include "loop/clock.h"
#include "net/listen.h"
#include "pmi/pmi.h"
#include "store/core/gather.h"

#define KEYS "muster/nodes/" /* + node */

struct agent_framework {
    struct gather gather;   /* under way while a->dialogue.driver runs it */
    struct text_list nodes; /* of this round */
    struct buf own;         /* our text */
    struct pmi *pmi;        /* of this attempt; NULL: none */
};

/* Open MPI's library takes its ranks by PMIx, which nobody serves here: each worker
 * would be alone in a world of its own, and the job would seem to succeed. */
static int check_library(const struct agent *a, struct muster_error *err)
{
    const struct launch_config *c = a->config;
    char library[64], clean[256];
    int version = 0;

    if (c->entry != ENTRY_EXEC || !framework_has_pmi(c->framework) ||
        !mpi_library(c->script, env_get(a->opts.envp, "PATH"), library,
                     sizeof library) ||
        sscanf(library, "libmpi.so.%d", &version) != 1 || version < 20)
        return 0;
    return err_set(err, MUSTER_EINVAL,
                   "%s is linked to %s of Open MPI, which takes its ranks by PMIx; "
                   "--for=mpi speaks PMI-1, as MPICH and Intel MPI do\n"
                   "Build it with MPICH (mpicc.mpich), or start it with Open MPI's "
                   "mpirun.",
                   c->script, escape_text(clean, sizeof clean, span_str(library)));
}

static void say_kept(const struct agent *a)
{
    struct buf b;

    buf_init(&b, 1024);
    if (framework_kept(&b, a->config, a->opts.envp) == 0 && buf_len(&b) &&
        buf_u8(&b, 0) == 0)
        log_line(a->log, LOG_WARN, AT_LAUNCH, "--for=%s leaves as you have set it: %s",
                 framework_name(a->config->framework), (const char *)buf_data(&b));
    buf_fini(&b);
}

int agent_framework_open(struct agent *a, struct muster_error *err)
{
    int rc;

    if (!a->config->framework)
        return 0;
    rc = check_library(a, err);
    if (rc)
        return rc;
    a->framework = mem_calloc(1, sizeof *a->framework);
    if (!a->framework)
        return err_nomem(err);
    buf_init(&a->framework->own, SIZE_MAX);
    say_kept(a);
    return 0;
}

void agent_framework_over(struct agent *a)
{
    if (!a->framework)
        return;
    pmi_close(a->framework->pmi);
    a->framework->pmi = NULL;
}

void agent_framework_close(struct agent *a)
{
    struct agent_framework *f = a->framework;

    if (!f)
        return;
    agent_framework_over(a);
    gather_fini(&f->gather);
    text_list_fini(&f->nodes);
    buf_fini(&f->own);
    mem_free(f);
    a->framework = NULL;
}

/* --- where the workers are ----------------------------------------------------------
 */

/* The address by which the other nodes reach this one. Node 0 is where the workers'
 * store is; of another one the connection to the rendezvous tells. */
static void put_own_address(struct agent *a, struct buf *out)
{
    const struct rdzv_handler_ops *ops = a->handler->ops;
    char addr[1025];

    if (a->round.world_size == 1)
        (void)buf_append_str(out, "127.0.0.1");
    else if (a->config->rdzv.local_addr)
        (void)buf_append_str(out, a->config->rdzv.local_addr);
    else if (a->round.rank == 0)
        (void)buf_append_str(out, a->round.served_addr ? a->round.served_addr
                                                       : a->round.master_addr);
    else if (ops->own_addr && ops->own_addr(a->handler, addr, sizeof addr))
        (void)buf_append_str(out, addr);
    else
        (void)buf_append_str(out, a->host);
}

static int make_own_text(struct agent *a, struct muster_error *err)
{
    struct buf *out = &a->framework->own;
    int rc = 0;

    buf_clear(out);
    put_own_address(a, out);
    (void)buf_printf(out, " %" PRId64 " ", a->config->nproc);
    for (int64_t i = 0; rc == 0 && i < framework_ports(a->config); i++) {
        uint16_t port = 0;

        rc = listen_free_port(&port, err);
        (void)buf_printf(out, "%s%u", i ? "," : "", port);
    }
    return rc ? rc : buf_error(out) ? err_nomem(err) : 0;
}

static void nodes_known(struct agent *a, struct text_list *nodes)
{
    struct muster_error err;

    text_list_fini(&a->framework->nodes);
    a->framework->nodes = *nodes;
    *nodes = (struct text_list){ 0 };
    if (framework_nodes_check(&a->framework->nodes, a->range.world_size, &err) == 0)
        agent_job_assigned(a);
    else
        agent_fail(a, &err);
}

static void framework_on_gathered(void *ctx, const struct dialogue_fx *fx)
{
    struct agent *a = ctx;
    struct muster_error err = fx->err;
    struct text_list nodes = a->framework->gather.texts;

    a->framework->gather.texts = (struct text_list){ 0 };
    switch (fx->kind) {
    case DIALOGUE_DONE:
        agent_end_dialogue(a);
        agent_wait_end(a, true);
        nodes_known(a, &nodes);
        break;
    case DIALOGUE_REJOIN:
        agent_end_dialogue(a);
        agent_wait_end(a, true);
        agent_post(a, AGENT_EV_NODE_LOST, 0, 0);
        break;
    default:
        if (err.code == MUSTER_ETIMEDOUT)
            err_add(&err, "\nStart every node with the same --for.");
        agent_fail(a, &err);
        agent_end_dialogue(a);
        break;
    }
    text_list_fini(&nodes);
    agent_pump(a);
}

void agent_framework_assigned(struct agent *a, uint64_t timeout_ms, bool can_rejoin)
{
    struct agent_framework *f = a->framework;
    struct text_list nodes = { 0 };
    struct muster_error err;

    if (!f) {
        agent_job_assigned(a);
        return;
    }
    if (make_own_text(a, &err)) {
        agent_fail(a, &err);
        return;
    }
    const struct span own = buf_span(&f->own);
    if (a->round.world_size == 1) {
        if (text_list_add(&nodes, (const char *)own.p, own.n)) {
            (void)err_nomem(&err);
            agent_fail(a, &err);
        } else {
            nodes_known(a, &nodes);
        }
        text_list_fini(&nodes);
        return;
    }
    gather_fini(&f->gather);
    f->gather = (struct gather){ .rank = a->round.rank,
                                 .world = a->round.world_size,
                                 .text = own,
                                 .timeout_ms = timeout_ms,
                                 .can_rejoin = can_rejoin,
                                 .what = "agreeing on addresses for --for" };
    (void)snprintf(f->gather.prefix, sizeof f->gather.prefix, KEYS);
    dialogue_init(&f->gather.dialogue);
    if (dialogue_driver_open(a->round.store, &f->gather.dialogue, gather_step,
                             framework_on_gathered, a, &a->dialogue.driver, &err) < 0) {
        a->dialogue.driver = NULL;
        agent_fail(a, &err);
    }
}

/* --- the workers --------------------------------------------------------------------
 */

/* Other ranks fail as soon as the connections to this one break, which may be seen
 * sooner than its end: it has failed now. */
static void framework_on_gone(void *ctx, int64_t worker)
{
    struct agent_worker *w = &((struct agent *)ctx)->workers[worker];

    if (!w->exited_us)
        w->exited_us = clock_now().wall_us;
}

static void framework_on_abort(void *ctx, int64_t worker, int64_t code)
{
    struct agent *a = ctx;

    /* A code of 0 must not make it a success. The worker has nothing left to do, and
     * MPICH's waits for its end: MPI_Abort never returns. */
    a->workers[worker].aborted = (code & 0xff) ? (int)(code & 0xff) : 1;
    framework_on_gone(a, worker);
    guard_signal(a->guard, (uint32_t)worker, SIGKILL);
}

static void framework_on_trouble(void *ctx, int64_t worker,
                                 const struct muster_error *err)
{
    struct agent *a = ctx;

    if (err->code == 0) {
        log_line(a->log, LOG_WARN, AT_AGENT, "rank %" PRId64 " %s",
                 a->range.base_rank + worker, err->text);
        return;
    }
    agent_fail(a, err);
    agent_pump(a);
}

int agent_framework_begin(struct agent *a, int64_t attempt, struct muster_error *err)
{
    struct agent_framework *f = a->framework;
    struct buf mapping;
    char name[64];
    int rc;

    if (!f || !framework_has_pmi(a->config->framework))
        return 0;
    agent_framework_over(a);
    buf_init(&mapping, SIZE_MAX);
    (void)snprintf(name, sizeof name, "kvs_%d_%" PRIu64, (int)getpid(), a->round.round);
    (void)framework_mapping(&mapping, &f->nodes);
    rc = buf_u8(&mapping, 0) ? err_nomem(err) : 0;
    if (rc == 0) {
        const struct pmi_opts opts = {
            .loop = &a->loop,
            .place = { .workers = a->config->nproc,
                       .nodes = a->round.world_size,
                       .world_size = a->range.world_size,
                       .name = name,
                       .mapping = (const char *)buf_data(&mapping) },
            .node_rank = a->round.rank,
            .store = a->round.store,
            .attempt = attempt,
            .on_abort = framework_on_abort,
            .on_gone = framework_on_gone,
            .on_trouble = framework_on_trouble,
            .ctx = a,
        };

        rc = pmi_open(&opts, &f->pmi, err);
    }
    buf_fini(&mapping);
    return rc;
}

int agent_framework_worker(struct agent *a, int64_t local_rank,
                           struct worker_place *place, int *theirs,
                           struct muster_error *err)
{
    if (!a->framework)
        return 0;
    place->nodes = &a->framework->nodes;
    return a->framework->pmi ? pmi_worker(a->framework->pmi, local_rank, theirs, err)
                             : 0;
}

bool agent_framework_left_early(struct agent *a, int64_t local_rank)
{
    return a->framework && a->framework->pmi &&
           pmi_left_early(a->framework->pmi, local_rank);
}

int agent_framework_code(const struct agent *a, int code)
{
    struct record_entry e;

    if (!a->framework || !framework_has_pmi(a->config->framework) ||
        !record_find(session_record(a->job.session), RECORD_VERDICT, -1, &e) ||
        e.rank < 0 || e.code == 0)
        return code;
    return e.code > 0 ? (int)(e.code & 0xff) : (int)(128 - e.code);
}
