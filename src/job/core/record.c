/* record.c - see record.h. */
#include "job/core/record.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/field.h"
#include "base/mem.h"

static const char *const kind_names[] = {
#define RECORD_KIND_NAME(name) [RECORD_##name] = #name,
    RECORD_KINDS(RECORD_KIND_NAME)
#undef RECORD_KIND_NAME
};

static const char *const cause_names[] = {
#define RECORD_CAUSE_NAME(name, words) [CAUSE_##name] = words,
    RECORD_CAUSES(RECORD_CAUSE_NAME)
#undef RECORD_CAUSE_NAME
};

const char *record_kind_name(enum record_kind kind)
{
    return (unsigned)kind < RECORD_KIND_COUNT ? kind_names[kind] : "?";
}

const char *record_cause_name(enum record_cause cause)
{
    return (unsigned)cause < RECORD_CAUSE_COUNT ? cause_names[cause] : "?";
}

/* ---- one entry as bytes ---- */

/* In the order of the wire. A reader of an older version skips what follows the fields
 * that it knows, so new fields go to the end. */
static const struct field fields[] = {
#define NUMBER(member)            FIELD_NUMBER(record_entry, member)
#define TEXT(member)              FIELD_TEXT(record_entry, member, RECORD_TEXT_MAX)
#define RANGED(member, low, high) FIELD_RANGED(record_entry, member, low, high)
    NUMBER(number),
    NUMBER(kind),
    NUMBER(cause),
    RANGED(at_us, -RECORD_CLOCK_MAX, RECORD_CLOCK_MAX),
    RANGED(unsure_us, 0, RECORD_CLOCK_MAX),
    NUMBER(node),
    RANGED(round, -1, RECORD_NUMBER_MAX),
    RANGED(rank, -1, INT32_MAX),
    RANGED(local_rank, -1, INT32_MAX),
    NUMBER(pid),
    NUMBER(code),
    RANGED(count, -1, RECORD_NUMBER_MAX),
    RANGED(total, -1, INT64_MAX),
    TEXT(host),
    TEXT(text),
    TEXT(place),
    TEXT(path),
    FIELD_TEXT(record_entry, body, RECORD_BODY_MAX),
    NUMBER(reason),
    RANGED(left, -1, RECORD_NUMBER_MAX),
    RANGED(wait_us, 0, RECORD_CLOCK_MAX),
    TEXT(rule),
#undef RANGED
#undef NUMBER
#undef TEXT
};

int record_entry_encode(struct buf *out, const struct record_entry *e)
{
    const size_t before = buf_len(out);
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(fields); i++)
        rc = field_put(out, &fields[i], e);
    if (rc < 0)
        out->len = before; /* Append a whole entry or nothing. */
    return rc;
}

int record_entry_decode(struct span bytes, struct record_entry *e,
                        struct muster_error *err)
{
    struct record_entry got = { 0 };

    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        const int rc = field_get(&bytes, &fields[i], &got, "record entry", err);

        if (rc < 0)
            return rc;
    }
    *e = got;
    return 0;
}

/* Cuts the text, but not in the middle of a UTF-8 character. */
static void trim(struct span *text, size_t size)
{
    if (text->n <= size)
        return;
    text->n = size;
    while (text->n && (text->p[text->n] & 0xc0) == 0x80)
        text->n--;
}

void record_trim(struct record_entry *e)
{
    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        if (fields[i].type == FIELD_SPAN)
            trim((struct span *)(void *)((char *)e + fields[i].at), fields[i].most);
}

/* ---- the record ---- */

#define FIRST_KEPT 16u /* of a kind, whatever comes later */

struct record_slot {
    uint64_t number;
    enum record_kind kind;
    size_t size;
    uint8_t *bytes; /* owned: the entry as encoded */
};

void record_init(struct record *r)
{
    *r = (struct record){ 0 };
}

void record_fini(struct record *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->count; i++)
        mem_free(r->slots[i].bytes);
    mem_free(r->slots);
    *r = (struct record){ 0 };
}

/* Kinds that a newer agent may send count as one. */
static enum record_kind kind_of(const struct record_slot *slot)
{
    return slot->kind < RECORD_KIND_COUNT ? slot->kind : RECORD_NONE;
}

/* The entry that is dropped when there are too many, other than those numbered
 * from..to. It is of the kind of which there are most, so that each restart of
 * thousands does not push out all that is less important. Of each kind the first few
 * stay, since a job's first failure explains many others, and the last. NODES go last:
 * they have the hosts of the other entries, and they are few, since one announces many
 * nodes. */
static size_t least(const struct record *r, uint64_t from, uint64_t to)
{
    size_t counts[RECORD_KIND_COUNT] = { 0 };
    enum record_kind most = RECORD_NODES;

    assert(r->count > 0);
    for (size_t i = 0; i < r->count; i++)
        if (r->slots[i].number < from || r->slots[i].number > to)
            counts[kind_of(&r->slots[i])]++;
    for (enum record_kind k = 0; k < RECORD_KIND_COUNT; k++)
        if (k != RECORD_NODES && counts[k] > 0 &&
            (most == RECORD_NODES || counts[k] > counts[most]))
            most = k;
    size_t skip = MIN_OF(counts[most] / 2, FIRST_KEPT);
    for (size_t i = 0; i < r->count; i++)
        if ((r->slots[i].number < from || r->slots[i].number > to) &&
            kind_of(&r->slots[i]) == most && skip-- == 0)
            return i;
    return 0;
}

static void drop(struct record *r, size_t i)
{
    assert(i < r->count);
    mem_free(r->slots[i].bytes);
    r->count--;
    memmove(&r->slots[i], &r->slots[i + 1], (r->count - i) * sizeof *r->slots);
}

static void count_entry(struct record *r, const struct record_entry *e)
{
    struct span rest = e->body;
    struct record_node n;

    r->last = MAX_OF(r->last, e->number);
    if (r->began_us == 0 || e->at_us < r->began_us)
        r->began_us = e->at_us;
    switch (e->kind) {
    case RECORD_NODES:
        while (record_nodes_next(&rest, &n))
            r->joined++;
        return;
    case RECORD_ROUND:
        r->rounds++;
        return;
    case RECORD_FAILED:
        r->failures++;
        return;
    case RECORD_LOST:
        r->lost++;
        return;
    case RECORD_RESTART:
        /* The entry counts the restarts of the whole job, those before us included. */
        r->restarts = MAX_OF(r->restarts, e->count);
        return;
    case RECORD_NONE:
    case RECORD_PHASES:
    case RECORD_ENDED:
    case RECORD_LEFT:
    case RECORD_ENDING:
    case RECORD_VERDICT:
    case RECORD_NOTE:
    case RECORD_NOTICE:
    case RECORD_KIND_COUNT:
        return;
    }
}

/* Where an entry with this number belongs. */
static size_t place_of(const struct record *r, uint64_t number)
{
    size_t at = r->count;

    while (at && r->slots[at - 1].number >= number)
        at--;
    return at;
}

/* Makes room for one more entry. It grows step by step, since most jobs have few. */
static int reserve(struct record *r)
{
    size_t size = r->size ? 2 * r->size : 16;

    if (r->count < r->size)
        return 0;
    if (r->size < RECORD_ENTRIES) /* Only a step with many entries needs more. */
        size = MIN_OF(size, RECORD_ENTRIES + (size_t)16);
    struct record_slot *slots = mem_realloc_array(r->slots, size, sizeof *slots);
    if (!slots)
        return MUSTER_ENOMEM;
    r->slots = slots;
    r->size = size;
    return 0;
}

static int insert_at(struct record *r, const struct record_entry *e, size_t at)
{
    struct record_entry copy = *e;
    struct buf b;

    if (reserve(r) != 0)
        return MUSTER_ENOMEM;
    record_trim(&copy);
    buf_init(&b, SIZE_MAX);
    if (record_entry_encode(&b, &copy) < 0) {
        buf_fini(&b);
        return MUSTER_ENOMEM;
    }
    assert(r->count < r->size);
    assert(at == 0 || r->slots[at - 1].number < e->number);
    memmove(&r->slots[at + 1], &r->slots[at], (r->count - at) * sizeof *r->slots);
    r->slots[at] = (struct record_slot){ e->number, e->kind, buf_len(&b), b.mem };
    r->count++;
    count_entry(r, &copy);
    return 0;
}

int record_insert(struct record *r, const struct record_entry *e)
{
    const size_t at = place_of(r, e->number);

    if (e->number == 0 || (at < r->count && r->slots[at].number == e->number))
        return 0;
    if (insert_at(r, e, at) < 0)
        return MUSTER_ENOMEM;
    if (r->count > RECORD_ENTRIES)
        drop(r, least(r, e->number, e->number));
    return 0;
}

int record_stage(struct record *r, const struct record_entry *e)
{
    assert(e->number > r->last);
    return insert_at(r, e, r->count);
}

void record_prune(struct record *r, uint64_t last)
{
    while (r->count > RECORD_ENTRIES)
        drop(r, least(r, last + 1, UINT64_MAX));
}

int record_add(struct record *r, const struct record_entry *e)
{
    return e->number <= r->last ? 0 : record_insert(r, e);
}

struct record_entry record_at(const struct record *r, size_t i)
{
    struct record_entry e = { 0 };
    int rc;

    assert(i < r->count);
    rc = record_entry_decode(span_of(r->slots[i].bytes, r->slots[i].size), &e, NULL);
    assert(rc == 0);
    (void)rc;
    return e;
}

struct span record_bytes(const struct record *r, size_t i, uint64_t *number)
{
    assert(i < r->count);
    *number = r->slots[i].number;
    return span_of(r->slots[i].bytes, r->slots[i].size);
}

bool record_find(const struct record *r, enum record_kind kind, int64_t round,
                 struct record_entry *out)
{
    for (size_t i = r->count; i-- > 0;) {
        if (r->slots[i].kind != kind)
            continue;
        const struct record_entry e = record_at(r, i);
        if (round != -1 && e.round != round)
            continue;
        *out = e;
        return true;
    }
    return false;
}

/* ---- bodies ---- */

static struct span take_until(struct span *rest, uint8_t stop)
{
    const uint8_t *at = rest->n ? memchr(rest->p, stop, rest->n) : NULL;
    const size_t n = at ? (size_t)(at - rest->p) : rest->n;
    const struct span head = span_of(rest->p, n);
    const size_t used = n + (at != NULL);

    assert(used <= rest->n);
    *rest = span_of(rest->p ? rest->p + used : NULL, rest->n - used);
    return head;
}

/* The number that the text begins with, or 0; within RECORD_NUMBER_MAX. */
static int64_t number_of(struct span text)
{
    char digits[24];

    if (text.n == 0 || text.n >= sizeof digits)
        return 0;
    memcpy(digits, text.p, text.n);
    digits[text.n] = '\0';
    const int64_t n = strtoll(digits, NULL, 10);

    return MAX_OF(MIN_OF(n, RECORD_NUMBER_MAX), -RECORD_NUMBER_MAX);
}

bool record_nodes_next(struct span *body, struct record_node *out)
{
    struct span line;

    if (body->n == 0)
        return false;
    line = take_until(body, '\n');
    *out = (struct record_node){ 0 };
    out->number = (uint32_t)number_of(take_until(&line, '\t'));
    out->host = take_until(&line, '\t');
    out->addr = take_until(&line, '\t');
    out->pid = number_of(take_until(&line, '\t'));
    out->nproc = number_of(take_until(&line, '\t'));
    out->offset_us = number_of(take_until(&line, '\t'));
    out->unsure_us = number_of(take_until(&line, '\t'));
    return true;
}

int record_nodes_print(struct buf *out, const struct record_node *n)
{
    return buf_printf(
        out, "%u\t%.*s\t%.*s\t%" PRId64 "\t%" PRId64 "\t%" PRId64 "\t%" PRId64 "\n",
        n->number, (int)MIN_OF(n->host.n, 255), (const char *)n->host.p,
        (int)MIN_OF(n->addr.n, 255), (const char *)n->addr.p, n->pid, n->nproc,
        n->offset_us, n->unsure_us);
}

bool record_ranks_next(struct span *body, struct record_ranks *out)
{
    struct span line;

    if (body->n == 0)
        return false;
    line = take_until(body, '\n');
    out->node = (uint32_t)number_of(take_until(&line, ' '));
    out->first = number_of(take_until(&line, ' '));
    out->count = number_of(take_until(&line, ' '));
    return true;
}

int record_ranks_print(struct buf *out, const struct record_ranks *r)
{
    return buf_printf(out, "%u %" PRId64 " %" PRId64 "\n", r->node, r->first, r->count);
}

bool record_codes_next(struct span *body, struct record_codes *out)
{
    struct span line;

    if (body->n == 0)
        return false;
    line = take_until(body, '\n');
    out->first = number_of(take_until(&line, ' '));
    out->count = number_of(take_until(&line, ' '));
    out->code = number_of(take_until(&line, ' '));
    return out->first >= 0 && out->count > 0 &&
           out->count <= RECORD_NUMBER_MAX - out->first;
}

void record_codes_end(struct buf *out, struct record_codes *run)
{
    if (run->count)
        (void)buf_printf(out, "%" PRId64 " %" PRId64 " %" PRId64 "\n", run->first,
                         run->count, run->code);
    run->count = 0;
}

void record_codes_add(struct buf *out, struct record_codes *run,
                      struct record_codes more)
{
    if (run->count && run->code == more.code && run->first + run->count == more.first) {
        run->count += more.count;
        return;
    }
    record_codes_end(out, run);
    *run = more;
}

bool record_host_of(const struct record *r, uint32_t node, struct record_node *out)
{
    for (size_t i = r->count; i-- > 0;) {
        if (r->slots[i].kind != RECORD_NODES)
            continue;
        struct span body = record_at(r, i).body;
        while (record_nodes_next(&body, out))
            if (out->number == node)
                return true;
    }
    return false;
}

/* Takes a number off the front of the line. */
static bool take_number(struct span *line, int64_t *out)
{
    int64_t n = 0;
    size_t i = 0;

    while (i < line->n && line->p[i] == ' ')
        i++;
    const size_t first = i;
    while (i < line->n && line->p[i] >= '0' && line->p[i] <= '9' && i - first < 18)
        n = 10 * n + (line->p[i++] - '0');
    *line = span_of(line->p + i, line->n - i);
    *out = n;
    return i > first;
}

bool record_phases_next(struct span *body, struct record_phase *out)
{
    const uint8_t *nl = body->n ? memchr(body->p, '\n', body->n) : NULL;
    struct span line = span_of(body->p, nl ? (size_t)(nl - body->p) : 0);
    const uint8_t *space = line.n ? memchr(line.p, ' ', line.n) : NULL;
    int64_t node;

    if (!space)
        return false;
    *body = span_of(nl + 1, body->n - line.n - 1);
    *out = (struct record_phase){ .name = span_of(line.p, (size_t)(space - line.p)) };
    line = span_of(space, line.n - out->name.n);
    if (!take_number(&line, &out->min_us) || !take_number(&line, &out->median_us) ||
        !take_number(&line, &out->max_us) || !take_number(&line, &node))
        return false;
    out->slowest = (uint32_t)node;
    return true;
}

int record_phases_print(struct buf *out, const struct record_phase *p)
{
    return buf_printf(out, "%.*s %" PRId64 " %" PRId64 " %" PRId64 " %" PRIu32 "\n",
                      (int)p->name.n, (const char *)p->name.p, p->min_us, p->median_us,
                      p->max_us, p->slowest);
}

bool record_node_ended(const struct record *r, uint32_t node)
{
    for (size_t i = r->count; i-- > 0;)
        if ((r->slots[i].kind == RECORD_LOST || r->slots[i].kind == RECORD_LEFT) &&
            record_at(r, i).node == node)
            return true;
    return false;
}

struct span record_farewell(const struct record *r, uint32_t node)
{
    for (size_t i = r->count; i-- > 0;) {
        const struct record_entry e = record_at(r, i);

        if (e.kind == RECORD_LEFT && e.node == node)
            return e.text;
    }
    return span_of(NULL, 0);
}
