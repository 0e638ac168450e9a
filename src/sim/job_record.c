/* job_record.c - what must hold for the record of a simulated job, and for its budget
 * of restarts. The linker passes each entry that a coordinator makes (record_stage) and
 * that an agent gets (record_add) through here, and they are compared with what has
 * really happened. */
#include <inttypes.h>
#include <stdio.h>

#include "agent/core/agent_core.h"
#include "job/session.h"
#include "policy/core/policy.h"
#include "sim/job.h"

#define CLOCK_US 1000 /* that a time may be wrong apart from what the entry says */

OS_INSTEAD_OF(record_add);
OS_INSTEAD_OF(record_stage);
OS_INSTEAD_OF(session_open);
OS_INSTEAD_OF(session_ranks);
OS_INSTEAD_OF(session_conclude);

/* Where some nodes read from the shared state that another one waits, they may learn it
 * before they learn why, so that a failure is not always counted. */
bool job_shares_budget(const struct job *j)
{
    return !j->set.plain && !j->set.mixed && strcmp(j->set.backend, "static") != 0 &&
           strcmp(j->set.backend, "etcd") != 0;
}

/* ---- what has really happened ---- */

static struct job_failure *failure_of(int64_t pid)
{
    for (size_t i = 0; i < the_job->failure_count; i++)
        if (the_job->failures[i].pid == pid)
            return &the_job->failures[i];
    return NULL;
}

/* Rounds below that one in which a worker has failed by itself. */
int64_t job_failed_rounds(int64_t below)
{
    const struct job *j = the_job;
    int64_t count = 0;

    for (size_t i = 0; i < j->failure_count; i++) {
        bool first = !j->failures[i].told && j->failures[i].round < below;

        for (size_t k = 0; k < i; k++)
            first = first && (j->failures[k].told ||
                              j->failures[k].round != j->failures[i].round);
        count += first;
    }
    return count;
}

/* ---- an entry as the coordinator makes it ---- */

/* Times are by the coordinator's clock, whatever the clocks of the others say. If its
 * own is set, it goes on with the old one until the failures at hand are judged. */
static void check_time(const struct record_entry *e, const struct job_failure *f)
{
    const struct os_machine *m = os.current->machine;
    const int64_t t = OS_WALL_US + (int64_t)f->t + m->wall_us;
    const int64_t off = e->at_us > t ? e->at_us - t : t - e->at_us;

    if (off > e->unsure_us + CLOCK_US &&
        (!m->jumped_t || f->t > m->jumped_t + 3 * OS_SECOND))
        os_fail("%s records that rank %" PRId64 " failed %.3f s off the right time, "
                "and says that this may be %.3f s",
                m->name, e->rank, (double)off / 1e6, (double)e->unsure_us / 1e6);
}

/* Whoever is blamed for the end of a round must be the first of it that did not fail
 * because of another one, as far as the clocks can tell. */
static void check_first(const struct record_entry *e, const struct job_failure *f)
{
    const struct job *j = the_job;

    if (!j->only_failures || !job_shares_budget(j))
        return;
    for (size_t i = 0; i < j->failure_count; i++) {
        const struct job_failure *o = &j->failures[i];

        if (o->round == f->round && !o->told && !o->echo && o->met && f->met &&
            (f->echo ||
             o->t + (uint64_t)(o->unsure_us + e->unsure_us) + CLOCK_US < f->t))
            os_fail("rank %" PRId64 " is blamed for round %" PRId64
                    ", but rank %" PRId64 " had failed before it",
                    f->rank, f->round, o->rank);
    }
}

/* A name that two lives of a node have is followed by a number in brackets. */
static bool is_host_name(struct span text, const char *name)
{
    const size_t n = strlen(name);

    return text.n >= n && memcmp(text.p, name, n) == 0 &&
           (text.n == n || text.p[n] == '[');
}

static void check_blame(const struct record_entry *e)
{
    struct job_failure *f = failure_of(e->pid);

    if (!f) {
        os_fail("%s of rank %" PRId64 " (pid %" PRId64 "), which has not failed",
                record_kind_name(e->kind), e->rank, e->pid);
        return;
    }
    if (f->rank != e->rank || f->round != e->round || f->code != e->code ||
        !is_host_name(e->host, the_job->nodes[f->node].machine->name))
        os_fail("%s of rank %" PRId64 " on %.*s in round %" PRId64 " with %" PRId64
                ", but it was rank %" PRId64 " on %s in round %" PRId64 " with %d",
                record_kind_name(e->kind), e->rank, (int)e->host.n,
                (const char *)e->host.p, e->round, e->code, f->rank,
                the_job->nodes[f->node].machine->name, f->round, f->code);
    f->unsure_us = e->unsure_us;
    if (!os.current->fail_at) /* Without memory, a message is taken a little later. */
        check_time(e, f);
    if (e->kind != RECORD_FAILED)
        check_first(e, f);
}

int __wrap_record_stage(struct record *r, const struct record_entry *e)
{
    if (the_job->record.coordinator && the_job->record.coordinator != os.current->pid)
        the_job->record.moved = true;
    the_job->record.coordinator = os.current->pid;
    if ((e->kind == RECORD_FAILED || e->kind == RECORD_RESTART ||
         e->kind == RECORD_VERDICT) &&
        e->rank >= 0)
        check_blame(e);
    return __real_record_stage(r, e);
}

/* ---- an entry as an agent gets it ---- */

static bool by_a_worker(const struct record_entry *e)
{
    return e->rank >= 0 && e->cause != CAUSE_MEMBERSHIP && e->cause != CAUSE_NODE_LOST;
}

/* The first agent has got the entry. */
static void check_restart(struct job_record *r, const struct record_entry *e)
{
    const int64_t want =
        r->restarts + (e->reason ? e->reason == POLICY_BY_COUNT : by_a_worker(e));

    if (e->count != want || e->total != the_job->set.max_restarts ||
        e->count > e->total)
        os_fail("round %" PRId64 " is followed by restart %" PRId64 " of %" PRId64
                ", which should be %" PRId64 " of %" PRId64,
                e->round, e->count, e->total, want, the_job->set.max_restarts);
    if (e->count > job_failed_rounds(INT64_MAX))
        os_fail("restart %" PRId64 " is counted, but workers have failed in %" PRId64
                " rounds alone",
                e->count, job_failed_rounds(INT64_MAX));
    r->restarts = e->count;
}

static void check_verdict(struct job_record *r, const struct record_entry *e)
{
    const struct job *j = the_job;

    if (r->verdict_t)
        os_fail("entry %" PRIu64 " is another verdict", e->number);
    r->verdict_t = os.t;
    r->verdict_round = e->round;
    if (e->cause == CAUSE_SUCCEEDED && (!j->last || j->last->lost < j->last->met))
        os_fail("the job is said to have succeeded, but not all workers have ended");
    if (by_a_worker(e) &&
        ((e->count != e->total && !e->reason) || e->count != r->restarts))
        os_fail("the job fails after %" PRId64 " of %" PRId64 " restarts, %" PRId64
                " of which are in the record",
                e->count, e->total, r->restarts);
}

static uint64_t hash_bytes(uint64_t h, const void *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const uint8_t *)p)[i]) * 0x100000001b3u;
    return h;
}

static uint64_t hash_entry(const struct record_entry *e)
{
    const int64_t numbers[] = { e->kind, e->cause, e->at_us, e->unsure_us,
                                e->node, e->round, e->rank,  e->local_rank,
                                e->pid,  e->code,  e->count, e->total };
    const struct span texts[] = { e->host, e->text, e->place, e->path, e->body };
    uint64_t h = hash_bytes(0xcbf29ce484222325u, numbers, sizeof numbers);

    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        h = hash_bytes(h, texts[i].p, texts[i].n);
    return h | 1; /* 0: nobody has got it. */
}

/* All agents get the same entries, none of them leaves one out, and a new coordinator
 * numbers its own above those of the one before. */
static void check_entry(struct job_node *n, const struct record_entry *e)
{
    struct job_record *r = &the_job->record;
    const uint64_t hash = hash_entry(e);

    if (e->number >= JOB_ENTRIES) {
        os_fail("entry %" PRIu64 " is more than a job should need", e->number);
        return;
    }
    for (uint64_t i = n->entry + 1; i < e->number; i++)
        if (r->hashes[i])
            os_fail("%s gets entry %" PRIu64 ", but never entry %" PRIu64,
                    n->machine->name, e->number, i);
    n->entry = e->number;
    if (r->hashes[e->number] && r->hashes[e->number] != hash)
        os_fail("%s has another entry %" PRIu64 " than the others", n->machine->name,
                e->number);
    if (r->hashes[e->number])
        return;
    if (e->number < r->last && the_job->etcd_members) {
        r->moved = true; /* Another node serves it now: see __wrap_record_add(). */
        return;
    }
    if (e->number < r->last)
        os_fail("entry %" PRIu64 " comes after entry %" PRIu64, e->number, r->last);
    r->last = e->number;
    r->hashes[e->number] = hash;
    if (!job_shares_budget(the_job))
        return; /* There, each node judges for itself. */
    if (e->kind == RECORD_RESTART)
        check_restart(r, e);
    else if (e->kind == RECORD_VERDICT)
        check_verdict(r, e);
    if (r->verdict_t && e->round > r->verdict_round)
        os_fail("%s of round %" PRId64 " comes after the verdict",
                record_kind_name(e->kind), e->round);
}

/* Whether the agent's record is the job's, not that of its node alone. */
bool job_shares_record(const struct job_node *n)
{
    const enum session_state state = session_state(n->session);

    return state == SESSION_UP || (state == SESSION_ALONE && the_job->set.nodes == 1);
}

int __wrap_record_add(struct record *r, const struct record_entry *e)
{
    struct job_node *n = job_current();
    const int rc = __real_record_add(r, e);

    if (rc < 0 || !n || !n->session || r != session_record(n->session))
        return rc;
    os_log(n->machine->name,
           "entry %" PRIu64 " %s %s, round %" PRId64 ", rank %" PRId64 ", %" PRId64
           " of %" PRId64 "%s",
           e->number, record_kind_name(e->kind), record_cause_name(e->cause), e->round,
           e->rank, e->count, e->total, job_shares_record(n) ? "" : " (its own)");
    if (e->kind == RECORD_VERDICT && !n->concludes)
        n->blames_worker = by_a_worker(e);
    /* A coordinator that takes over numbers its first entries before it has got those
     * of the one before from all nodes, so that this does not hold any more. */
    if (job_shares_record(n) && !n->concludes && !the_job->host_lost &&
        !the_job->record.moved)
        check_entry(n, e);
    return rc;
}

/* ---- what agents do with it ---- */

/* A record lives as long as an agent that has some of it. */
static bool is_known(const struct job *j)
{
    for (size_t i = 0; i < j->set.nodes; i++)
        if (j->nodes[i].session && j->nodes[i].entry)
            return true;
    return false;
}

int __wrap_session_open(const struct session_opts *opts, struct session **out,
                        struct muster_error *err)
{
    struct job_node *n = job_current();
    const int rc = __real_session_open(opts, out, err);

    if (rc < 0)
        return rc;
    n->session = NULL;
    if (!is_known(the_job))
        the_job->record = (struct job_record){ 0 };
    n->session = *out;
    n->entry = 0;
    n->blames_worker = false;
    return rc;
}

void __wrap_session_ranks(struct session *c, int64_t round, int64_t first,
                          int64_t count, int64_t nodes, bool own_budget)
{
    job_current()->round = round;
    __real_session_ranks(c, round, first, count, nodes, own_budget);
}

/* A node that ends without a coordinator adds the verdict to its own record. */
void __wrap_session_conclude(struct session *c, const struct record_entry *e)
{
    job_current()->concludes = true;
    __real_session_conclude(c, e);
    job_current()->concludes = false;
}

/* The environment of a worker that is about to start says how often the job has been
 * restarted. */
void job_check_restart_count(const struct job_node *n, int64_t count)
{
    const struct job *j = the_job;

    if (count < 0 || count > j->set.max_restarts)
        os_fail("%s starts a worker for restart %" PRId64 " of %" PRId64,
                n->machine->name, count, j->set.max_restarts);
    if (!job_shares_budget(j) || !job_shares_record(n))
        return;
    if (count > job_failed_rounds(n->round) ||
        (j->only_failures && count != job_failed_rounds(n->round)))
        os_fail("%s starts a worker of round %" PRId64 " for restart %" PRId64
                ", but workers have failed in %" PRId64 " rounds before it",
                n->machine->name, n->round, count, job_failed_rounds(n->round));
}

/* The budget when all is over: no node may give up early, and where nothing but workers
 * failed, each round in which one did must have been counted. */
void job_check_budget(const struct job *j)
{
    const int64_t failed = job_failed_rounds(INT64_MAX);

    if (!job_shares_budget(j) || j->starved)
        return;
    for (size_t i = 0; i < j->set.nodes; i++) {
        const struct job_node *n = &j->nodes[i];

        if (n->ended && n->blames_worker && n->why == WHY_FAILURE &&
            failed <= j->set.max_restarts)
            os_fail("%s gives up, but workers have failed in %" PRId64
                    " rounds and %" PRId64 " restarts are allowed",
                    n->machine->name, failed, j->set.max_restarts);
        if (!j->only_failures)
            continue;
        if (n->exit_code != (failed > j->set.max_restarts))
            os_fail("%s ends with %d, though workers have failed in %" PRId64
                    " rounds and %" PRId64 " restarts are allowed: %s",
                    n->machine->name, n->exit_code, failed, j->set.max_restarts,
                    n->text);
    }
    if (j->only_failures && j->record.restarts != MIN_OF(failed, j->set.max_restarts))
        os_fail("%" PRId64 " restarts are counted, but workers have failed in %" PRId64
                " rounds and %" PRId64 " restarts are allowed",
                j->record.restarts, failed, j->set.max_restarts);
    if (j->only_failures && !j->record.verdict_t)
        os_fail("the record has no verdict");
}
