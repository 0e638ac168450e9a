/* pickle_objects.c - the opcodes that make values of other values: globals, nodes and
 * states, maps and sets, tuples and the calls that make a time. See pickle_read.c.
 *
 * Only the shapes that a state has are taken; a name that is not one of torch's or
 * datetime's is refused, and nothing is ever called. */
#include "base/err.h"
#include "wire/pickle_int.h"
#include "wire/pytime.h"

/* ---- Globals and objects ---- */

int unpickle_global(struct unpickler *u)
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
            u->stack.count -= 2;
            return pv_push(u, PV_GLOBAL, 0, (int64_t)i);
        }
    }
    return unpickle_refuse(
        u,
        "refers to %.*s.%.*s: not a rendezvous state; if nobody else "
        "uses this run id, somebody tampers with the store",
        (int)MIN_OF(module.n, 80), (const char *)module.p, (int)MIN_OF(name.n, 80),
        (const char *)name.p);
}

int unpickle_newobj(struct unpickler *u)
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
    *o = (struct pv_object){ .global = (uint8_t) class.num };
    u->stack.count -= 2;
    return pv_push(u, PV_OBJECT, 0, (int64_t)u->objects.count - 1);
}

int unpickle_build(struct unpickler *u)
{
    struct pv_object *o;
    uint32_t box;

    if (pv_above_mark(u) < 2 || pv_top(u, 0)->type != PV_DICT ||
        pv_top(u, 1)->type != PV_OBJECT)
        return unpickle_refuse(u, "needs an object and its fields");
    o = (struct pv_object *)u->objects.at + pv_top(u, 1)->num;
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

int unpickle_box(struct unpickler *u, enum pv_type type)
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

/* Moves the top n values into the box below them. Python hashes keys here, so a node
 * must be whole by now. */
static int put_items(struct unpickler *u, enum pv_type type, size_t n)
{
    const size_t step = type == PV_DICT ? 2 : 1;
    struct pv *v = pv_top(u, n) + 1;
    struct pv_box *box;
    struct pv_run *run;

    if (pv_top(u, n)->type != type)
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

int unpickle_mark(struct unpickler *u)
{
    if (u->mark_count == ARRAY_LEN(u->marks))
        return unpickle_refuse(u, "nested too deeply");
    u->marks[u->mark_count++] = (uint32_t)u->stack.count;
    return 0;
}

int unpickle_items(struct unpickler *u, enum pv_type type)
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

int unpickle_setitem(struct unpickler *u)
{
    if (pv_above_mark(u) < 3)
        return unpickle_refuse(u, "needs a map, a key and a value");
    return put_items(u, PV_DICT, 2);
}

/* ---- Tuples and calls ---- */

int unpickle_tuple(struct unpickler *u, size_t n)
{
    const struct pv *v;

    if (pv_above_mark(u) < n)
        return unpickle_refuse(u, "too few values");
    v = pv_top(u, n - 1);
    u->stack.count -= n; /* pv_push() reuses their place, so v is read before it */
    if (n == 1 && v[0].type == PV_DELTA)
        return pv_push(u, PV_DELTA_ARGS, 0, 0);
    if (n == 1 && v[0].type == PV_BYTES)
        return pv_push(u, PV_NAIVE_ARGS, 0, v[0].num);
    if (n == 2 && v[0].type == PV_BYTES && v[1].type == PV_UTC)
        return pv_push(u, PV_TIME_ARGS, 0, v[0].num);
    if (n == 3 && v[0].type == PV_INT && v[1].type == PV_INT && v[2].type == PV_INT &&
        (v[0].num | v[1].num | v[2].num) == 0)
        return pv_push(u, PV_ZEROS, 0, 0);
    return unpickle_refuse(u, "a tuple that no state has");
}

int unpickle_reduce(struct unpickler *u)
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
        return unpickle_refuse(u,
                               "a time without a zone: a node of this run uses torch "
                               "<= 2.5, which later ones cannot share a run with; "
                               "upgrade it to torch 2.6 or later");
    if (call.num != PG_DATETIME || args.type != PV_TIME_ARGS)
        return unpickle_refuse(u, "a call that no state has");
    if (!pytime_read(u->in.p + args.num, &us))
        return unpickle_refuse(u, "no such date and time");
    return pv_push(u, PV_TIME, (uint32_t)args.num, us);
}
