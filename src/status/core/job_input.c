/* job_input.c - what a status is built from, as bytes: an agent tells it to `muster
 * status` and `muster top` over its socket; see job_status.h.
 *
 * A format byte, the fields below, then parts with their lengths: what this node says
 * of itself, the entries of the record, the answers of the nodes. */
#include "base/err.h"
#include "base/field.h"
#include "base/mem.h"
#include "status/core/job_status.h"

#define FORMAT 1u
#define WHAT   "a job's status"

/* Times and counts have the bounds of the record's own, so that nothing that is
 * computed from them overflows. */
#define TIME(in, member)  FIELD_RANGED(in, member, -RECORD_CLOCK_MAX, RECORD_CLOCK_MAX)
#define COUNT(in, member) FIELD_RANGED(in, member, -1, RECORD_NUMBER_MAX)

static const struct field number_fields[] = {
    COUNT(job_input, max_restarts),
    COUNT(job_input, nnodes_min),
    COUNT(job_input, nnodes_max),
    TIME(job_input, began_us),
    TIME(job_input, now_us),
    FIELD_NUMBER(job_input, self),
    FIELD_NUMBER(job_input, agent_pid),
};

static const size_t texts[] = {
    offsetof(struct job_input, version), offsetof(struct job_input, run_id),
    offsetof(struct job_input, backend), offsetof(struct job_input, endpoint),
    offsetof(struct job_input, host),    offsetof(struct job_input, addr),
    offsetof(struct job_input, spares),  offsetof(struct job_input, alone),
};

static const struct field total_fields[] = {
    COUNT(record, restarts), COUNT(record, rounds),  COUNT(record, failures),
    COUNT(record, lost),     TIME(record, began_us),
};

static const struct field answer_fields[] = {
    FIELD_NUMBER(job_answer, node),
    TIME(job_answer, at_us),
};

#define PUT_FIELDS(out, fields, from)                                                  \
    buf_fail(out, fields_put(out, fields, ARRAY_LEN(fields), from))
#define GET_FIELDS(rest, fields, to)                                                   \
    fields_get(rest, fields, ARRAY_LEN(fields), to, WHAT, err)

/* ---- to bytes ---- */

static void put_part(struct buf *out, struct span bytes)
{
    (void)buf_u32(out, (uint32_t)bytes.n);
    (void)buf_append_span(out, bytes);
}

static void put_node_status(struct buf *out, const struct node_status *n)
{
    struct buf bytes;

    buf_init(&bytes, SIZE_MAX);
    node_status_encode(&bytes, n);
    buf_fail(out, buf_error(&bytes));
    put_part(out, buf_span(&bytes));
    buf_fini(&bytes);
}

static void put_texts(struct buf *out, const struct job_input *in)
{
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        const char *text;

        memcpy(&text, (const char *)in + texts[i], sizeof text);
        put_part(out, span_str(text ? text : i == 0 ? muster_version() : ""));
    }
}

void job_input_encode(struct buf *out, const struct job_input *in)
{
    static const struct record no_record;
    const struct record *r = in->record ? in->record : &no_record;
    struct node_status store = { 0 }; /* A store says of itself what it counts. */

    if (in->store)
        store.store = *in->store;
    (void)buf_u8(out, FORMAT);
    (void)buf_u8(out, in->own != NULL);
    PUT_FIELDS(out, number_fields, in);
    put_texts(out, in);
    put_node_status(out, in->own ? in->own : &store);
    PUT_FIELDS(out, total_fields, r);
    (void)buf_u32(out, (uint32_t)r->count);
    for (size_t i = 0; i < r->count; i++) {
        uint64_t number;

        put_part(out, record_bytes(r, i, &number));
    }
    (void)buf_u32(out, (uint32_t)in->answer_count);
    for (size_t i = 0; i < in->answer_count; i++) {
        PUT_FIELDS(out, answer_fields, &in->answers[i]);
        put_node_status(out, &in->answers[i].status);
    }
}

/* ---- and back ---- */

static int get_u32_of(struct span *rest, uint32_t *out, struct muster_error *err)
{
    if (rest->n < 4)
        return err_set(err, MUSTER_EPROTO, WHAT " is cut off");
    *out = get_u32(rest->p);
    *rest = span_skip(*rest, 4);
    return 0;
}

static int get_part(struct span *rest, struct span *out, struct muster_error *err)
{
    uint32_t n = 0;
    const int rc = get_u32_of(rest, &n, err);

    if (rc == 0 && n > rest->n)
        return err_set(err, MUSTER_EPROTO, WHAT " is cut off");
    *out = span_of(rest->p, n);
    *rest = span_skip(*rest, n);
    return rc;
}

static int get_node_status(struct span *rest, struct node_status *out,
                           struct muster_error *err)
{
    struct span part;
    const int rc = get_part(rest, &part, err);

    return rc ? rc : node_status_decode(part, out, err);
}

static int get_texts(struct span *rest, struct job_known *k, struct muster_error *err)
{
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct span part;
        const int rc = get_part(rest, &part, err);
        const char *text = rc == 0 ? arena_text(&k->arena, part) : NULL;

        if (!text)
            return rc ? rc : err_nomem(err);
        memcpy((char *)&k->in + texts[i], &text, sizeof text);
    }
    return 0;
}

static int get_record(struct span *rest, struct record *r, struct muster_error *err)
{
    struct record totals = { 0 };
    uint32_t count = 0;
    int rc = GET_FIELDS(rest, total_fields, &totals);

    if (rc == 0)
        rc = get_u32_of(rest, &count, err);
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        struct record_entry e;
        struct span part;

        rc = get_part(rest, &part, err);
        if (rc == 0)
            rc = record_entry_decode(part, &e, err);
        if (rc == 0 && record_add(r, &e) != 0)
            rc = err_nomem(err);
    }
    r->restarts = totals.restarts; /* They count entries that are gone, too. */
    r->rounds = totals.rounds;
    r->failures = totals.failures;
    r->lost = totals.lost;
    r->began_us = totals.began_us;
    return rc;
}

static int get_answers(struct span *rest, struct job_known *k, struct muster_error *err)
{
    uint32_t count = 0;
    int rc = get_u32_of(rest, &count, err);

    if (rc == 0 && count > rest->n)
        return err_set(err, MUSTER_EPROTO, WHAT " is cut off");
    k->answers = arena_alloc(&k->arena, count + 1, sizeof *k->answers);
    if (!k->answers)
        return err_nomem(err);
    k->in.answers = k->answers;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        struct job_answer *a = &k->answers[i];

        rc = GET_FIELDS(rest, answer_fields, a);
        if (rc == 0)
            rc = get_node_status(rest, &a->status, err);
        k->in.answer_count += rc == 0;
    }
    return rc;
}

int job_input_decode(struct span bytes, struct job_known *k, struct muster_error *err)
{
    int rc;

    *k = (struct job_known){ 0 };
    record_init(&k->record);
    if (bytes.n < 2 || *bytes.p != FORMAT)
        return err_set(err, MUSTER_EPROTO, WHAT " has an unknown format");
    const char *copy = arena_text(&k->arena, bytes);
    if (!copy)
        return err_nomem(err);
    struct span rest = span_of(copy + 2, bytes.n - 2);
    rc = GET_FIELDS(&rest, number_fields, &k->in);
    if (rc == 0)
        rc = get_texts(&rest, k, err);
    if (rc == 0)
        rc = get_node_status(&rest, &k->own, err);
    if (rc == 0)
        rc = get_record(&rest, &k->record, err);
    if (rc == 0)
        rc = get_answers(&rest, k, err);
    if (rc != 0) {
        job_known_fini(k);
        return rc;
    }
    k->in.record = &k->record;
    if (copy[1])
        k->in.own = &k->own;
    else if (k->own.store.present)
        k->in.store = &k->own.store;
    return 0;
}

void job_known_fini(struct job_known *k)
{
    for (size_t i = 0; i < k->in.answer_count; i++)
        node_status_fini(&k->answers[i].status);
    node_status_fini(&k->own);
    record_fini(&k->record);
    arena_fini(&k->arena);
    *k = (struct job_known){ 0 };
}
