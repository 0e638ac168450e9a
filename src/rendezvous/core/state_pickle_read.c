/* state_pickle_read.c - the pickle machine, as much of it as a state needs: plain
 * values, the memo, the loop over the opcodes, and below that the values that are built
 * of other values; see state_pickle.h.
 *
 * The bytes come from anybody who can reach the store. Every opcode checks what it
 * takes from the stack, nothing recurses, and every array grows by at most one entry a
 * byte. */
#include "base/base64.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/py/datetime.h"
#include "base/utf8.h"
#include "rendezvous/core/state_pickle_int.h"
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#define MAX_STRING 65536u

static const char *op_name(uint8_t op)
{
    switch (op) {
#define NAME(name, byte)                                                               \
    case byte:                                                                         \
        return #name;
        PICKLE_OPS(NAME)
#undef NAME
    }
    return "unknown";
}

/* Returns MUSTER_ESTATE; the error says where we are. */
static int __attribute__((format(printf, 2, 3)))
unpickle_refuse(struct unpickler *u, const char *fmt, ...)
{
    char why[400];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    return err_set(
        u->err, MUSTER_ESTATE,
        "The rendezvous state is corrupt: offset %zu, opcode 0x%02x (%s): %s", u->op_at,
        u->op, op_name(u->op), why);
}

/* ---- Plain values, and the memo ---- */

/* The next n bytes of the input, or NULL with the error set. */
static const uint8_t *take(struct unpickler *u, size_t n)
{
    const uint8_t *p = u->in.p + u->pos;

    assert(u->pos <= u->in.n);

    if (n > u->in.n - u->pos) {
        (void)unpickle_refuse(u, "the state is cut off after %zu bytes", u->in.n);
        return NULL;
    }
    u->pos += n;
    return p;
}

static int on_string(struct unpickler *u, size_t head)
{
    const uint8_t *p = take(u, head);
    size_t n;

    if (!p)
        return MUSTER_ESTATE;
    n = head == 1 ? p[0] : get_u32(p);
    if (n > MAX_STRING)
        return unpickle_refuse(u, "a string of %zu bytes", n);
    p = take(u, n);
    if (!p)
        return MUSTER_ESTATE;
    return pv_push(u, PV_STR, (uint32_t)n, p - u->in.p);
}

static int on_int(struct unpickler *u)
{
    static const uint8_t sizes[] = { 1, 2, 4 };
    const size_t n = sizes[u->op == OP_BININT1 ? 0 : u->op == OP_BININT2 ? 1 : 2];
    const uint8_t *p = take(u, n);

    if (!p)
        return MUSTER_ESTATE;
    if (n == 1)
        return pv_push(u, PV_INT, 0, p[0]);
    if (n == 2)
        return pv_push(u, PV_INT, 0, p[0] | p[1] << 8);
    return pv_push(u, PV_INT, 0, (int32_t)get_u32(p));
}

static int on_long(struct unpickler *u)
{
    const uint8_t *p = take(u, 1);
    uint64_t v;
    size_t n;

    if (!p)
        return MUSTER_ESTATE;
    n = p[0];
    if (n > 8)
        return unpickle_refuse(u, "an integer of %zu bytes", n);
    p = take(u, n);
    if (!p)
        return MUSTER_ESTATE;
    v = n && p[n - 1] & 0x80 ? UINT64_MAX : 0;
    for (size_t i = n; i-- > 0;)
        v = v << 8 | p[i];
    return pv_push(u, PV_INT, 0, (int64_t)v);
}

static int on_bytes(struct unpickler *u)
{
    const uint8_t *p = take(u, 1);

    if (!p)
        return MUSTER_ESTATE;
    if (p[0] != PYTIME_BYTES)
        return unpickle_refuse(u, "a time of %u bytes instead of ten", p[0]);
    p = take(u, PYTIME_BYTES);
    return p ? pv_push(u, PV_BYTES, 0, p - u->in.p) : MUSTER_ESTATE;
}

static int on_frame(struct unpickler *u)
{
    const uint8_t *p = take(u, 8);

    if (!p)
        return MUSTER_ESTATE;
    if (get_u64(p) > u->in.n - u->pos)
        return unpickle_refuse(u, "a frame longer than the state");
    return 0;
}

static int on_memoize(struct unpickler *u)
{
    struct pv *v;

    if (pv_above_mark(u) == 0)
        return unpickle_refuse(u, "nothing to memoize");
    v = pv_more(&u->memo, sizeof *v);
    if (!v)
        return err_nomem(u->err);
    *v = *pv_top(u, 0);
    return 0;
}

static int on_get(struct unpickler *u, size_t head)
{
    const uint8_t *p = take(u, head);
    size_t i;
    struct pv v;

    if (!p)
        return MUSTER_ESTATE;
    i = head == 1 ? p[0] : get_u32(p);
    if (i >= u->memo.count)
        return unpickle_refuse(u, "memo %zu of %zu", i, u->memo.count);
    v = ((struct pv *)u->memo.at)[i];
    if (v.type == PV_DICT || v.type == PV_SET)
        return unpickle_refuse(u, "a map or set that is used in two places");
    return pv_push(u, (enum pv_type)v.type, v.len, v.num);
}

/* ---- From opcode to opcode ---- */

static int unpickle_global(struct unpickler *u);
static int unpickle_newobj(struct unpickler *u);
static int unpickle_build(struct unpickler *u);
static int unpickle_box(struct unpickler *u, enum pv_type type);
static int unpickle_mark(struct unpickler *u);
static int unpickle_items(struct unpickler *u, enum pv_type type);
static int unpickle_setitem(struct unpickler *u);
static int unpickle_tuple(struct unpickler *u, size_t n);
static int unpickle_reduce(struct unpickler *u);

static int step(struct unpickler *u)
{
    switch ((enum pickle_op)u->op) {
    case OP_FRAME:
        return on_frame(u);
    case OP_SHORT_BINUNICODE:
        return on_string(u, 1);
    case OP_BINUNICODE:
        return on_string(u, 4);
    case OP_MEMOIZE:
        return on_memoize(u);
    case OP_BINGET:
        return on_get(u, 1);
    case OP_LONG_BINGET:
        return on_get(u, 4);
    case OP_STACK_GLOBAL:
        return unpickle_global(u);
    case OP_EMPTY_TUPLE:
        return pv_push(u, PV_TUPLE0, 0, 0);
    case OP_NEWOBJ:
        return unpickle_newobj(u);
    case OP_EMPTY_DICT:
        return unpickle_box(u, PV_DICT);
    case OP_EMPTY_SET:
        return unpickle_box(u, PV_SET);
    case OP_MARK:
        return unpickle_mark(u);
    case OP_BININT1:
    case OP_BININT2:
    case OP_BININT:
        return on_int(u);
    case OP_LONG1:
        return on_long(u);
    case OP_NEWTRUE:
        return pv_push(u, PV_BOOL, 0, 1);
    case OP_NEWFALSE:
        return pv_push(u, PV_BOOL, 0, 0);
    case OP_NONE:
        return pv_push(u, PV_NONE, 0, 0);
    case OP_SHORT_BINBYTES:
        return on_bytes(u);
    case OP_SETITEM:
        return unpickle_setitem(u);
    case OP_SETITEMS:
        return unpickle_items(u, PV_DICT);
    case OP_ADDITEMS:
        return unpickle_items(u, PV_SET);
    case OP_BUILD:
        return unpickle_build(u);
    case OP_TUPLE1:
        return unpickle_tuple(u, 1);
    case OP_TUPLE2:
        return unpickle_tuple(u, 2);
    case OP_TUPLE3:
        return unpickle_tuple(u, 3);
    case OP_REDUCE:
        return unpickle_reduce(u);
    case OP_PROTO:
        return unpickle_refuse(u, "is allowed only at the start");
    case OP_STOP:
        return 0;
    }
    return unpickle_refuse(u, "not an opcode that a rendezvous state has");
}

static int header(struct unpickler *u)
{
    if (u->in.n > PICKLE_MAX_BYTES)
        return unpickle_refuse(u, "%zu bytes are more than a store can hold", u->in.n);
    u->op = u->in.n ? u->in.p[0] : 0;
    if (u->in.n < 2 || u->op != OP_PROTO)
        return unpickle_refuse(u, "not a pickle");
    if (u->in.p[1] != 4 && u->in.p[1] != 5)
        return unpickle_refuse(u, "pickle protocol %u; only 4 and 5 are known",
                               u->in.p[1]);
    u->pos = 2;
    return 0;
}

static int unpickle_state(struct unpickler *u, uint32_t box, struct rdzv_state *out);

static int run(struct unpickler *u, struct rdzv_state *out)
{
    const struct pv_object *o;
    int rc = header(u);

    while (rc == 0) {
        u->op_at = u->pos;
        if (u->pos == u->in.n) {
            u->op = 0;
            return unpickle_refuse(u, "the state ends before its STOP");
        }
        u->op = u->in.p[u->pos++];
        if (u->op == OP_STOP)
            break;
        rc = step(u);
    }
    if (rc < 0)
        return rc;
    if (u->pos != u->in.n)
        return unpickle_refuse(u, "%zu bytes after the end", u->in.n - u->pos);
    if (u->mark_count || u->stack.count != 1 || pv_top(u, 0)->type != PV_OBJECT)
        return unpickle_refuse(u, "the result is not exactly one object");
    assert((size_t)pv_top(u, 0)->num < u->objects.count);
    o = (struct pv_object *)u->objects.at + pv_top(u, 0)->num;
    if (o->global != PG_STATE || !o->built)
        return unpickle_refuse(u, "the result is not a rendezvous state");
    return unpickle_state(u, o->box, out);
}

int pickle_read(struct span bytes, struct rdzv_state *out, struct muster_error *err)
{
    struct unpickler u = { .in = bytes, .err = err };
    const int rc = run(&u, out);

    mem_free(u.stack.at);
    mem_free(u.memo.at);
    mem_free(u.items.at);
    mem_free(u.runs.at);
    mem_free(u.boxes.at);
    mem_free(u.objects.at);
    return rc;
}

int pickle_read_text(struct span text, struct rdzv_state *out, struct muster_error *err)
{
    uint8_t *bytes;
    int64_t n;
    int rc;

    if (text.n > PICKLE_MAX_BYTES)
        return err_set(err, MUSTER_ESTATE,
                       "The state object is corrupt: %zu bytes are more than a store "
                       "can hold",
                       text.n);
    bytes = mem_alloc(BASE64_DECODED(text.n) + 1);
    if (!bytes)
        return err_nomem(err);
    n = base64_decode(bytes, text);
    if (n < 0)
        rc = err_set(
            err, MUSTER_ESTATE,
            "The state object is corrupt: its %zu bytes are not base64; another "
            "program uses this key",
            text.n);
    else
        rc = pickle_read(span_of(bytes, (size_t)n), out, err);
    mem_free(bytes);
    return rc;
}

/* ---- The opcodes that build values from other values: globals, nodes and states, maps
 * and sets, tuples, and the calls that make a time.
 *
 * Only the shapes that a state has are accepted. A name that is not one of torch's or
 * datetime's is refused, and nothing is ever called. ---- */
/* ---- Globals and objects ---- */

static int unpickle_global(struct unpickler *u)
{
    static const struct {
        const char *module, *name;
    } known[] = {
        [PG_STATE] = { PICKLE_MODULE, "_RendezvousState" },
        [PG_NODE] = { PICKLE_MODULE, "_NodeDesc" },
        [PG_DATETIME] = { "datetime", "datetime" },
        [PG_TIMEZONE] = { "datetime", "timezone" },
        [PG_TIMEDELTA] = { "datetime", "timedelta" },
    };
    struct span module, name;

    if (pv_above_mark(u) < 2 || pv_top(u, 0)->type != PV_STR ||
        pv_top(u, 1)->type != PV_STR)
        return unpickle_refuse(u, "a global without module and name");
    module = pv_span(u, *pv_top(u, 1));
    name = pv_span(u, *pv_top(u, 0));
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (span_eq(module, span_str(known[i].module)) &&
            span_eq(name, span_str(known[i].name))) {
            assert(u->stack.count >= 2);
            u->stack.count -= 2;
            return pv_push(u, PV_GLOBAL, 0, (int64_t)i);
        }
    }
    return unpickle_refuse(
        u,
        "refers to %.*s.%.*s, so it is not a rendezvous state; if no other program "
        "uses this run id, somebody has tampered with the store",
        (int)MIN_OF(module.n, 80), (const char *)module.p, (int)MIN_OF(name.n, 80),
        (const char *)name.p);
}

static int unpickle_newobj(struct unpickler *u)
{
    struct pv_object *o;
    struct pv class;

    if (pv_above_mark(u) < 2 || pv_top(u, 0)->type != PV_TUPLE0 ||
        pv_top(u, 1)->type != PV_GLOBAL || pv_top(u, 1)->num > PG_NODE)
        return unpickle_refuse(u, "neither a state nor a node");
    class = *pv_top(u, 1);
    if (u->objects.count >= UINT32_MAX)
        return unpickle_refuse(u, "too many objects");
    o = pv_more(&u->objects, sizeof *o);
    if (!o)
        return err_nomem(u->err);
    assert(class.num == PG_STATE || class.num == PG_NODE);
    *o = (struct pv_object){ .global = (uint8_t) class.num };
    u->stack.count -= 2;
    return pv_push(u, PV_OBJECT, 0, (int64_t)u->objects.count - 1);
}

static int unpickle_node(struct unpickler *u, uint32_t box, struct rdzv_node *out);

static int unpickle_build(struct unpickler *u)
{
    struct pv_object *o;
    uint32_t box;

    if (pv_above_mark(u) < 2 || pv_top(u, 0)->type != PV_DICT ||
        pv_top(u, 1)->type != PV_OBJECT)
        return unpickle_refuse(u, "needs an object and its fields");
    o = (struct pv_object *)u->objects.at + pv_top(u, 1)->num;
    assert((size_t)pv_top(u, 1)->num < u->objects.count);
    if (o->built)
        return unpickle_refuse(u, "an object that is filled in twice");
    box = (uint32_t)pv_top(u, 0)->num;
    if (o->global == PG_NODE && unpickle_node(u, box, &o->node) < 0)
        return MUSTER_ESTATE;
    o->built = true;
    o->box = box;
    u->stack.count--;
    return 0;
}

/* ---- Maps and sets ---- */

/* Pushes an empty map or set. */
static int unpickle_box(struct unpickler *u, enum pv_type type)
{
    struct pv_box *b = pv_more(&u->boxes, sizeof *b);

    if (!b)
        return err_nomem(u->err);
    *b = (struct pv_box){ 0, 0 };
    return pv_push(u, type, 0, (int64_t)u->boxes.count - 1);
}

static bool is_built_node(const struct unpickler *u, struct pv v)
{
    const struct pv_object *objects = u->objects.at;

    return v.type == PV_OBJECT && objects[v.num].global == PG_NODE &&
           objects[v.num].built;
}

/* Moves the top n values into the box below them. Python hashes keys at this point, so
 * a node must be complete by now. */
static int put_items(struct unpickler *u, enum pv_type type, size_t n)
{
    const size_t step = type == PV_DICT ? 2 : 1;
    struct pv *v = pv_top(u, n) + 1;
    struct pv_box *box;
    struct pv_run *run;

    if (pv_top(u, n)->type != type)
        return unpickle_refuse(u, "items for something that is not a %s",
                               type == PV_DICT ? "map" : "set");
    if (n % step)
        return unpickle_refuse(u, "a key without a value");
    for (size_t i = 0; i < n; i += step) {
        if (!is_built_node(u, v[i]) && (type == PV_SET || v[i].type != PV_STR))
            return unpickle_refuse(u, "a key that is neither a node nor a name");
    }
    if (n == 0)
        return 0;
    run = pv_more(&u->runs, sizeof *run);
    if (!run)
        return err_nomem(u->err);
    *run = (struct pv_run){ (uint32_t)u->items.count, (uint32_t)n, 0 };
    for (size_t i = 0; i < n; i++) {
        struct pv *item = pv_more(&u->items, sizeof *item);

        if (!item)
            return err_nomem(u->err);
        *item = v[i];
    }
    box = (struct pv_box *)u->boxes.at + pv_top(u, n)->num;
    if (box->last_run)
        ((struct pv_run *)u->runs.at)[box->last_run - 1].next = (uint32_t)u->runs.count;
    else
        box->first_run = (uint32_t)u->runs.count;
    box->last_run = (uint32_t)u->runs.count;
    u->stack.count -= n;
    return 0;
}

/* Returns the next item of a box. *run is 0 at first, later the run plus one, and *at
 * the index in it. False at the end. */
static bool box_next(const struct unpickler *u, uint32_t box, uint32_t *run,
                     uint32_t *at, struct pv *item)
{
    const struct pv_run *runs = u->runs.at;

    if (*run == 0) {
        *run = ((const struct pv_box *)u->boxes.at)[box].first_run;
        *at = 0;
    }
    if (*run && *at == runs[*run - 1].count) {
        *run = runs[*run - 1].next;
        *at = 0;
    }
    if (*run == 0)
        return false;
    *item = ((const struct pv *)u->items.at)[runs[*run - 1].first + (*at)++];
    return true;
}

static int unpickle_mark(struct unpickler *u)
{
    if (u->mark_count == ARRAY_LEN(u->marks))
        return unpickle_refuse(u, "nested too deeply");
    u->marks[u->mark_count++] = (uint32_t)u->stack.count;
    return 0;
}

/* SETITEMS and ADDITEMS. */
static int unpickle_items(struct unpickler *u, enum pv_type type)
{
    size_t n;

    if (u->mark_count == 0)
        return unpickle_refuse(u, "no mark");
    n = pv_above_mark(u);
    u->mark_count--;
    if (pv_above_mark(u) <= n)
        return unpickle_refuse(u, "nothing to put items into");
    return put_items(u, type, n);
}

static int unpickle_setitem(struct unpickler *u)
{
    if (pv_above_mark(u) < 3)
        return unpickle_refuse(u, "needs a map, a key and a value");
    return put_items(u, PV_DICT, 2);
}

/* ---- Tuples and calls ---- */

static int unpickle_tuple(struct unpickler *u, size_t n)
{
    const struct pv *v;

    if (pv_above_mark(u) < n)
        return unpickle_refuse(u, "too few values");
    v = pv_top(u, n - 1);
    u->stack.count -=
        n; /* pv_push() reuses their room, so we read v before it writes. */
    if (n == 1 && v[0].type == PV_DELTA)
        return pv_push(u, PV_DELTA_ARGS, 0, 0);
    if (n == 1 && v[0].type == PV_BYTES)
        return pv_push(u, PV_NAIVE_ARGS, 0, v[0].num);
    if (n == 2 && v[0].type == PV_BYTES && v[1].type == PV_UTC)
        return pv_push(u, PV_TIME_ARGS, 0, v[0].num);
    if (n == 3 && v[0].type == PV_INT && v[1].type == PV_INT && v[2].type == PV_INT &&
        (v[0].num | v[1].num | v[2].num) == 0)
        return pv_push(u, PV_ZEROS, 0, 0);
    return unpickle_refuse(u, "a tuple that does not occur in a state");
}

static int unpickle_reduce(struct unpickler *u)
{
    struct pv call, args;
    int64_t us;

    if (pv_above_mark(u) < 2 || pv_top(u, 1)->type != PV_GLOBAL)
        return unpickle_refuse(u, "needs a type and its arguments");
    call = *pv_top(u, 1);
    args = *pv_top(u, 0);
    u->stack.count -= 2;
    if (call.num == PG_TIMEDELTA && args.type == PV_ZEROS)
        return pv_push(u, PV_DELTA, 0, 0);
    if (call.num == PG_TIMEZONE && args.type == PV_DELTA_ARGS)
        return pv_push(u, PV_UTC, 0, 0);
    if (call.num == PG_DATETIME && args.type == PV_NAIVE_ARGS)
        return unpickle_refuse(
            u, "a time without a time zone: a node of this run uses torch "
               "<= 2.5, which cannot share a run with later versions; "
               "upgrade it to torch 2.6 or later");
    if (call.num != PG_DATETIME || args.type != PV_TIME_ARGS)
        return unpickle_refuse(u, "a call that does not occur in a state");
    if (!py_datetime_read(u->in.p + args.num, &us))
        return unpickle_refuse(u, "not a valid date and time");
    return pv_push(u, PV_TIME, (uint32_t)args.num, us);
}

/* ---- From the items of a pickle to nodes and the state ---- */

/* The index of the field's name in names, or count if it is not among them. */
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

/* Fills in a node from its dict, which must have exactly addr, pid and local_id. */
static int unpickle_node(struct unpickler *u, uint32_t box, struct rdzv_node *out)
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
            u, "a node whose addr is not UTF-8 or longer than %u bytes", RDZV_MAX_ADDR);
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

/* Adds the nodes of one map or set to their list. */
static int read_list(struct unpickler *u, struct pv field, enum rdzv_list list,
                     struct rdzv_state *s)
{
    const struct pv_object *objects = u->objects.at;
    const enum pv_type want = list == RDZV_PLACES ? PV_INT : PV_TIME;
    const bool pairs = field.type == PV_DICT;
    uint32_t run = 0, at = 0;
    struct pv key, value = { 0 };

    while (box_next(u, (uint32_t)field.num, &run, &at, &key)) {
        struct participant *m;

        if (pairs)
            (void)box_next(u, (uint32_t)field.num, &run, &at, &value);
        if (key.type != PV_OBJECT || (pairs && value.type != want))
            return unpickle_refuse(
                u, "%s of the wrong type for a node, or a key that is not a node",
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

/* The state from the dict of its eight fields. */
static int unpickle_state(struct unpickler *u, uint32_t box, struct rdzv_state *out)
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
