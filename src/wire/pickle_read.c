/* pickle_read.c - the pickle machine, as much of it as a state needs: plain values, the
 * memo, and the way from opcode to opcode; see pickle.h. What is built of other values
 * is in pickle_objects.c.
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

/* ---- Plain values, and the memo ---- */

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
        return unpickle_refuse(u, "%u bytes where a time has ten", p[0]);
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
        return unpickle_refuse(u, "nothing to remember");
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
        return unpickle_refuse(u, "a map or set that is in two places");
    return pv_push(u, (enum pv_type)v.type, v.len, v.num);
}

/* ---- From opcode to opcode ---- */

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
    if (u->mark_count || u->stack.count != 1 || pv_top(u, 0)->type != PV_OBJECT)
        return unpickle_refuse(u, "not one object is left");
    o = (struct pv_object *)u->objects.at + pv_top(u, 0)->num;
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
