/* coordinator_wire.c - the host's and its nodes' messages as bytes; see
 * coordinator_wire.h.
 *
 * One table says which fields a kind has and in which order, and both directions walk
 * it: there is nothing to keep in step by hand. Numbers are little-endian, texts have a
 * u32 length. */
#include "rendezvous/core/coordinator_wire.h"

#include <stddef.h>

#include "base/err.h"

enum field {
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

enum type { T_I64, T_I32, T_SPAN };

static const struct {
    const char *name;
    enum type type;
    size_t at;
} fields[] = {
#define FIELD(id, type, member)                                                        \
    [id] = { #member, type, offsetof(struct coord_msg, member) }
    FIELD(RUN_ID, T_SPAN, run_id), FIELD(ADDR, T_SPAN, addr),
    FIELD(PID, T_I64, pid),        FIELD(LOCAL_ID, T_I64, local_id),
    FIELD(NONCE, T_I64, nonce),    FIELD(SETTINGS, T_SPAN, settings),
    FIELD(ORDER, T_I32, order),    FIELD(ORDER_KEY, T_I64, rank_order_key),
    FIELD(GRACE, T_I64, grace_ms), FIELD(ROUND, T_I64, round),
    FIELD(RANK, T_I64, rank),      FIELD(WORLD, T_I64, world),
    FIELD(COUNT, T_I64, count),    FIELD(CODE, T_I32, code),
    FIELD(TEXT, T_SPAN, text),
#undef FIELD
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

static int put_field(struct buf *out, const struct coord_msg *m, enum field f)
{
    const char *at = (const char *)m + fields[f].at;
    struct span text;
    uint64_t u64;
    uint32_t u32;
    int rc;

    switch (fields[f].type) {
    case T_I64:
        memcpy(&u64, at, sizeof u64);
        return buf_u64(out, u64);
    case T_I32:
        memcpy(&u32, at, sizeof u32);
        return buf_u32(out, u32);
    case T_SPAN:
        break;
    }
    memcpy(&text, at, sizeof text);
    rc = buf_u32(out, (uint32_t)text.n);
    return rc ? rc : buf_append_span(out, text);
}

int coord_encode(struct buf *out, const struct coord_msg *m)
{
    const size_t before = buf_len(out);
    int rc = buf_u8(out, (uint8_t)COORD_VERSION);

    if (rc == 0)
        rc = buf_u8(out, (uint8_t)m->kind);
    for (const uint8_t *f = layout[m->kind]; rc == 0 && *f != END; f++)
        rc = put_field(out, m, (enum field) * f);
    if (rc < 0)
        out->len = before; /* All of a message or nothing. */
    return rc;
}

static int get_field(struct span *rest, struct coord_msg *m, enum field f,
                     struct muster_error *err)
{
    char *at = (char *)m + fields[f].at;
    const size_t need = fields[f].type == T_I64 ? 8 : 4;
    struct span text;
    uint64_t u64;
    uint32_t u32;

    if (rest->n < need)
        return err_set(err, MUSTER_EPROTO, "%s message ends before its %s",
                       coord_kind_name(m->kind), fields[f].name);
    u32 = get_u32(rest->p);
    if (fields[f].type == T_I64) {
        u64 = get_u64(rest->p);
        memcpy(at, &u64, sizeof u64);
    } else if (fields[f].type == T_I32) {
        memcpy(at, &u32, sizeof u32);
    }
    rest->p += need;
    rest->n -= need;
    if (fields[f].type != T_SPAN)
        return 0;
    if (u32 > rest->n)
        return err_set(err, MUSTER_EPROTO, "%s message: %s of %u bytes, %zu are there",
                       coord_kind_name(m->kind), fields[f].name, u32, rest->n);
    text = span_of(rest->p, u32);
    memcpy(at, &text, sizeof text);
    rest->p += u32;
    rest->n -= u32;
    return 0;
}

int coord_decode(struct span bytes, struct coord_msg *m, struct muster_error *err)
{
    struct span rest = bytes;

    *m = (struct coord_msg){ 0 };
    if (bytes.n < 2 || bytes.n > COORD_MAX)
        return err_set(err, MUSTER_EPROTO,
                       "host message of %zu bytes, expected 2 to %u", bytes.n,
                       COORD_MAX);
    if (bytes.p[0] != COORD_VERSION)
        return err_set(err, MUSTER_EPROTO,
                       "host message of version %u, this muster speaks version %u: use "
                       "the same release on all nodes, or rdzv-conf hosted=0",
                       bytes.p[0], COORD_VERSION);
    if (bytes.p[1] >= COORD_KIND_COUNT)
        return err_set(err, MUSTER_EPROTO, "host message of unknown kind %u",
                       bytes.p[1]);
    m->kind = (enum coord_kind)bytes.p[1];
    rest.p += 2;
    rest.n -= 2;
    for (const uint8_t *f = layout[m->kind]; *f != END; f++) {
        const int rc = get_field(&rest, m, (enum field) * f, err);

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
