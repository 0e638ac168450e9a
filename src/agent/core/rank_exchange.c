/* ranks.c - see ranks.h. */
#include "agent/core/rank_exchange.h"

#include <inttypes.h>
#include <jansson.h>

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
    json_t *root = NULL; /* stays so if it is no JSON; then nothing is in it */
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
    return (struct rank_range){ base, world, base, world };
}
