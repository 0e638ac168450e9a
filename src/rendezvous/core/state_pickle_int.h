/* state_pickle_int.h - what the pickle's reader and writer share. */
#ifndef RENDEZVOUS_CORE_STATE_PICKLE_INT_H
#define RENDEZVOUS_CORE_STATE_PICKLE_INT_H

#include "base/err.h"
#include "base/mem.h"
#include "rendezvous/core/state_pickle.h"

#define PICKLE_MODULE "torch.distributed.elastic.rendezvous.dynamic_rendezvous"

/* X(name, byte): the opcodes a state has; all others are refused. */
#define PICKLE_OPS(X)                                                                  \
    X(PROTO, 0x80)                                                                     \
    X(FRAME, 0x95)                                                                     \
    X(SHORT_BINUNICODE, 0x8c)                                                          \
    X(BINUNICODE, 0x58)                                                                \
    X(MEMOIZE, 0x94)                                                                   \
    X(BINGET, 0x68)                                                                    \
    X(LONG_BINGET, 0x6a)                                                               \
    X(STACK_GLOBAL, 0x93)                                                              \
    X(EMPTY_TUPLE, 0x29)                                                               \
    X(NEWOBJ, 0x81)                                                                    \
    X(EMPTY_DICT, 0x7d)                                                                \
    X(EMPTY_SET, 0x8f)                                                                 \
    X(MARK, 0x28)                                                                      \
    X(BININT1, 0x4b)                                                                   \
    X(BININT2, 0x4d)                                                                   \
    X(BININT, 0x4a)                                                                    \
    X(LONG1, 0x8a)                                                                     \
    X(NEWTRUE, 0x88)                                                                   \
    X(NEWFALSE, 0x89)                                                                  \
    X(NONE, 0x4e)                                                                      \
    X(SHORT_BINBYTES, 0x43)                                                            \
    X(SETITEM, 0x73)                                                                   \
    X(SETITEMS, 0x75)                                                                  \
    X(ADDITEMS, 0x90)                                                                  \
    X(BUILD, 0x62)                                                                     \
    X(TUPLE1, 0x85)                                                                    \
    X(TUPLE2, 0x86)                                                                    \
    X(TUPLE3, 0x87)                                                                    \
    X(REDUCE, 0x52)                                                                    \
    X(STOP, 0x2e)

enum pickle_op {
#define PICKLE_OP_ENUM(name, byte) OP_##name = byte,
    PICKLE_OPS(PICKLE_OP_ENUM)
#undef PICKLE_OP_ENUM
};

/* What can be on the stack. A state needs only these shapes, so each tuple and each
 * call has a type of its own, and there is no general object. */
enum pv_type {
    PV_NONE,
    PV_BOOL,
    PV_INT,
    PV_STR,        /* num: offset, len */
    PV_BYTES,      /* num: offset of ten bytes, a date and time */
    PV_GLOBAL,     /* num: enum pickle_global */
    PV_TUPLE0,     /* () */
    PV_OBJECT,     /* num: index into objects */
    PV_DICT,       /* num: index into boxes */
    PV_SET,        /* num: index into boxes */
    PV_ZEROS,      /* (0, 0, 0) */
    PV_DELTA,      /* timedelta(0, 0, 0) */
    PV_DELTA_ARGS, /* (timedelta,) */
    PV_UTC,        /* timezone(timedelta) */
    PV_TIME_ARGS,  /* (bytes, utc); num: offset of the bytes */
    PV_NAIVE_ARGS, /* (bytes,): a time without a zone */
    PV_TIME,       /* num: microseconds since 1970; len: offset of its bytes */
};

enum pickle_global { PG_STATE, PG_NODE, PG_DATETIME, PG_TIMEZONE, PG_TIMEDELTA };

struct pv {
    uint8_t type;
    uint32_t len;
    int64_t num;
};

/* A dict or set: runs of items, in the order they came. */
struct pv_run {
    uint32_t first, count; /* into items; a dict has keys and values in turn */
    uint32_t next;         /* the next run, plus one; 0: none */
};

struct pv_box {
    uint32_t first_run, last_run; /* plus one; 0: none */
};

struct pv_object {
    uint8_t global; /* PG_STATE or PG_NODE */
    bool built;
    struct rdzv_node node; /* PG_NODE, built */
    uint32_t box;          /* PG_STATE, built: its fields */
};

struct pv_array {
    void *at; /* owned */
    size_t count, room;
};

struct unpickler {
    struct span in;
    size_t pos;   /* after what was read so far */
    size_t op_at; /* offset of the opcode that is being executed */
    uint8_t op;   /* its value */
    struct pv_array stack, memo, items; /* of struct pv */
    struct pv_array runs, boxes, objects;
    uint32_t marks[8];
    size_t mark_count;
    struct muster_error *err;
};

static inline struct span pv_span(const struct unpickler *u, struct pv v)
{
    return span_of(u->in.p + v.num, v.len);
}

/* Returns room for one more entry of the given size, or NULL. */
static inline void *pv_more(struct pv_array *a, size_t size)
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

static inline int pv_push(struct unpickler *u, enum pv_type type, uint32_t len,
                          int64_t num)
{
    struct pv *v = pv_more(&u->stack, sizeof *v);

    if (!v)
        return err_nomem(u->err);
    *v = (struct pv){ (uint8_t)type, len, num };
    return 0;
}

/* How many values are above the last mark. */
static inline size_t pv_above_mark(const struct unpickler *u)
{
    return u->stack.count - (u->mark_count ? u->marks[u->mark_count - 1] : 0);
}

static inline struct pv *pv_top(struct unpickler *u, size_t below)
{
    return (struct pv *)u->stack.at + u->stack.count - 1 - below;
}

#endif
