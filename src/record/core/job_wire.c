/* job_wire.c - see job_wire.h. One table says which fields a kind has and in which
 * order, and both directions walk it. Numbers are little-endian, texts have a u32
 * length. */
#include "record/core/job_wire.h"

#include "base/err.h"

enum field {
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

enum type { T_U64, T_U32, T_SPAN };

static const struct {
    const char *name;
    enum type type;
    size_t at;
} fields[] = {
#define FIELD(id, type, member)                                                        \
    [id] = { #member, type, offsetof(struct job_msg, member) }
    FIELD(SEQ, T_U64, seq),      FIELD(NONCE, T_U64, nonce),
    FIELD(VALUE, T_U64, value),  FIELD(NODE, T_U32, node),
    FIELD(FLAGS, T_U32, flags),  FIELD(MONO, T_U64, mono_us),
    FIELD(WALL, T_U64, wall_us), FIELD(PID, T_U64, pid),
    FIELD(NPROC, T_U64, nproc),  FIELD(ROUND, T_U64, round),
    FIELD(RANK, T_U64, rank),    FIELD(COUNT, T_U64, count),
    FIELD(TOTAL, T_U64, total),  FIELD(RUN_ID, T_SPAN, run_id),
    FIELD(HOST, T_SPAN, host),   FIELD(ADDR, T_SPAN, addr),
    FIELD(NAME, T_SPAN, name),   FIELD(BYTES, T_SPAN, bytes),
#undef FIELD
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

static int put_field(struct buf *out, const struct job_msg *m, enum field f)
{
    const char *at = (const char *)m + fields[f].at;
    struct span text;
    uint64_t u64;
    uint32_t u32;
    int rc;

    switch (fields[f].type) {
    case T_U64:
        memcpy(&u64, at, sizeof u64);
        return buf_u64(out, u64);
    case T_U32:
        memcpy(&u32, at, sizeof u32);
        return buf_u32(out, u32);
    case T_SPAN:
        break;
    }
    memcpy(&text, at, sizeof text);
    rc = buf_u32(out, (uint32_t)text.n);
    return rc ? rc : buf_append_span(out, text);
}

int job_encode(struct buf *out, const struct job_msg *m)
{
    const size_t before = buf_len(out);
    int rc = buf_u8(out, (uint8_t)JOB_VERSION);

    if (rc == 0)
        rc = buf_u8(out, (uint8_t)m->kind);
    for (const uint8_t *f = layout[m->kind]; rc == 0 && *f != END; f++)
        rc = put_field(out, m, (enum field) * f);
    if (rc == 0 && buf_len(out) - before > JOB_MAX)
        rc = MUSTER_EFULL;
    if (rc < 0)
        out->len = before; /* All of a message or nothing. */
    return rc;
}

static int get_field(struct span *rest, struct job_msg *m, enum field f,
                     struct muster_error *err)
{
    char *at = (char *)m + fields[f].at;
    const size_t need = fields[f].type == T_U64 ? 8 : 4;
    struct span text;
    uint64_t u64;
    uint32_t u32;

    if (rest->n < need)
        return err_set(err, MUSTER_EPROTO, "%s message ends before its %s",
                       job_kind_name(m->kind), fields[f].name);
    u32 = get_u32(rest->p);
    u64 = need == 8 ? get_u64(rest->p) : 0;
    *rest = span_of(rest->p + need, rest->n - need);
    if (fields[f].type == T_U64) {
        memcpy(at, &u64, sizeof u64);
    } else if (fields[f].type == T_U32) {
        memcpy(at, &u32, sizeof u32);
    } else if (u32 > rest->n) {
        return err_set(err, MUSTER_EPROTO, "%s message: %s of %u bytes, %zu are there",
                       job_kind_name(m->kind), fields[f].name, u32, rest->n);
    } else {
        text = span_of(rest->p, u32);
        memcpy(at, &text, sizeof text);
        *rest = span_of(rest->p + u32, rest->n - u32);
    }
    return 0;
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
                       "job message of version %u, the first one is %u", bytes.p[0],
                       JOB_VERSION);
    if (bytes.p[1] >= JOB_KIND_COUNT)
        return 0; /* Of a later version: to be ignored. */
    m->kind = (enum job_kind)bytes.p[1];
    rest = span_of(bytes.p + 2, bytes.n - 2);
    for (const uint8_t *f = layout[m->kind]; *f != END; f++) {
        const int rc = get_field(&rest, m, (enum field) * f, err);

        if (rc < 0)
            return rc;
    }
    return 0;
}
