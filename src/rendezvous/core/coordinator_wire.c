/* coordinator_wire.c - encodes and decodes the messages of coordinator_wire.h.
 *
 * One table says which fields a kind has and in which order; base/field.h says how they
 * look on the wire. */
#include "rendezvous/core/coordinator_wire.h"

#include "base/err.h"
#include "base/field.h"
#include "rendezvous/core/state.h"

enum {
    END,
    RUN_ID,
    ADDR,
    PID,
    LOCAL_ID,
    NONCE,
    SETTINGS,
    ORDER,
    ORDER_KEY,
    GRACE,
    ROUND,
    RANK,
    WORLD,
    COUNT,
    CODE,
    TEXT,
};

static const struct field fields[] = {
#define NUMBER(id, member)  [id] = FIELD_NUMBER(coord_msg, member)
#define TEXT_OF(id, member) [id] = FIELD_TEXT(coord_msg, member, COORD_MAX)
/* -1 stands for "none yet", and in a count for COORD_ALL_READ. */
#define RANGED(id, member, high) [id] = FIELD_RANGED(coord_msg, member, -1, high)
    TEXT_OF(RUN_ID, run_id),
    TEXT_OF(ADDR, addr),
    NUMBER(PID, pid),
    NUMBER(LOCAL_ID, local_id),
    NUMBER(NONCE, nonce),
    TEXT_OF(SETTINGS, settings),
    NUMBER(ORDER, order),
    NUMBER(ORDER_KEY, rank_order_key),
    NUMBER(GRACE, grace_ms),
    RANGED(ROUND, round, RDZV_MAX_ROUND),
    RANGED(RANK, rank, INT32_MAX),
    RANGED(WORLD, world, INT32_MAX),
    RANGED(COUNT, count, COORD_MEMBER_WAITS),
    NUMBER(CODE, code),
    TEXT_OF(TEXT, text),
#undef RANGED
#undef NUMBER
#undef TEXT_OF
};

static const uint8_t layout[COORD_KIND_COUNT][16] = {
    [COORD_HELLO] = { RUN_ID, ADDR, PID, LOCAL_ID, NONCE, SETTINGS, ORDER, ORDER_KEY,
                      GRACE, ROUND, RANK, WORLD },
    [COORD_JOIN] = { COUNT },
    [COORD_JOINED] = { ROUND, RANK, WORLD, ADDR, PID, LOCAL_ID, COUNT },
    [COORD_REFUSED] = { CODE, TEXT },
    [COORD_WAITING] = { COUNT },
    [COORD_GATHERED] = { COUNT, GRACE, TEXT, ADDR },
    [COORD_SPARE] = { COUNT },
    [COORD_LOST] = { TEXT },
    [COORD_EVICTED] = { TEXT },
};

static const char *const names[] = {
#define COORD_NAME(name) [COORD_##name] = #name,
    COORD_KINDS(COORD_NAME)
#undef COORD_NAME
};

const char *coord_kind_name(enum coord_kind kind)
{
    return kind < COORD_KIND_COUNT ? names[kind] : "?";
}

int coord_encode(struct buf *out, const struct coord_msg *m)
{
    const size_t before = buf_len(out);
    int rc = buf_u8(out, (uint8_t)COORD_VERSION);

    if (rc == 0)
        rc = buf_u8(out, (uint8_t)m->kind);
    for (const uint8_t *f = layout[m->kind]; rc == 0 && *f != END; f++)
        rc = field_put(out, &fields[*f], m);
    if (rc < 0)
        out->len = before; /* Append the whole message or nothing. */
    return rc;
}

int coord_decode(struct span bytes, struct coord_msg *m, struct muster_error *err)
{
    struct span rest = bytes;

    *m = (struct coord_msg){ 0 };
    if (bytes.n < 2 || bytes.n > COORD_MAX)
        return err_set(err, MUSTER_EPROTO,
                       "coordinator message of %zu bytes, expected 2 to %u", bytes.n,
                       COORD_MAX);
    if (bytes.p[0] != COORD_VERSION)
        return err_set(
            err, MUSTER_EPROTO,
            "coordinator message of version %u, this muster speaks version %u: use "
            "the same release on all nodes, or rdzv-conf hosted=0",
            bytes.p[0], COORD_VERSION);
    if (bytes.p[1] >= COORD_KIND_COUNT)
        return err_set(err, MUSTER_EPROTO, "coordinator message of unknown kind %u",
                       bytes.p[1]);
    m->kind = (enum coord_kind)bytes.p[1];
    rest.p += 2;
    rest.n -= 2;
    for (const uint8_t *f = layout[m->kind]; *f != END; f++) {
        const int rc = field_get(&rest, &fields[*f], m, coord_kind_name(m->kind), err);

        if (rc < 0)
            return rc;
    }
    if (rest.n)
        return err_set(err, MUSTER_EPROTO, "%s message with %zu bytes too many",
                       coord_kind_name(m->kind), rest.n);
    if (m->kind == COORD_HELLO && (unsigned)m->order >= COORD_ORDERS)
        return err_set(err, MUSTER_EPROTO, "HELLO message with unknown order %u",
                       (unsigned)m->order);
    return 0;
}
