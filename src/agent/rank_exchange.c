/* group_store.c - what agents tell each other through the round's store: ranks before
 * the workers start, and the barrier after they are done. torch's keys, torch's JSON.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/agent_int.h"
#include "base/err.h"
#include "base/mem.h"
#include "launch/core/options.h"
#include "loop/clock.h"

#define READ_TIMEOUT_MS 60000u  /* as c10d's read_timeout by default */
#define BARRIER_MS      300000u /* torchrun's, fixed */

/* One exchange under way. It outlives a round that has moved on: then its answers are
 * dropped, and it frees itself with the last one. */
struct exchange {
    struct agent *agent;
    unsigned generation;
    int64_t rank, world;
    unsigned pending; /* calls whose callback is yet to come */
    bool over;
};

static uint64_t timeout_ms(const struct agent *a)
{
    const bool is_static = strcmp(a->config->rdzv.backend, "static") == 0;
    int64_t seconds = is_static ? 900 : READ_TIMEOUT_MS / 1000;
    struct muster_error ignored;

    params_int(&a->config->rdzv, is_static ? "timeout" : "read_timeout", seconds,
               &seconds, &ignored);
    return seconds > 0 ? ms_of_seconds(seconds) : READ_TIMEOUT_MS;
}

static struct exchange *exchange_new(struct agent *a)
{
    struct exchange *x = mem_calloc(1, sizeof *x);
    if (!x) {
        struct muster_error err;
        err_nomem(&err);
        agent_fail(a, &err);
        return NULL;
    }
    *x = (struct exchange){ a, a->generation, a->round.rank, a->round.world_size,
                            0, false };
    return x;
}

/* Every callback begins with this: true if its answer still matters. */
static bool answer_counts(struct exchange *x, int status)
{
    x->pending--;
    if (status == MUSTER_ECANCELED || x->generation != x->agent->generation)
        x->over = true;
    return !x->over;
}

/* Every callback ends with this. */
static void answer_done(struct exchange *x, bool pump)
{
    struct agent *a = x->agent;

    if (x->pending == 0)
        mem_free(x);
    if (pump)
        agent_pump(a);
}

/* The barrier is given up rather than failed: the work is done. */
static void give_up(struct exchange *x, const struct muster_error *err)
{
    x->over = true;
    agent_fail(x->agent, err);
}

static void came(struct agent *a, enum agent_core_event_kind what)
{
    agent_wait_end(a, true);
    agent_post(a, what, 0, 0);
}

/* --- ranks ------------------------------------------------------------------------ */

static struct span key_of(char *to, size_t size, const char *prefix, int64_t rank)
{
    snprintf(to, size, "%s%" PRId64, prefix, rank);
    return span_str(to);
}

static void on_own_range(void *ctx, int status, const struct c10d_reply *reply,
                         const struct muster_error *err)
{
    struct exchange *x = ctx;
    struct muster_error why;

    if (answer_counts(x, status)) {
        x->over = true;
        if (status != 0)
            agent_fail(x->agent, err);
        else if (rank_range_parse(&x->agent->range, reply->value, &why) != 0)
            agent_fail(x->agent, &why);
        else
            came(x->agent, GROUP_EV_ASSIGNED);
    }
    answer_done(x, true);
}

static void on_written(void *ctx, int status, const struct c10d_reply *reply,
                       const struct muster_error *err)
{
    struct exchange *x = ctx;

    (void)reply;
    if (answer_counts(x, status) && status != 0)
        give_up(x, err);
    answer_done(x, true);
}

static int publish(struct exchange *x, const struct rank_range *ranges,
                   struct muster_error *err)
{
    const size_t count = (size_t)x->world;
    struct span *keys = mem_calloc(count, 2 * sizeof *keys);
    struct span *values = keys ? keys + count : NULL;
    struct buf text;
    int rc = keys ? 0 : err_nomem(err);

    buf_init(&text, SIZE_MAX);
    /* Spans into a growing buffer: first lengths, then addresses. */
    for (size_t i = 0; rc == 0 && i < count; i++) {
        const size_t before = buf_len(&text);
        rc = buf_printf(&text, "%s%zu", RANKS_ASSIGNED_KEY, i);
        keys[i].n = buf_len(&text) - before;
        if (rc == 0)
            rc = rank_range_print(&text, &ranges[i]);
        values[i].n = buf_len(&text) - before - keys[i].n;
        if (rc != 0)
            err_nomem(err);
    }
    const uint8_t *at = buf_data(&text);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        keys[i].p = at;
        values[i].p = at + keys[i].n;
        at += keys[i].n + values[i].n;
    }
    if (rc == 0)
        rc = async_store_multi_set(x->agent->round.store, keys, values, count,
                                   timeout_ms(x->agent), on_written, x, err);
    buf_fini(&text);
    mem_free(keys);
    return rc;
}

static int assign_all(struct exchange *x, const struct c10d_reply *reply,
                      struct muster_error *err)
{
    const size_t count = (size_t)x->world;
    struct role_info *infos = mem_calloc(count, sizeof *infos);
    struct rank_range *ranges = mem_calloc(count, sizeof *ranges);
    int rc = infos && ranges ? 0 : err_nomem(err);

    struct c10d_list list = reply->list;
    struct span text;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        if (c10d_list_next(&list, &text))
            rc = role_info_parse(&infos[i], text, err);
        else
            rc = err_set(err, MUSTER_EPROTO, "only %zu of %zu role_info keys came", i,
                         count);
    }
    if (rc == 0)
        rc = ranks_assign(infos, count, ranges, err);
    if (rc == 0)
        rc = publish(x, ranges, err);
    for (size_t i = 0; infos && i < count; i++)
        role_info_fini(&infos[i]);
    mem_free(infos);
    mem_free(ranges);
    return rc;
}

static int get_own(struct exchange *x, struct muster_error *err)
{
    char key[96];

    const int rc = async_store_get(x->agent->round.store,
                                   key_of(key, sizeof key, RANKS_ASSIGNED_KEY, x->rank),
                                   timeout_ms(x->agent), on_own_range, x, err);
    if (rc == 0)
        x->pending++;
    return rc;
}

/* Rank 0 knows them all now: it decides, tells, and then reads its own as the others.
 */
static void on_infos(void *ctx, int status, const struct c10d_reply *reply,
                     const struct muster_error *err)
{
    struct exchange *x = ctx;
    struct muster_error why;

    if (answer_counts(x, status)) {
        if (status != 0) {
            give_up(x, err);
        } else if (assign_all(x, reply, &why) != 0) {
            give_up(x, &why);
        } else {
            x->pending++; /* of the MULTI_SET */
            if (get_own(x, &why) != 0)
                give_up(x, &why);
        }
    }
    answer_done(x, true);
}

static int ask_all(struct exchange *x, struct muster_error *err)
{
    const size_t count = (size_t)x->world;
    const size_t each = sizeof RANKS_ROLE_KEY + 20;
    struct span *keys = mem_calloc(count, sizeof *keys + each);
    char *text = (char *)(keys + count);
    if (!keys)
        return err_nomem(err);
    for (size_t i = 0; i < count; i++)
        keys[i] = key_of(text + i * each, each, RANKS_ROLE_KEY, (int64_t)i);
    const int rc = async_store_multi_get(x->agent->round.store, keys, count,
                                         timeout_ms(x->agent), on_infos, x, err);
    if (rc == 0)
        x->pending++;
    mem_free(keys);
    return rc;
}

static int tell_own(struct exchange *x, struct muster_error *err)
{
    struct agent *a = x->agent;
    char key[96];
    struct buf text;

    buf_init(&text, SIZE_MAX);
    int rc = role_info_print(&text, a->config->role, x->rank, a->config->nproc);
    if (rc != 0)
        err_nomem(err);
    else
        rc = async_store_set(a->round.store,
                             key_of(key, sizeof key, RANKS_ROLE_KEY, x->rank),
                             buf_span(&text), timeout_ms(a), on_written, x, err);
    if (rc == 0)
        x->pending++;
    buf_fini(&text);
    return rc;
}

void agent_assign(struct agent *a)
{
    const char *identical = env_get(a->opts.envp, "TORCH_ELASTIC_WORKER_IDENTICAL");
    struct muster_error err;

    if (a->round.world_size == 1 || (identical && strcmp(identical, "1") == 0)) {
        a->range =
            ranks_identical(a->round.rank, a->round.world_size, a->config->nproc);
        agent_post(a, GROUP_EV_ASSIGNED, 0, 0);
        return;
    }
    struct exchange *x = exchange_new(a);
    if (!x)
        return;
    agent_wait_begin(a, x->rank == 0 ? WAITING_FOR_NODES : WAITING_FOR_RANKS,
                     clock_mono_ms() + timeout_ms(a));
    int rc = tell_own(x, &err);
    if (rc == 0)
        rc = x->rank == 0 ? ask_all(x, &err) : get_own(x, &err);
    if (rc != 0) {
        give_up(x, &err);
        if (x->pending == 0)
            mem_free(x);
    }
}

/* --- the barrier ------------------------------------------------------------------ */

static void on_barrier(void *ctx, int status, const struct c10d_reply *reply,
                       const struct muster_error *err)
{
    struct exchange *x = ctx;

    (void)reply;
    if (answer_counts(x, status)) {
        x->over = true;
        if (status != 0)
            agent_fail(x->agent, err);
        else
            came(x->agent, GROUP_EV_BARRIER_DONE);
    }
    answer_done(x, true);
}

/* Whoever is the last opens the gate for all. */
static void on_counted(void *ctx, int status, const struct c10d_reply *reply,
                       const struct muster_error *err)
{
    struct exchange *x = ctx;
    struct async_store *store = x->agent->round.store;
    const struct span key = span_str(RANKS_LAST_KEY);
    struct muster_error why;

    if (!answer_counts(x, status)) {
        answer_done(x, false);
        return;
    }
    int rc = status;
    if (rc != 0)
        why = *err;
    if (rc == 0 && reply->number == x->world) {
        rc = async_store_set(store, key, span_str(RANKS_LAST_VALUE), BARRIER_MS,
                             on_written, x, &why);
        x->pending += rc == 0;
    }
    if (rc == 0) {
        rc = async_store_wait(store, &key, 1, BARRIER_MS, on_barrier, x, &why);
        x->pending += rc == 0;
    }
    if (rc != 0)
        give_up(x, &why);
    answer_done(x, true);
}

void agent_barrier(struct agent *a)
{
    struct muster_error err;

    if (a->round.world_size == 1) {
        agent_post(a, GROUP_EV_BARRIER_DONE, 0, 0);
        return;
    }
    struct exchange *x = exchange_new(a);
    if (!x)
        return;
    agent_wait_begin(a, WAITING_FOR_END, clock_mono_ms() + BARRIER_MS);
    const int rc = async_store_add(a->round.store, span_str(RANKS_MEMBERS_KEY), 1,
                                   BARRIER_MS, on_counted, x, &err);
    if (rc != 0) {
        agent_fail(a, &err);
        mem_free(x);
        return;
    }
    x->pending++;
}
