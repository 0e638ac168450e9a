/* pickle_read.c - the pickle machine, as much of it as a state needs; see pickle.h.
 *
 * Bytes come from whoever can reach the store. Every opcode checks what it takes from
 * the stack; nothing recurses; every array grows by at most one entry a byte. */
#include <stdarg.h>
#include <stdio.h>

#include "base/base64.h"
#include "base/err.h"
#include "base/mem.h"
#include "wire/pickle_int.h"
#include "wire/pytime.h"

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

int unpickle_refuse(struct unpickler *u, const char *fmt, ...)
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

/* Room for one more entry of the size given, or NULL. */
static void *more(struct pv_array *a, size_t size)
{
    if (a->count == a->room) {
        const size_t room = a->room ? a->room * 2 : 64;
        void *at = mem_realloc_array(a->at, room, size);

        if (!at)
            return NULL;
        a->at = at;
        a->room = room;
    }
    return (char *)a->at + a->count++ * size;
}

static int push(struct unpickler *u, enum pv_type type, uint32_t len, int64_t num)
{
    struct pv *v = more(&u->stack, sizeof *v);

    if (!v)
        return err_nomem(u->err);
    *v = (struct pv){ (uint8_t)type, len, num };
    return 0;
}

/* How many values lie above the last mark. */
static size_t above_mark(const struct unpickler *u)
{
    return u->stack.count - (u->mark_count ? u->marks[u->mark_count - 1] : 0);
}

static struct pv *top(struct unpickler *u, size_t below)
{
    return (struct pv *)u->stack.at + u->stack.count - 1 - below;
}

/* The next n bytes of the input, or NULL with the error set. */
static const uint8_t *take(struct unpickler *u, size_t n)
{
    const uint8_t *p = u->in.p + u->pos;

    if (n > u->in.n - u->pos) {
        (void)unpickle_refuse(u, "the state ends in the middle, after %zu bytes",
                              u->in.n);
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
    return push(u, PV_STR, (uint32_t)n, p - u->in.p);
}

static int on_int(struct unpickler *u)
{
    static const uint8_t sizes[] = { 1, 2, 4 };
    const size_t n = sizes[u->op == OP_BININT1 ? 0 : u->op == OP_BININT2 ? 1 : 2];
    const uint8_t *p = take(u, n);

    if (!p)
        return MUSTER_ESTATE;
    if (n == 1)
        return push(u, PV_INT, 0, p[0]);
    if (n == 2)
        return push(u, PV_INT, 0, p[0] | p[1] << 8);
    return push(u, PV_INT, 0, (int32_t)get_u32(p));
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
    return push(u, PV_INT, 0, (int64_t)v);
}

static int on_bytes(struct unpickler *u)
{
    const uint8_t *p = take(u, 1);

    if (!p)
        return MUSTER_ESTATE;
    if (p[0] != PYTIME_BYTES)
        return unpickle_refuse(u, "%u bytes where a time has ten", p[0]);
    p = take(u, PYTIME_BYTES);
    return p ? push(u, PV_BYTES, 0, p - u->in.p) : MUSTER_ESTATE;
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

    if (above_mark(u) == 0)
        return unpickle_refuse(u, "nothing to remember");
    v = more(&u->memo, sizeof *v);
    if (!v)
        return err_nomem(u->err);
    *v = *top(u, 0);
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
        return unpickle_refuse(u, "a map or set that is in two places");
    return push(u, (enum pv_type)v.type, v.len, v.num);
}

static int on_global(struct unpickler *u)
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

    if (above_mark(u) < 2 || top(u, 0)->type != PV_STR || top(u, 1)->type != PV_STR)
        return unpickle_refuse(u, "a global without module and name");
    module = pv_span(u, *top(u, 1));
    name = pv_span(u, *top(u, 0));
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (span_eq(module, span_str(known[i].module)) &&
            span_eq(name, span_str(known[i].name))) {
            u->stack.count -= 2;
            return push(u, PV_GLOBAL, 0, (int64_t)i);
        }
    }
    return unpickle_refuse(
        u,
        "refers to %.*s.%.*s: not a rendezvous state; if nobody else "
        "uses this run id, somebody tampers with the store",
        (int)MIN_OF(module.n, 80), (const char *)module.p, (int)MIN_OF(name.n, 80),
        (const char *)name.p);
}

static int on_newobj(struct unpickler *u)
{
    struct pv_object *o;
    struct pv class;

    if (above_mark(u) < 2 || top(u, 0)->type != PV_TUPLE0 ||
        top(u, 1)->type != PV_GLOBAL || top(u, 1)->num > PG_NODE)
        return unpickle_refuse(u, "neither a state nor a node");
    class = *top(u, 1);
    if (u->objects.count >= UINT32_MAX)
        return unpickle_refuse(u, "too many objects");
    o = more(&u->objects, sizeof *o);
    if (!o)
        return err_nomem(u->err);
    *o = (struct pv_object){ .global = (uint8_t) class.num };
    u->stack.count -= 2;
    return push(u, PV_OBJECT, 0, (int64_t)u->objects.count - 1);
}

static int on_box(struct unpickler *u, enum pv_type type)
{
    struct pv_box *b = more(&u->boxes, sizeof *b);

    if (!b)
        return err_nomem(u->err);
    *b = (struct pv_box){ 0, 0 };
    return push(u, type, 0, (int64_t)u->boxes.count - 1);
}

static bool is_built_node(const struct unpickler *u, struct pv v)
{
    const struct pv_object *objects = u->objects.at;

    return v.type == PV_OBJECT && objects[v.num].global == PG_NODE &&
           objects[v.num].built;
}

/* Moves the top n values into the box below them. Python hashes keys here, so a node
 * must be whole by now. */
static int put_items(struct unpickler *u, enum pv_type type, size_t n)
{
    const size_t step = type == PV_DICT ? 2 : 1;
    struct pv *v = top(u, n) + 1;
    struct pv_box *box;
    struct pv_run *run;

    if (top(u, n)->type != type)
        return unpickle_refuse(u, "items for what is no %s",
                               type == PV_DICT ? "map" : "set");
    if (n % step)
        return unpickle_refuse(u, "a key without a value");
    for (size_t i = 0; i < n; i += step) {
        if (!is_built_node(u, v[i]) && (type == PV_SET || v[i].type != PV_STR))
            return unpickle_refuse(u, "a key that is neither a node nor a name");
    }
    if (n == 0)
        return 0;
    run = more(&u->runs, sizeof *run);
    if (!run)
        return err_nomem(u->err);
    *run = (struct pv_run){ (uint32_t)u->items.count, (uint32_t)n, 0 };
    for (size_t i = 0; i < n; i++) {
        struct pv *item = more(&u->items, sizeof *item);

        if (!item)
            return err_nomem(u->err);
        *item = v[i];
    }
    box = (struct pv_box *)u->boxes.at + top(u, n)->num;
    if (box->last_run)
        ((struct pv_run *)u->runs.at)[box->last_run - 1].next = (uint32_t)u->runs.count;
    else
        box->first_run = (uint32_t)u->runs.count;
    box->last_run = (uint32_t)u->runs.count;
    u->stack.count -= n;
    return 0;
}

bool box_next(const struct unpickler *u, uint32_t box, uint32_t *run, uint32_t *at,
              struct pv *item)
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

static int on_mark(struct unpickler *u)
{
    if (u->mark_count == ARRAY_LEN(u->marks))
        return unpickle_refuse(u, "nested too deeply");
    u->marks[u->mark_count++] = (uint32_t)u->stack.count;
    return 0;
}

static int on_items(struct unpickler *u, enum pv_type type)
{
    size_t n;

    if (u->mark_count == 0)
        return unpickle_refuse(u, "no mark");
    n = above_mark(u);
    u->mark_count--;
    if (above_mark(u) <= n)
        return unpickle_refuse(u, "nothing to put items into");
    return put_items(u, type, n);
}

static int on_setitem(struct unpickler *u)
{
    if (above_mark(u) < 3)
        return unpickle_refuse(u, "needs a map, a key and a value");
    return put_items(u, PV_DICT, 2);
}

static int on_build(struct unpickler *u)
{
    struct pv_object *o;
    uint32_t box;

    if (above_mark(u) < 2 || top(u, 0)->type != PV_DICT || top(u, 1)->type != PV_OBJECT)
        return unpickle_refuse(u, "needs an object and its fields");
    o = (struct pv_object *)u->objects.at + top(u, 1)->num;
    if (o->built)
        return unpickle_refuse(u, "an object that is filled in twice");
    box = (uint32_t)top(u, 0)->num;
    if (o->global == PG_NODE && unpickle_node(u, box, &o->node) < 0)
        return MUSTER_ESTATE;
    o->built = true;
    o->box = box;
    u->stack.count--;
    return 0;
}

static int on_tuple(struct unpickler *u, size_t n)
{
    const struct pv *v;

    if (above_mark(u) < n)
        return unpickle_refuse(u, "too few values");
    v = top(u, n - 1);
    u->stack.count -= n; /* push() reuses their place, so v is read before it */
    if (n == 1 && v[0].type == PV_DELTA)
        return push(u, PV_DELTA_ARGS, 0, 0);
    if (n == 1 && v[0].type == PV_BYTES)
        return push(u, PV_NAIVE_ARGS, 0, v[0].num);
    if (n == 2 && v[0].type == PV_BYTES && v[1].type == PV_UTC)
        return push(u, PV_TIME_ARGS, 0, v[0].num);
    if (n == 3 && v[0].type == PV_INT && v[1].type == PV_INT && v[2].type == PV_INT &&
        (v[0].num | v[1].num | v[2].num) == 0)
        return push(u, PV_ZEROS, 0, 0);
    return unpickle_refuse(u, "a tuple that no state has");
}

static int on_reduce(struct unpickler *u)
{
    struct pv call, args;
    int64_t us;

    if (above_mark(u) < 2 || top(u, 1)->type != PV_GLOBAL)
        return unpickle_refuse(u, "needs a type and its arguments");
    call = *top(u, 1);
    args = *top(u, 0);
    u->stack.count -= 2;
    if (call.num == PG_TIMEDELTA && args.type == PV_ZEROS)
        return push(u, PV_DELTA, 0, 0);
    if (call.num == PG_TIMEZONE && args.type == PV_DELTA_ARGS)
        return push(u, PV_UTC, 0, 0);
    if (call.num == PG_DATETIME && args.type == PV_NAIVE_ARGS)
        return unpickle_refuse(u,
                               "a time without a zone: a node of this run uses torch "
                               "<= 2.5, which later ones cannot share a run with; "
                               "upgrade it to torch 2.6 or later");
    if (call.num != PG_DATETIME || args.type != PV_TIME_ARGS)
        return unpickle_refuse(u, "a call that no state has");
    if (!pytime_read(u->in.p + args.num, &us))
        return unpickle_refuse(u, "no such date and time");
    return push(u, PV_TIME, (uint32_t)args.num, us);
}

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
        return on_global(u);
    case OP_EMPTY_TUPLE:
        return push(u, PV_TUPLE0, 0, 0);
    case OP_NEWOBJ:
        return on_newobj(u);
    case OP_EMPTY_DICT:
        return on_box(u, PV_DICT);
    case OP_EMPTY_SET:
        return on_box(u, PV_SET);
    case OP_MARK:
        return on_mark(u);
    case OP_BININT1:
    case OP_BININT2:
    case OP_BININT:
        return on_int(u);
    case OP_LONG1:
        return on_long(u);
    case OP_NEWTRUE:
        return push(u, PV_BOOL, 0, 1);
    case OP_NEWFALSE:
        return push(u, PV_BOOL, 0, 0);
    case OP_NONE:
        return push(u, PV_NONE, 0, 0);
    case OP_SHORT_BINBYTES:
        return on_bytes(u);
    case OP_SETITEM:
        return on_setitem(u);
    case OP_SETITEMS:
        return on_items(u, PV_DICT);
    case OP_ADDITEMS:
        return on_items(u, PV_SET);
    case OP_BUILD:
        return on_build(u);
    case OP_TUPLE1:
        return on_tuple(u, 1);
    case OP_TUPLE2:
        return on_tuple(u, 2);
    case OP_TUPLE3:
        return on_tuple(u, 3);
    case OP_REDUCE:
        return on_reduce(u);
    case OP_PROTO:
        return unpickle_refuse(u, "may only come first");
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
        return unpickle_refuse(u, "pickle protocol %u, known are 4 and 5", u->in.p[1]);
    u->pos = 2;
    return 0;
}

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
        return unpickle_refuse(u, "%zu bytes behind the end", u->in.n - u->pos);
    if (u->mark_count || u->stack.count != 1 || top(u, 0)->type != PV_OBJECT)
        return unpickle_refuse(u, "not one object is left");
    o = (struct pv_object *)u->objects.at + top(u, 0)->num;
    if (o->global != PG_STATE || !o->built)
        return unpickle_refuse(u, "what is left is no rendezvous state");
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
