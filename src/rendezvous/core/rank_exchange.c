/* rank_exchange.c - see rank_exchange.h: the texts, the assignment, the exchange, and
 * the exit barrier. */
#include "rendezvous/core/rank_exchange.h"

#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/py/json.h"

#define WORKERS_MAX (INT64_C(1) << 40) /* Sums of hostile numbers stay in range. */

int role_info_print(struct buf *out, const char *role, int64_t rank,
                    int64_t local_world_size)
{
    int rc = buf_append_str(out, "{\"role\": ");
    if (rc == 0)
        rc = json_text(out, role);
    if (rc == 0)
        rc = buf_printf(out,
                        ", \"rank\": %" PRId64 ", \"local_world_size\": %" PRId64 "}",
                        rank, local_world_size);
    return rc;
}

static int shown(struct span text)
{
    return (int)MIN_OF(text.n, 200);
}

/* What to do about keys that no agent can have written. */
#define FOREIGN                                                                        \
    "Does something else use this store under the same run id? Give the job an id "    \
    "(--rdzv-id) or a port of its own."

int role_info_parse(struct role_info *r, struct span text, struct muster_error *err)
{
    json_t *root = NULL; /* stays so if it is not JSON; then nothing is in it */
    int rc = json_from_python(&root, text, NULL);
    const char *role = json_string_value(json_object_get(root, "role"));
    json_t *rank = json_object_get(root, "rank");
    json_t *size = json_object_get(root, "local_world_size");

    if (rc == MUSTER_ENOMEM)
        return err_nomem(err);
    if (!role || !json_is_integer(rank) || !json_is_integer(size) ||
        json_integer_value(size) < 1 || json_integer_value(size) > 1 << 24) {
        rc = err_set(
            err, MUSTER_EPROTO,
            "role_info of another node is not what an agent writes: %.*s\n" FOREIGN,
            shown(text), (const char *)text.p);
    } else {
        char *copy = mem_strdup(role);
        if (copy)
            *r = (struct role_info){ copy, json_integer_value(rank),
                                     json_integer_value(size) };
        else
            rc = err_nomem(err);
    }
    json_decref(root);
    return rc;
}

void role_info_fini(struct role_info *r)
{
    mem_free(r->role);
    r->role = NULL;
}

int rank_range_print(struct buf *out, const struct rank_range *r)
{
    return buf_printf(out, "[%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "]",
                      r->base_rank, r->world_size, r->base_role_rank,
                      r->role_world_size);
}

int rank_range_parse(struct rank_range *r, struct span text, struct muster_error *err)
{
    json_t *root = json_loadb((const char *)text.p, text.n, 0, NULL);
    int64_t v[4] = { 0 };
    bool good = json_is_array(root) && json_array_size(root) == 4;

    for (size_t i = 0; good && i < 4; i++) {
        v[i] = json_integer_value(json_array_get(root, i));
        good =
            json_is_integer(json_array_get(root, i)) && v[i] >= 0 && v[i] < WORKERS_MAX;
    }
    json_decref(root);
    good = good && v[0] < v[1] && v[2] < v[3] && v[3] <= v[1];
    if (!good)
        return err_set(
            err, MUSTER_EPROTO,
            "assigned_ranks of this node is not what an agent writes: %.*s\n" FOREIGN,
            shown(text), (const char *)text.p);
    *r = (struct rank_range){ v[0], v[1], v[2], v[3] };
    return 0;
}

/* How many workers of each role have been met so far. */
struct tally {
    const char *role;
    int64_t workers;
};

static struct tally *tally_of(struct tally *list, size_t *count, const char *role)
{
    for (size_t i = 0; i < *count; i++)
        if (strcmp(list[i].role, role) == 0)
            return &list[i];
    assert(role);
    list[*count] = (struct tally){ role, 0 };
    return &list[(*count)++];
}

int ranks_assign(const struct role_info *infos, size_t count, struct rank_range *out,
                 struct muster_error *err)
{
    struct tally *tallies = mem_calloc(count, sizeof *tallies);
    size_t roles = 0;
    int64_t world = 0;
    int rc = tallies ? 0 : err_nomem(err);

    for (size_t i = 0; rc == 0 && i < count; i++) {
        if (infos[i].rank != (int64_t)i) {
            rc = err_set(err, MUSTER_EPROTO,
                         "role_info of agent %zu says that it is agent %" PRId64, i,
                         infos[i].rank);
            break;
        }
        struct tally *t = tally_of(tallies, &roles, infos[i].role);
        out[i] = (struct rank_range){ world, 0, t->workers, 0 };
        world += infos[i].local_world_size;
        t->workers += infos[i].local_world_size;
    }
    for (size_t i = 0; rc == 0 && i < count; i++) {
        out[i].world_size = world;
        out[i].role_world_size = tally_of(tallies, &roles, infos[i].role)->workers;
    }
    mem_free(tallies);
    return rc;
}

struct rank_range ranks_identical(int64_t agent_rank, int64_t agents, int64_t nproc)
{
    const int64_t base = agent_rank * nproc, world = agents * nproc;
    assert(agent_rank >= 0 && agent_rank < agents && nproc > 0);
    return (struct rank_range){ base, world, base, world };
}

/* ---- the exchange ---- */

static struct rank_exchange *exchange_of(struct store_dialogue *t)
{
    return CONTAINER_OF(t, struct rank_exchange, dialogue);
}

static struct span key_of(struct store_dialogue *t, size_t part, const char *prefix,
                          int64_t rank)
{
    (void)snprintf(t->key[part], DIALOGUE_KEY, "%s%" PRId64, prefix, rank);
    return span_str(t->key[part]);
}

static int add_key(struct buf *list, const char *prefix, size_t rank)
{
    char key[DIALOGUE_KEY];

    (void)snprintf(key, sizeof key, "%s%zu", prefix, rank);
    return c10d_list_add(list, span_str(key));
}

/* Says who we are; and in the same breath rank 0 waits for what all say, the others
 * wait for their ranks. Said again, it changes nothing. */
static int ask_first(struct rank_exchange *x, struct now now, struct dialogue_fx *fx)
{
    struct store_dialogue *t = &x->dialogue;
    struct buf list, value;
    int rc;

    buf_init(&list, SIZE_MAX);
    buf_init(&value, SIZE_MAX);
    rc = role_info_print(&value, x->role, x->rank, x->nproc);
    for (size_t i = 0; x->rank == 0 && i < (size_t)x->world && rc == 0; i++)
        rc = add_key(&list, RANKS_ROLE_KEY, i);
    if (rc < 0) {
        buf_fini(&list);
        buf_fini(&value);
        return MUSTER_ENOMEM;
    }
    x->sharing = false;
    dialogue_ask(t, &list, &value, 2, true, now, fx);
    t->parts[0] = (struct c10d_request){ .op = C10D_SET,
                                         .key = key_of(t, 0, RANKS_ROLE_KEY, x->rank),
                                         .value = buf_span(&t->value) };
    if (x->rank == 0)
        t->parts[1] =
            (struct c10d_request){ .op = C10D_MULTI_GET,
                                   .list = { buf_span(&t->list), (size_t)x->world } };
    else
        t->parts[1] =
            (struct c10d_request){ .op = C10D_GET,
                                   .key = key_of(t, 1, RANKS_ASSIGNED_KEY, x->rank) };
    return 0;
}

static int parse_infos(struct role_info *infos, size_t count,
                       const struct c10d_reply *reply, struct muster_error *err)
{
    struct c10d_list list = reply->list;
    struct span text;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < count; i++) {
        if (c10d_list_next(&list, &text))
            rc = role_info_parse(&infos[i], text, err);
        else
            rc = err_set(err, MUSTER_EPROTO, "only %zu of %zu role_info keys came", i,
                         count);
    }
    return rc;
}

static int print_ranges(struct buf *list, const struct rank_range *ranges, size_t count)
{
    struct buf text;
    int rc = 0;

    buf_init(&text, SIZE_MAX);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        buf_clear(&text);
        rc = rank_range_print(&text, &ranges[i]);
        if (rc == 0)
            rc = add_key(list, RANKS_ASSIGNED_KEY, i);
        if (rc == 0)
            rc = c10d_list_add(list, buf_span(&text));
    }
    buf_fini(&text);
    return rc;
}

static int assign_all(const struct rank_exchange *x, const struct c10d_reply *reply,
                      struct buf *list, struct muster_error *err)
{
    const size_t count = (size_t)x->world;
    struct role_info *infos = mem_calloc(count, sizeof *infos);
    struct rank_range *ranges = mem_calloc(count, sizeof *ranges);
    int rc = infos && ranges ? 0 : MUSTER_ENOMEM;

    if (rc == 0)
        rc = parse_infos(infos, count, reply, err);
    if (rc == 0)
        rc = ranks_assign(infos, count, ranges, err);
    if (rc == 0)
        rc = print_ranges(list, ranges, count);
    for (size_t i = 0; infos && i < count; i++)
        role_info_fini(&infos[i]);
    mem_free(infos);
    mem_free(ranges);
    return rc;
}

/* Rank 0 knows them all now: it decides and tells. It then reads its own as the others
 * do, since a SET is not answered: only so does it know that the store has them. */
static int share(struct rank_exchange *x, const struct dialogue_event *ev,
                 struct dialogue_fx *fx)
{
    struct store_dialogue *t = &x->dialogue;
    struct muster_error err = { 0 };
    struct buf list;
    int rc;

    assert(x->rank == 0 && !x->sharing && ev->reply);
    buf_init(&list, SIZE_MAX);
    rc = assign_all(x, ev->reply, &list, &err);
    if (rc < 0)
        buf_fini(&list);
    if (rc == MUSTER_ENOMEM)
        return rc;
    if (rc < 0)
        return dialogue_fail(fx, rc, "%s", err.text);
    x->sharing = true;
    dialogue_ask(t, &list, NULL, 2, true, ev->now, fx);
    t->parts[0] =
        (struct c10d_request){ .op = C10D_MULTI_SET,
                               .list = { buf_span(&t->list), (size_t)x->world } };
    t->parts[1] =
        (struct c10d_request){ .op = C10D_GET,
                               .key = key_of(t, 1, RANKS_ASSIGNED_KEY, x->rank) };
    return 0;
}

static int exchange_timed_out(const struct rank_exchange *x, struct dialogue_fx *fx)
{
    assert(x->dialogue.by_ms != MONO_NEVER);
    return dialogue_fail(fx, MUSTER_ETIMEDOUT,
                         x->rank == 0
                             ? "agreeing on ranks timed out: not every node of %" PRId64
                               " has told its workers within %" PRIu64 " s"
                             : "agreeing on ranks timed out: rank 0 of %" PRId64
                               " nodes has assigned none within %" PRIu64 " s",
                         x->world, x->timeout_ms / 1000);
}

/* No answer yet: the deadline may have come, or the time to look for the others in
 * another round. */
static bool exchange_over(const struct rank_exchange *x, struct now now,
                          struct dialogue_fx *fx)
{
    const struct store_dialogue *t = &x->dialogue;

    if (now.mono_ms >= t->by_ms) {
        (void)exchange_timed_out(x, fx);
        return true;
    }
    if (!x->can_rejoin || t->broke_ms == MONO_NEVER ||
        now.mono_ms - t->broke_ms < EXCHANGE_PATIENCE_MS)
        return false;
    fx->kind = DIALOGUE_REJOIN;
    return true;
}

static int exchange_answer(struct rank_exchange *x, const struct dialogue_event *ev,
                           struct dialogue_fx *fx)
{
    struct muster_error err;
    int rc;

    assert(x->dialogue.asking);
    if (dialogue_is_broken(ev->status) || ev->status == MUSTER_ETIMEDOUT) {
        if (exchange_over(x, ev->now, fx))
            return 0;
        if (ev->status == MUSTER_ETIMEDOUT)
            return ask_first(x, ev->now, fx);
        dialogue_again(&x->dialogue, ev->now, fx);
        return 0;
    }
    if (ev->status < 0)
        return dialogue_fail(fx, ev->status, "agreeing on ranks: %s", ev->text);
    if (x->rank == 0 && !x->sharing)
        return share(x, ev, fx);
    if (ev->reply->value.n == 0 && x->can_rejoin) {
        fx->kind =
            DIALOGUE_REJOIN; /* The store has forgotten the round: it is long over. */
        return 0;
    }
    rc = rank_range_parse(&x->range, ev->reply->value, &err);
    if (rc < 0)
        return dialogue_fail(fx, rc, "%s", err.text);
    if (x->range.world_size - x->range.base_rank < x->nproc ||
        x->range.role_world_size - x->range.base_role_rank < x->nproc)
        return dialogue_fail(fx, MUSTER_EPROTO,
                             "rank 0 has assigned ranks from %" PRId64 " of %" PRId64
                             " to this node, which has %" PRId64 " workers\n" FOREIGN,
                             x->range.base_rank, x->range.world_size, x->nproc);
    fx->kind = DIALOGUE_DONE;
    return 0;
}

int rank_exchange_step(struct store_dialogue *t, const struct dialogue_event *ev,
                       struct dialogue_fx *fx)
{
    struct rank_exchange *x = exchange_of(t);
    int rc;

    assert(x->world > 1 && x->rank >= 0 && x->rank < x->world);
    switch (ev->kind) {
    case DIALOGUE_BEGIN:
        assert(t->by_ms == MONO_NEVER);
        t->by_ms = ev->now.mono_ms + x->timeout_ms;
        rc = ask_first(x, ev->now, fx);
        if (rc < 0)
            t->by_ms = MONO_NEVER;
        return rc;
    case DIALOGUE_ANSWER:
        return exchange_answer(x, ev, fx);
    case DIALOGUE_TIMER:
        assert(!t->asking);
        return exchange_over(x, ev->now, fx) ? 0 : ask_first(x, ev->now, fx);
    }
    return 0;
}

/* ---- the exit barrier ---- */

static int barrier_ask(struct exit_barrier *b, enum barrier_stage stage, struct now now,
                       struct dialogue_fx *fx)
{
    struct store_dialogue *t = &b->dialogue;
    const struct span last = span_str(RANKS_LAST_KEY);
    const bool wait = stage == BARRIER_OPEN || stage == BARRIER_WAIT;
    const size_t parts = stage == BARRIER_COUNT || stage == BARRIER_OPEN ? 2 : 1;
    struct buf list;
    int rc = 0;

    buf_init(&list, SIZE_MAX);
    if (stage == BARRIER_LOOK)
        rc = add_key(&list, RANKS_COUNTED_KEY, (size_t)b->rank);
    for (size_t i = 0; stage == BARRIER_MARKS && i < (size_t)b->world && rc == 0; i++)
        rc = add_key(&list, RANKS_COUNTED_KEY, i);
    if (wait)
        rc = c10d_list_add(&list, last);
    if (rc < 0) {
        buf_fini(&list);
        return MUSTER_ENOMEM;
    }
    b->stage = stage;
    dialogue_ask(t, &list, NULL, parts, wait, now, fx);
    switch (stage) {
    case BARRIER_COUNT: /* The mark first: without it we have not been counted. */
        t->parts[0] = (struct c10d_request){
            .op = C10D_SET,
            .key = key_of(t, 0, RANKS_COUNTED_KEY, b->rank),
            .value = span_str("1"),
        };
        t->parts[1] = (struct c10d_request){ .op = C10D_ADD,
                                             .key = span_str(RANKS_MEMBERS_KEY),
                                             .number = 1 };
        return 0;
    case BARRIER_LOOK:
    case BARRIER_MARKS:
        t->parts[0] = (struct c10d_request){
            .op = C10D_CHECK,
            .list = { buf_span(&t->list),
                      stage == BARRIER_LOOK ? 1 : (size_t)b->world },
        };
        return 0;
    case BARRIER_RECOUNT:
        t->parts[0] =
            (struct c10d_request){ .op = C10D_ADD, .key = span_str(RANKS_MEMBERS_KEY) };
        return 0;
    case BARRIER_OPEN:
        t->parts[0] = (struct c10d_request){ .op = C10D_SET,
                                             .key = last,
                                             .value = span_str(RANKS_LAST_VALUE) };
        break;
    case BARRIER_WAIT:
        break;
    }
    t->parts[parts - 1] =
        (struct c10d_request){ .op = C10D_WAIT, .list = { buf_span(&t->list), 1 } };
    return 0;
}

/* The store has answered. */
static int barrier_next(struct exit_barrier *b, const struct dialogue_event *ev,
                        struct dialogue_fx *fx)
{
    assert(ev->reply);
    switch (b->stage) {
    case BARRIER_COUNT:
    case BARRIER_RECOUNT:
        return barrier_ask(b,
                           ev->reply->number >= b->world ? BARRIER_OPEN : BARRIER_WAIT,
                           ev->now, fx);
    case BARRIER_LOOK: /* number 0 is "there", in c10d's words */
        return barrier_ask(b, ev->reply->number == 0 ? BARRIER_RECOUNT : BARRIER_COUNT,
                           ev->now, fx);
    case BARRIER_MARKS:
        return barrier_ask(b, ev->reply->number == 0 ? BARRIER_OPEN : BARRIER_WAIT,
                           ev->now, fx);
    case BARRIER_OPEN:
    case BARRIER_WAIT:
        fx->kind = DIALOGUE_DONE;
        return 0;
    }
    return 0;
}

static int barrier_answer(struct exit_barrier *b, const struct dialogue_event *ev,
                          struct dialogue_fx *fx)
{
    int rc;

    assert(b->dialogue.asking);
    if (ev->now.mono_ms >= b->dialogue.by_ms && ev->status < 0)
        return dialogue_fail(fx, MUSTER_ETIMEDOUT,
                             "not all of %" PRId64
                             " nodes came to the exit barrier within "
                             "%u s",
                             b->world, BARRIER_MS / 1000);
    if (dialogue_is_broken(ev->status)) {
        if (b->gives_up && b->dialogue.broke_ms != MONO_NEVER &&
            ev->now.mono_ms - b->dialogue.broke_ms >= BARRIER_AWAY_MS)
            return dialogue_fail(fx, ev->status, "%s", ev->text);
        b->stage = BARRIER_LOOK; /* Whether we were counted is not known. */
        dialogue_again(&b->dialogue, ev->now, fx);
        return 0;
    }
    if (ev->status == MUSTER_ETIMEDOUT)
        /* One whose connection broke between its mark and its count is never counted,
         * so the marks decide. torchrun's nodes leave none: then the count does. */
        return barrier_ask(b, b->rank == 0 ? BARRIER_MARKS : BARRIER_WAIT, ev->now, fx);
    if (ev->status < 0)
        return dialogue_fail(fx, ev->status, "%s", ev->text);
    rc = barrier_next(b, ev, fx);
    if (rc == 0) {
        b->dialogue.broke_ms = MONO_NEVER;
        b->dialogue.failures = 0;
    }
    return rc;
}

int exit_barrier_step(struct store_dialogue *t, const struct dialogue_event *ev,
                      struct dialogue_fx *fx)
{
    struct exit_barrier *b = CONTAINER_OF(t, struct exit_barrier, dialogue);
    int rc;

    assert(b->world > 1 && b->rank >= 0 && b->rank < b->world);
    switch (ev->kind) {
    case DIALOGUE_BEGIN:
        assert(t->by_ms == MONO_NEVER);
        t->by_ms = ev->now.mono_ms + BARRIER_MS;
        rc = barrier_ask(b, BARRIER_COUNT, ev->now, fx);
        if (rc < 0)
            t->by_ms = MONO_NEVER;
        return rc;
    case DIALOGUE_ANSWER:
        return barrier_answer(b, ev, fx);
    case DIALOGUE_TIMER:
        assert(!t->asking);
        if (ev->now.mono_ms >= t->by_ms)
            return dialogue_fail(fx, MUSTER_ETIMEDOUT,
                                 "the store could not be reached");
        return barrier_ask(b, b->stage, ev->now, fx);
    }
    return 0;
}
