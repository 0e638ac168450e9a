/* job_wire.c - see job_wire.h. One table says which fields a kind has and in which
 * order; base/field.h says how each is encoded. */
#include "job/core/job_wire.h"

#include "base/err.h"
#include "base/field.h"

enum {
    END,
    SEQ,
    NONCE,
    VALUE,
    NODE,
    FLAGS,
    MONO,
    WALL,
    PID,
    NPROC,
    ROUND,
    RANK,
    COUNT,
    TOTAL,
    RUN_ID,
    HOST,
    ADDR,
    NAME,
    BYTES,
};

static const struct field fields[] = {
#define NUMBER(id, member)            [id] = FIELD_NUMBER(job_msg, member)
#define TEXT_OF(id, member)           [id] = FIELD_TEXT(job_msg, member, JOB_MAX)
#define RANGED(id, member, low, high) [id] = FIELD_RANGED(job_msg, member, low, high)
    NUMBER(SEQ, seq),
    NUMBER(NONCE, nonce),
    NUMBER(VALUE, value),
    RANGED(NODE, node, 0, JOB_NODE_MAX),
    NUMBER(FLAGS, flags),
    RANGED(MONO, mono_us, -JOB_CLOCK_MAX, JOB_CLOCK_MAX),
    RANGED(WALL, wall_us, -JOB_CLOCK_MAX, JOB_CLOCK_MAX),
    NUMBER(PID, pid),
    RANGED(NPROC, nproc, -1, JOB_RANKS_MAX),
    RANGED(ROUND, round, -1, JOB_ROUND_MAX),
    RANGED(RANK, rank, -1, JOB_RANKS_MAX),
    RANGED(COUNT, count, -1, JOB_RANKS_MAX),
    RANGED(TOTAL, total, -1, INT64_MAX),
    TEXT_OF(RUN_ID, run_id),
    TEXT_OF(HOST, host),
    TEXT_OF(ADDR, addr),
    TEXT_OF(NAME, name),
    TEXT_OF(BYTES, bytes),
#undef RANGED
#undef NUMBER
#undef TEXT_OF
};

static const uint8_t layout[JOB_KIND_COUNT][16] = {
    [JOB_ATTACH] = { RUN_ID, HOST, ADDR, PID, NPROC, NONCE, VALUE, NODE, FLAGS, TOTAL },
    [JOB_PUBLISH] = { SEQ, MONO, WALL, BYTES },
    [JOB_OFFER] = { BYTES },
    [JOB_RANKS] = { ROUND, RANK, COUNT, TOTAL, FLAGS },
    [JOB_PHASE] = { ROUND, NAME, VALUE, RANK },
    [JOB_REPORTED] = { ROUND, RANK, COUNT, TOTAL, BYTES },
    [JOB_ASK] = { SEQ, VALUE, NAME, BYTES },
    [JOB_ANSWER] = { SEQ, VALUE, BYTES },
    [JOB_PONG] = { SEQ, MONO, WALL },
    [JOB_SYNC] = { SEQ },
    [JOB_ATTACHED] = { NODE, VALUE, FLAGS },
    [JOB_ENTRY] = { SEQ, BYTES },
    [JOB_WANT] = { VALUE },
    [JOB_QUESTION] = { SEQ, VALUE, NAME, BYTES },
    [JOB_ANSWERED] = { SEQ, NODE, VALUE, HOST, BYTES },
    [JOB_ANSWERS_END] = { SEQ },
    [JOB_PING] = { SEQ, MONO },
    [JOB_SYNCED] = { SEQ },
    [JOB_REFUSED] = { BYTES },
    [JOB_LAST] = { SEQ },
    [JOB_SEAT] = { ROUND, RANK },
    [JOB_HOST] = { ROUND, RANK },
    [JOB_MOVED] = { ROUND, MONO, WALL },
};

static const char *const names[] = {
#define JOB_NAME(name) [JOB_##name] = #name,
    JOB_KINDS(JOB_NAME)
#undef JOB_NAME
};

const char *job_kind_name(enum job_kind kind)
{
    return (unsigned)kind < JOB_KIND_COUNT ? names[kind] : "?";
}

int job_encode(struct buf *out, const struct job_msg *m)
{
    const size_t before = buf_len(out);
    int rc = buf_u8(out, (uint8_t)JOB_VERSION);

    if (rc == 0)
        rc = buf_u8(out, (uint8_t)m->kind);
    for (const uint8_t *f = layout[m->kind]; rc == 0 && *f != END; f++)
        rc = field_put(out, &fields[*f], m);
    if (rc == 0 && buf_len(out) - before > JOB_MAX)
        rc = MUSTER_EFULL;
    if (rc < 0)
        out->len = before; /* Append a whole message or nothing. */
    return rc;
}

int job_decode(struct span bytes, struct job_msg *m, struct muster_error *err)
{
    struct span rest = bytes;

    *m = (struct job_msg){ 0 };
    if (bytes.n < 2 || bytes.n > JOB_MAX)
        return err_set(err, MUSTER_EPROTO, "job message of %zu bytes, expected 2 to %u",
                       bytes.n, JOB_MAX);
    if (bytes.p[0] < JOB_VERSION)
        return err_set(err, MUSTER_EPROTO,
                       "job message of version %u, expected %u or later", bytes.p[0],
                       JOB_VERSION);
    if (bytes.p[1] >= JOB_KIND_COUNT)
        return 0; /* A kind of a later version, which stays JOB_NONE. */
    m->kind = (enum job_kind)bytes.p[1];
    rest = span_of(bytes.p + 2, bytes.n - 2);
    for (const uint8_t *f = layout[m->kind]; *f != END; f++) {
        const int rc = field_get(&rest, &fields[*f], m, job_kind_name(m->kind), err);

        if (rc < 0)
            return rc;
    }
    return 0;
}
