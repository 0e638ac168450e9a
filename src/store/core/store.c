/* store.c - the step function; see store.h. The handlers are in ops.c. */
#include "store/core/store.h"

#include <assert.h>

#include "base/mem.h"
#include "store/core/ops.h"
#include "store/core/quote.h"
#include "store/core/reserved.h"

int reply_number(const struct ask *a, int64_t number)
{
    fx_reply(a->fx, a->peer,
             &(struct c10d_reply){ .op = a->req->op, .number = number });
    return 0;
}

int reply_value(const struct ask *a, struct span value)
{
    fx_reply(a->fx, a->peer, &(struct c10d_reply){ .op = a->req->op, .value = value });
    return 0;
}

void peer_leave(struct store *s, uint32_t peer, struct store_fx *fx)
{
    peer_drop_wait(s, peer);
    peer_pass_on(s, peer, fx);
}

int refuse_key(struct store *s, const struct ask *a, struct span key, const char *why)
{
    char text[QUOTE_MAX];

    fx_close(a->fx, a->peer, "%s of key %s: %s", c10d_op_name(a->req->op),
             quote(key, text), why);
    peer_leave(s, a->peer, a->fx);
    return 0;
}

int refuse_size(struct store *s, const struct ask *a, uint64_t size)
{
    fx_close(a->fx, a->peer, "%s: the answer would have %llu bytes, more than %zu",
             c10d_op_name(a->req->op), (unsigned long long)size, s->max_reply);
    peer_leave(s, a->peer, a->fx);
    return 0;
}

static int on_validate(struct store *s, const struct ask *a)
{
    (void)s;
    (void)a;
    return 0; /* The decoder has checked it, and it has no reply. */
}

static int on_ping(struct store *s, const struct ask *a)
{
    (void)s;
    fx_reply(a->fx, a->peer,
             &(struct c10d_reply){ .op = C10D_PING, .word = a->req->word });
    return 0;
}

static const struct {
    handler_fn run;
    bool takes_reserved; /* or has no key, or checks its keys itself */
} handlers[C10D_OP_COUNT] = {
    [C10D_VALIDATE] = { on_validate, true },
    [C10D_SET] = { on_set, false },
    [C10D_COMPARE_SET] = { on_compare_set, false },
    [C10D_GET] = { on_get, true },
    [C10D_ADD] = { on_add, false },
    [C10D_CHECK] = { on_check, true },
    [C10D_WAIT] = { on_wait, true },
    [C10D_GETNUMKEYS] = { on_num_keys, true },
    [C10D_DELETE_KEY] = { on_delete, false },
    [C10D_APPEND] = { on_append, false },
    [C10D_MULTI_GET] = { on_multi_get, true },
    [C10D_MULTI_SET] = { on_multi_set, true },
    [C10D_CANCEL_WAIT] = { on_cancel, true },
    [C10D_PING] = { on_ping, true },
    [C10D_QUEUE_PUSH] = { on_queue_push, false },
    [C10D_QUEUE_POP] = { on_queue_pop, false },
    [C10D_QUEUE_LEN] = { on_queue_len, false },
    [C10D_LIST_KEYS] = { on_list_keys, true },
    [C10D_BARRIER] = { on_barrier, false },
};

static int store_on_request(struct store *s, const struct store_event *ev,
                            struct store_fx *fx)
{
    const struct ask a = { ev->peer, ev->request, fx };
    const enum c10d_op op = ev->request->op;

    assert(op < C10D_OP_COUNT && handlers[op].run);
    if (ev->gives_up)
        peer_drop_wait(s, ev->peer);
    if (!handlers[op].takes_reserved && reserved_is_question(ev->request->name))
        return refuse_key(s, &a, ev->request->key, "the key is reserved");
    return handlers[op].run(s, &a);
}

/* Keys that a peer waits for stay, without a value or a queue. */
static int on_wipe(struct store *s, struct store_fx *fx)
{
    struct key *stay = NULL;
    struct map_link *l;

    if (fx_reserve(fx, s->waits) < 0)
        return MUSTER_ENOMEM;
    for (size_t i = 0; (l = map_next(&s->map, &i));) {
        struct key *k = key_of_link(l);

        if (k->present)
            value_drop(s, k);
        if (k->more) {
            queue_clear(k->more);
            queue_is_empty(s, k);
            waits_changed(s, k, fx);
        }
        if (waits_on(k)) {
            k->more->next = stay;
            stay = k;
        } else {
            key_free(k);
        }
    }
    map_clear(&s->map);
    assert(s->present == 0 && s->name_bytes == 0);
    s->hashed = NULL; /* That key may have been freed. */
    for (; stay; stay = stay->more->next)
        map_add(&s->map, key_link(stay));
    return 0;
}

int store_step(struct store *s, const struct store_event *ev, struct store_fx *fx)
{
    int rc = 0;

    fx_begin(fx);
    mem_free(s->popped);
    s->popped = NULL;
    switch (ev->kind) {
    case STORE_REQUEST:
        rc = store_on_request(s, ev, fx);
        break;
    case STORE_LEFT:
        peer_leave(s, ev->peer, fx);
        break;
    case STORE_WIPE:
        rc = on_wipe(s, fx);
        break;
    }
    assert(rc == 0 || rc == MUSTER_ENOMEM);
    assert(s->present <= s->map.count && s->waits <= s->peers_size);
    if (rc < 0)
        fx_begin(fx);
    return rc;
}

struct store *store_new(uint64_t seed, size_t max_reply)
{
    struct store *s = mem_calloc(1, sizeof *s);

    if (!s)
        return NULL;
    map_init(&s->map, seed);
    s->map.key_of = name_of_link;
    s->max_reply = max_reply;
    return s;
}

size_t store_key_count(const struct store *s)
{
    return s->present;
}

void store_free(struct store *s)
{
    struct map_link *l;

    if (!s)
        return;
    for (size_t i = 0; i < s->peers_size; i++) {
        mem_free(s->peers[i].wait); /* All keys are freed, too: no need to unlink. */
        mem_free(s->peers[i].unclaimed);
    }
    for (size_t i = 0; (l = map_next(&s->map, &i));)
        key_free(key_of_link(l));
    map_fini(&s->map);
    mem_free(s->peers);
    mem_free(s->popped);
    mem_free(s);
}

size_t store_num_waits(const struct store *s)
{
    return s->waits;
}
