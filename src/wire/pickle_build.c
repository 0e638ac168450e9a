/* pickle_build.c - from the items of a pickle to nodes and the state; see pickle.h. */
#include "base/err.h"
#include "base/utf8.h"
#include "wire/pickle_int.h"

/* Which of the names a field is, or count for none. */
static size_t which(const struct unpickler *u, struct pv key, const char *const *names,
                    size_t count)
{
    size_t i = 0;

    if (key.type != PV_STR)
        return count;
    while (i < count && !span_eq(pv_span(u, key), span_str(names[i])))
        i++;
    return i;
}

int unpickle_node(struct unpickler *u, uint32_t box, struct rdzv_node *out)
{
    static const char *const names[] = { "addr", "pid", "local_id" };
    struct pv key, value, field[ARRAY_LEN(names)] = { 0 };
    uint32_t run = 0, at = 0;
    unsigned seen = 0;

    while (box_next(u, box, &run, &at, &key)) {
        const size_t i = which(u, key, names, ARRAY_LEN(names));

        (void)box_next(u, box, &run, &at, &value);
        if (i == ARRAY_LEN(names) || (seen & 1u << i))
            return unpickle_refuse(u,
                                   "a node with a field that is none of addr, pid and "
                                   "local_id, or with one twice");
        seen |= 1u << i;
        field[i] = value;
    }
    if (seen != 7 || field[0].type != PV_STR || field[1].type != PV_INT ||
        field[2].type != PV_INT)
        return unpickle_refuse(u, "a node needs a string addr and integers pid and "
                                  "local_id");
    out->addr = pv_span(u, field[0]);
    out->pid = field[1].num;
    out->local_id = field[2].num;
    if (out->addr.n > RDZV_MAX_ADDR || !utf8_valid(out->addr))
        return unpickle_refuse(
            u, "a node whose addr is no UTF-8 or longer than %u bytes", RDZV_MAX_ADDR);
    return 0;
}

/* X(index, name, type) of the fields, in torch's order. */
#define FIELDS(X)                                                                      \
    X(ROUND, "round", PV_INT)                                                          \
    X(COMPLETE, "complete", PV_BOOL)                                                   \
    X(DEADLINE, "deadline", PV_TIME)                                                   \
    X(CLOSED, "closed", PV_BOOL)                                                       \
    X(PARTICIPANTS, "participants", PV_DICT)                                           \
    X(WAIT_LIST, "wait_list", PV_SET)                                                  \
    X(REDUNDANCY_LIST, "redundancy_list", PV_SET)                                      \
    X(LAST_HEARTBEATS, "last_heartbeats", PV_DICT)

enum field {
#define FIELD_ENUM(name, text, type) F_##name,
    FIELDS(FIELD_ENUM)
#undef FIELD_ENUM
        F_COUNT
};

static const char *const field_names[] = {
#define FIELD_NAME(name, text, type) text,
    FIELDS(FIELD_NAME)
#undef FIELD_NAME
};

static const uint8_t field_types[] = {
#define FIELD_TYPE(name, text, type) type,
    FIELDS(FIELD_TYPE)
#undef FIELD_TYPE
};

static int read_fields(struct unpickler *u, uint32_t box, struct pv *field)
{
    uint32_t run = 0, at = 0;
    unsigned seen = 0;
    struct pv key;

    while (box_next(u, box, &run, &at, &key)) {
        const size_t i = which(u, key, field_names, F_COUNT);

        if (i == F_COUNT && key.type == PV_STR)
            return unpickle_refuse(u,
                                   "a state with a field '%.*s', which torch 2.6 to "
                                   "2.15 do not have",
                                   (int)MIN_OF(key.len, 80),
                                   (const char *)pv_span(u, key).p);
        if (i == F_COUNT || (seen & 1u << i))
            return unpickle_refuse(u, "a state with a field twice, or without a name");
        (void)box_next(u, box, &run, &at, &field[i]);
        seen |= 1u << i;
    }
    for (size_t i = 0; i < F_COUNT; i++) {
        if (!(seen & 1u << i))
            return unpickle_refuse(
                u, "a state without %s%s", field_names[i],
                i == F_REDUNDANCY_LIST ? ": a node of this run uses torch <= 2.2" : "");
        if (field[i].type != field_types[i] &&
            !(i == F_DEADLINE && field[i].type == PV_NONE))
            return unpickle_refuse(u, "%s is of the wrong type", field_names[i]);
    }
    if (field[F_ROUND].num < 0 || field[F_ROUND].num > INT64_MAX / 2)
        return unpickle_refuse(u, "round %lld", (long long)field[F_ROUND].num);
    return 0;
}

/* Puts the nodes of one map or set into their list. */
static int read_list(struct unpickler *u, struct pv field, enum rdzv_list list,
                     struct rdzv_state *s)
{
    const struct pv_object *objects = u->objects.at;
    const enum pv_type want = list == RDZV_PLACES ? PV_INT : PV_TIME;
    const bool pairs = field.type == PV_DICT;
    uint32_t run = 0, at = 0;
    struct pv key, value = { 0 };

    while (box_next(u, (uint32_t)field.num, &run, &at, &key)) {
        struct rdzv_member *m;

        if (pairs)
            (void)box_next(u, (uint32_t)field.num, &run, &at, &value);
        if (key.type != PV_OBJECT || (pairs && value.type != want))
            return unpickle_refuse(u, "%s for a node that is of the wrong type",
                                   list == RDZV_PLACES ? "a rank" : "a heartbeat");
        m = rdzv_state_put(s, &objects[key.num].node, list);
        if (!m)
            return err_nomem(u->err);
        if (list == RDZV_PLACES)
            m->rank = value.num;
        if (list == RDZV_BEATS) {
            m->beat_us = value.num;
            m->beat_at = value.len;
        }
    }
    return 0;
}

int unpickle_state(struct unpickler *u, uint32_t box, struct rdzv_state *out)
{
    static const uint8_t from[] = {
        [RDZV_PLACES] = F_PARTICIPANTS,
        [RDZV_WAITS] = F_WAIT_LIST,
        [RDZV_SPARES] = F_REDUNDANCY_LIST,
        [RDZV_BEATS] = F_LAST_HEARTBEATS,
    };
    struct pv field[F_COUNT];
    struct rdzv_state s;
    int rc = read_fields(u, box, field);

    if (rc < 0)
        return rc;
    rdzv_state_init(&s);
    s.round = field[F_ROUND].num;
    s.complete = field[F_COMPLETE].num;
    s.closed = field[F_CLOSED].num;
    if (field[F_DEADLINE].type == PV_TIME) {
        s.deadline_us = field[F_DEADLINE].num;
        s.deadline_at = field[F_DEADLINE].len;
    }
    for (unsigned list = 0; list < RDZV_LISTS && rc == 0; list++)
        rc = read_list(u, field[from[list]], (enum rdzv_list)list, &s);
    if (rc < 0) {
        rdzv_state_fini(&s);
        return rc;
    }
    *out = s;
    return 0;
}
