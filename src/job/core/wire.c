/* wire.c - see wire.h. One table says which fields a kind has and in which order;
 * base/field.h says how each is encoded. */
#include "job/core/wire.h"

#include "base/err.h"
#include "base/field.h"

enum {
    END,
    FLAGS,
    WHAT,
    SEQ,
    NONCE,
    VALUE,
    NODE,
    MONO,
    WALL,
    PID,
    LOCAL_ID,
    NPROC,
    ORDER,
    ORDER_KEY,
    GRACE,
    ROUND,
    RANK,
    WORLD,
    COUNT,
    WORKERS, /* a count of them */
    TOTAL,
    SEAT_ROUND,
    SEAT,
    CODE,
    BASE_RANK,
    ALL_RANKS,
    BASE_ROLE_RANK,
    ALL_ROLE_RANKS,
    RUN_ID,
    HOST,
    WHERE,
    PORT,
    ADDR,
    SETTINGS,
    POLICY,
    NAME,
    TEXT,
    BYTES,
};

static const struct field fields[] = {
#define NUMBER(id, member)            [id] = FIELD_NUMBER(run_msg, member)
#define TEXT_OF(id, member)           [id] = FIELD_TEXT(run_msg, member, WIRE_MAX)
#define RANGED(id, member, low, high) [id] = FIELD_RANGED(run_msg, member, low, high)
    NUMBER(FLAGS, flags),
    NUMBER(WHAT, what),
    NUMBER(SEQ, seq),
    NUMBER(NONCE, nonce),
    NUMBER(VALUE, value),
    RANGED(NODE, node, 0, WIRE_NODE_MAX),
    RANGED(MONO, mono_us, -WIRE_CLOCK_MAX, WIRE_CLOCK_MAX),
    RANGED(WALL, wall_us, -WIRE_CLOCK_MAX, WIRE_CLOCK_MAX),
    NUMBER(PID, pid),
    NUMBER(LOCAL_ID, local_id),
    RANGED(NPROC, nproc, -1, WIRE_RANKS_MAX),
    NUMBER(ORDER, order),
    NUMBER(ORDER_KEY, rank_order_key),
    NUMBER(GRACE, grace_ms),
    RANGED(ROUND, round, -1, WIRE_ROUND_MAX),
    RANGED(RANK, rank, -1, WIRE_RANKS_MAX),
    RANGED(WORLD, world, -1, WIRE_RANKS_MAX),
    RANGED(COUNT, count, -1, INT64_MAX),
    RANGED(WORKERS, count, -1, WIRE_RANKS_MAX),
    RANGED(TOTAL, total, -1, INT64_MAX),
    RANGED(SEAT_ROUND, seat_round, -1, WIRE_ROUND_MAX),
    RANGED(SEAT, seat, -1, WIRE_RANKS_MAX),
    NUMBER(CODE, code),
    RANGED(BASE_RANK, ranks.base_rank, 0, INT64_MAX),
    RANGED(ALL_RANKS, ranks.world_size, 0, INT64_MAX),
    RANGED(BASE_ROLE_RANK, ranks.base_role_rank, 0, INT64_MAX),
    RANGED(ALL_ROLE_RANKS, ranks.role_world_size, 0, INT64_MAX),
    TEXT_OF(RUN_ID, run_id),
    TEXT_OF(HOST, host),
    TEXT_OF(WHERE, where),
    RANGED(PORT, port, 0, UINT16_MAX),
    TEXT_OF(ADDR, addr),
    TEXT_OF(SETTINGS, settings),
    TEXT_OF(POLICY, policy),
    TEXT_OF(NAME, name),
    TEXT_OF(TEXT, text),
    TEXT_OF(BYTES, bytes),
#undef RANGED
#undef NUMBER
#undef TEXT_OF
};

static const uint8_t layout[MSG_KIND_COUNT][24] = {
    [MSG_HELLO] = { RUN_ID,    FLAGS, NONCE, HOST, WHERE,    PID,      NPROC,
                    VALUE,     NODE,  TOTAL, ADDR, LOCAL_ID, SETTINGS, ORDER,
                    ORDER_KEY, GRACE, ROUND, RANK, WORLD,    NAME,     POLICY },
    [MSG_JOIN] = { COUNT, ROUND },
    [MSG_BEAT] = { SEQ, MONO, WALL },
    [MSG_PUBLISH] = { SEQ, MONO, WALL, BYTES },
    [MSG_OFFER] = { BYTES },
    [MSG_RANKS] = { ROUND, RANK, WORKERS, TOTAL, FLAGS, SEAT_ROUND, SEAT },
    [MSG_PHASE] = { ROUND, NAME, VALUE, RANK },
    [MSG_REPORTED] = { ROUND, WORKERS, TOTAL, BYTES, FLAGS },
    [MSG_MOVED] = { ROUND, MONO, WALL },
    [MSG_ASK] = { SEQ, VALUE, NAME, BYTES },
    [MSG_ANSWER] = { SEQ, FLAGS, BYTES },
    [MSG_SYNC] = { SEQ, FLAGS },
    [MSG_WELCOME] = { NODE, VALUE, FLAGS },
    [MSG_JOINED] = { ROUND, RANK, WORLD, ADDR, PID, LOCAL_ID, COUNT, BASE_RANK,
                     ALL_RANKS, BASE_ROLE_RANK, ALL_ROLE_RANKS, WHERE, PORT },
    [MSG_GATHERED] = { COUNT, GRACE, TEXT, ADDR },
    [MSG_REFUSED] = { CODE, TEXT },
    [MSG_NEWS] = { WHAT, COUNT, TEXT, ROUND, RANK },
    [MSG_ENTRY] = { SEQ, BYTES },
    [MSG_WANT] = { VALUE },
    [MSG_QUESTION] = { SEQ, VALUE, NAME, BYTES },
    [MSG_ANSWERED] = { SEQ, FLAGS, NODE, HOST, BYTES },
    [MSG_PING] = { SEQ, MONO },
    [MSG_SYNCED] = { SEQ },
    [MSG_STORE] = { ROUND, WHERE, PORT },
};

static const char *const names[] = {
#define MSG_NAME(name) [MSG_##name] = #name,
    MSG_KINDS(MSG_NAME)
#undef MSG_NAME
};

const char *msg_kind_name(enum msg_kind kind)
{
    return (unsigned)kind < MSG_KIND_COUNT ? names[kind] : "?";
}

int msg_encode(struct buf *out, const struct run_msg *m)
{
    const size_t before = buf_len(out);
    int rc = buf_u8(out, (uint8_t)WIRE_VERSION);

    if (rc == 0)
        rc = buf_u8(out, (uint8_t)m->kind);
    for (const uint8_t *f = layout[m->kind]; rc == 0 && *f != END; f++)
        rc = field_put(out, &fields[*f], m);
    if (rc == 0 && buf_len(out) - before > WIRE_MAX)
        rc = MUSTER_EFULL;
    if (rc < 0)
        out->len = before; /* Append a whole message or nothing. */
    return rc;
}

int msg_decode(struct span bytes, struct run_msg *m, struct muster_error *err)
{
    struct span rest = bytes;

    *m = (struct run_msg){ 0 };
    if (bytes.n < 2 || bytes.n > WIRE_MAX)
        return err_set(err, MUSTER_EPROTO, "a message of %zu bytes, expected 2 to %u",
                       bytes.n, WIRE_MAX);
    if (bytes.p[0] < WIRE_VERSION)
        return err_set(err, MUSTER_EPROTO,
                       "a message of version %u, and this muster speaks version %u: "
                       "use the same release on all nodes",
                       bytes.p[0], WIRE_VERSION);
    if (bytes.p[1] >= MSG_KIND_COUNT)
        return 0; /* A kind of a later version, which stays MSG_NONE. */
    m->kind = (enum msg_kind)bytes.p[1];
    rest = span_of(bytes.p + 2, bytes.n - 2);
    for (const uint8_t *f = layout[m->kind]; *f != END; f++) {
        const int rc = field_get(&rest, &fields[*f], m, msg_kind_name(m->kind), err);

        if (rc < 0)
            return rc;
    }
    if (m->kind == MSG_HELLO && (unsigned)m->order >= WIRE_ORDERS)
        return err_set(err, MUSTER_EPROTO, "HELLO message with unknown order %u",
                       (unsigned)m->order);
    return 0;
}
