/* etcd_store_ops.c - the requests to etcd that each operation of the store makes.
 *
 * All operations but the listings consist of get, put, delete and wait on one key at a
 * time. torch's EtcdStore lists the whole directory for each get, and that holds the
 * keys of all runs there ever were; our cost depends only on the keys that are asked
 * for. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/base64.h"
#include "base/err.h"
#include "base/mem.h"
#include "etcd/etcd_store_int.h"

#define REQUEST_MS 60000u

static void ask_key(struct etcd_store_call *c);

static uint64_t request_ms(const struct etcd_store_call *c)
{
    return MIN_OF(etcd_store_call_left(c), REQUEST_MS);
}

/* Ends the call if its request could not be started. */
static void started(struct etcd_store_call *c, int rc, const struct muster_error *err)
{
    if (rc < 0)
        etcd_store_call_fail(c, rc, err);
}

/* ---- Writing ---- */

static void on_held(void *ctx, int status, const struct etcd_held *held,
                    const struct muster_error *err);

/* Writes value, which is as the user gave it. */
static void put(struct etcd_store_call *c, struct span value, enum etcd_cond cond,
                uint64_t token, etcd_held_cb cb)
{
    struct etcd_store *s = etcd_store_of(c);
    struct muster_error err = { 0 };
    struct etcd_put p = { .path = buf_span(&c->path),
                          .value = value,
                          .cond = cond,
                          .token = token,
                          .lease = s->lease ? *s->lease : 0 };
    struct buf text;
    int rc = 0;

    buf_init(&text, SIZE_MAX);
    if (s->kv.api == ETCD_V2) {
        rc = base64_encode(&text, value);
        p.value = buf_len(&text) ? buf_span(&text) : span_of("", 0);
    }
    if (rc < 0)
        err_nomem(&err);
    else
        rc = etcd_kv_put(&s->kv, &p, request_ms(c), cb, c, &c->req, &err);
    buf_fini(&text);
    started(c, rc, &err);
}

static void on_set(void *ctx, int status, const struct etcd_held *held,
                   const struct muster_error *err)
{
    struct etcd_store_call *c = ctx;
    const struct c10d_reply reply = { .op = c->base.op };

    (void)held;
    c->req = NULL;
    if (status < 0)
        etcd_store_call_fail(c, status, err);
    else if (c->base.op == C10D_MULTI_SET && c10d_list_next(&c->list, &c->key))
        ask_key(c);
    else
        etcd_store_call_done(c, &reply);
}

static void on_deleted(void *ctx, int status, const struct etcd_held *held,
                       const struct muster_error *err)
{
    struct etcd_store_call *c = ctx;
    struct c10d_reply reply = { .op = c->base.op };

    c->req = NULL;
    if (status < 0) {
        etcd_store_call_fail(c, status, err);
        return;
    }
    reply.number = held->present;
    etcd_store_call_done(c, &reply);
}

/* ---- Read, change, write ---- */

/* c->out has the new value, which was made from the value that was read. If somebody
 * else wrote first, we start again from what they wrote. */
static void on_changed(void *ctx, int status, const struct etcd_held *held,
                       const struct muster_error *err)
{
    struct etcd_store_call *c = ctx;
    struct c10d_reply reply = { .op = c->base.op };

    c->req = NULL;
    if (status == MUSTER_EEXIST) {
        on_held(c, 0, held, err);
        return;
    }
    if (status < 0) {
        etcd_store_call_fail(c, status, err);
        return;
    }
    reply.value = buf_span(&c->out);
    if (c->base.op == C10D_ADD)
        reply.number = c->sum;
    etcd_store_call_done(c, &reply);
}

static void change(struct etcd_store_call *c, struct span value,
                   const struct etcd_held *held)
{
    put(c, value, held->present ? ETCD_IF_TOKEN : ETCD_IF_ABSENT, held->token,
        on_changed);
}

/* Reads the decimal number in c->out. */
static int number_of(const struct etcd_store_call *c, int64_t *out,
                     struct muster_error *err)
{
    char text[24];
    char *end = text;
    const size_t n = buf_len(&c->out);

    if (n > 0 && n < sizeof text) {
        memcpy(text, buf_data(&c->out), n);
        text[n] = '\0';
        errno = 0;
        *out = strtoll(text, &end, 10);
    }
    if (end == text || *end != '\0' || errno != 0)
        return err_set(err, MUSTER_EINVAL, "ADD to %.*s: its value is not a number",
                       (int)MIN_OF(c->key.n, 200u), (const char *)c->key.p);
    return 0;
}

static void add(struct etcd_store_call *c, const struct etcd_held *held)
{
    struct muster_error err = { 0 };
    int64_t old = 0;
    int rc = held->present ? number_of(c, &old, &err) : 0;

    if (rc == 0 && __builtin_add_overflow(old, c->base.copy.req.number, &c->sum))
        rc = err_set(&err, MUSTER_EINVAL, "ADD to %.*s: the sum is too large",
                     (int)MIN_OF(c->key.n, 200u), (const char *)c->key.p);
    buf_clear(&c->out);
    if (rc == 0 && buf_printf(&c->out, "%" PRId64, c->sum) < 0)
        rc = err_nomem(&err);
    if (rc < 0)
        etcd_store_call_fail(c, rc, &err);
    else
        change(c, buf_span(&c->out), held);
}

static void append(struct etcd_store_call *c, const struct etcd_held *held)
{
    struct muster_error err = { 0 };

    if (buf_append_span(&c->out, c->base.copy.req.value) < 0)
        etcd_store_call_fail(c, err_nomem(&err), &err);
    else
        change(c, buf_span(&c->out), held);
}

/* The rules of c10d's compareSet, which the rendezvous relies on. */
static void compare_set(struct etcd_store_call *c, const struct etcd_held *held)
{
    const struct span current = buf_span(&c->out);
    const struct c10d_reply reply = {
        .op = c->base.op, .value = held->present ? current : c->base.copy.req.expected
    };
    struct muster_error err = { 0 };

    if (held->present ? !span_eq(current, c->base.copy.req.expected)
                      : c->base.copy.req.expected.n != 0) {
        etcd_store_call_done(c, &reply);
        return;
    }
    buf_clear(&c->out);
    if (buf_append_span(&c->out, c->base.copy.req.value) < 0)
        etcd_store_call_fail(c, err_nomem(&err), &err);
    else
        change(c, c->base.copy.req.value, held);
}

/* ---- Reading ---- */

static void etcd_store_ops_on_waited(void *ctx, int status,
                                     const struct etcd_held *held,
                                     const struct muster_error *err)
{
    struct etcd_store_call *c = ctx;
    struct muster_error late = { 0 };

    (void)status; /* In any case read again; that fails if etcd cannot be reached. */
    (void)held;
    (void)err;
    c->req = NULL;
    if (etcd_store_call_left(c) > 0) {
        ask_key(c);
        return;
    }
    err_set(&late, MUSTER_ETIMEDOUT,
            c->base.op == C10D_GET
                ? "Key %.*s not found in EtcdStore (%s)"
                : "Timeout while waiting for keys in EtcdStore: %.*s (%s)",
            (int)MIN_OF(c->key.n, 200u), (const char *)c->key.p,
            etcd_store_of(c)->name);
    etcd_store_call_fail(c, MUSTER_ETIMEDOUT, &late);
}

static void missing(struct etcd_store_call *c, const struct etcd_held *held)
{
    struct muster_error err = { 0 };
    const struct c10d_reply no = { .op = c->base.op, .number = 1 };

    if (c->base.op == C10D_CHECK) {
        etcd_store_call_done(c, &no);
        return;
    }
    if (!c->block) {
        err_set(&err, MUSTER_ENOENT, "Key %.*s not found in EtcdStore (%s)",
                (int)MIN_OF(c->key.n, 200u), (const char *)c->key.p,
                etcd_store_of(c)->name);
        etcd_store_call_fail(c, MUSTER_ENOENT, &err);
        return;
    }
    started(c,
            etcd_kv_wait(&etcd_store_of(c)->kv, buf_span(&c->path), held->revision,
                         etcd_store_call_left(c), etcd_store_ops_on_waited, c, &c->req,
                         &err),
            &err);
}

/* The key exists: goes on to the next one, or answers. */
static void found(struct etcd_store_call *c)
{
    struct c10d_reply reply = { .op = c->base.op };

    c->found++;
    if (c->found < c->total && c10d_list_next(&c->list, &c->key)) {
        ask_key(c);
        return;
    }
    if (c->base.op == C10D_MULTI_GET)
        reply.list = (struct c10d_list){ buf_span(&c->out), c->found };
    else if (c->base.op == C10D_GET)
        reply.value = buf_span(&c->out);
    etcd_store_call_done(c, &reply);
}

/* Puts what etcd holds into c->out, as the user wrote it. If that fails the call has
 * failed, and c must not be used any more. */
static bool take_value(struct etcd_store_call *c, const struct etcd_held *held)
{
    struct muster_error err = { 0 };
    struct buf value;
    int rc;

    buf_init(&value, SIZE_MAX);
    rc = etcd_store_value(etcd_store_of(c), held->value, &value);
    if (rc == 0)
        rc = c->base.op == C10D_MULTI_GET ? c10d_list_add(&c->out, buf_span(&value))
                                          : buf_append_span(&c->out, buf_span(&value));
    buf_fini(&value);
    if (rc == 0)
        return true;
    err_set(&err, rc, "%s of %.*s: %s", c10d_op_name(c->base.op),
            (int)MIN_OF(c->key.n, 200u), (const char *)c->key.p,
            rc == MUSTER_ESTATE ? "its value is not base64, so it is not a store's"
                                : muster_code_text(rc));
    etcd_store_call_fail(c, rc, &err);
    return false;
}

static void on_held(void *ctx, int status, const struct etcd_held *held,
                    const struct muster_error *err)
{
    struct etcd_store_call *c = ctx;

    c->req = NULL;
    if (status < 0) {
        etcd_store_call_fail(c, status, err);
        return;
    }
    if (c->base.op != C10D_MULTI_GET)
        buf_clear(&c->out);
    if (held->present && !take_value(c, held))
        return;
    switch ((int)c->base.op) {
    case C10D_ADD:
        add(c, held);
        return;
    case C10D_APPEND:
        append(c, held);
        return;
    case C10D_COMPARE_SET:
        compare_set(c, held);
        return;
    }
    if (held->present)
        found(c);
    else
        missing(c, held);
}

static void on_listed(void *ctx, int status, const struct etcd_held *held,
                      const struct muster_error *err)
{
    struct etcd_store_call *c = ctx;
    struct c10d_reply reply = { .op = c->base.op };
    struct muster_error why = { 0 };
    int rc = 0;

    c->req = NULL;
    if (status < 0) {
        etcd_store_call_fail(c, status, err);
        return;
    }
    reply.number = (int64_t)held->count;
    for (size_t i = 0; rc == 0 && c->base.op == C10D_LIST_KEYS && i < held->count;
         i++) {
        struct buf key;

        buf_init(&key, SIZE_MAX);
        rc = etcd_store_value(etcd_store_of(c), held->items[i].key, &key);
        if (rc == 0)
            rc = c10d_list_add(&c->out, buf_span(&key));
        if (rc == MUSTER_ESTATE)
            rc = 0; /* It is not a key of the store. */
        else
            reply.list.count++;
        buf_fini(&key);
    }
    if (rc < 0) {
        etcd_store_call_fail(c, err_nomem(&why), &why);
        return;
    }
    reply.list.bytes = buf_span(&c->out);
    etcd_store_call_done(c, &reply);
}

/* ---- The request that each operation begins with ---- */

static void ask_key(struct etcd_store_call *c)
{
    const struct etcd_kv *kv = &etcd_store_of(c)->kv;
    struct muster_error err = { 0 };
    struct span value;
    int rc;

    buf_clear(&c->path);
    rc = etcd_store_path(etcd_store_of(c), c->key, &c->path);
    if (rc < 0) {
        etcd_store_call_fail(c, err_nomem(&err), &err);
        return;
    }
    switch ((int)c->base.op) {
    case C10D_SET:
        put(c, c->base.copy.req.value, ETCD_ALWAYS, 0, on_set);
        return;
    case C10D_MULTI_SET:
        if (!c10d_list_next(&c->list, &value))
            value = span_of("", 0);
        put(c, value, ETCD_ALWAYS, 0, on_set);
        return;
    case C10D_DELETE_KEY:
        rc = etcd_kv_delete(kv, buf_span(&c->path), false, request_ms(c), on_deleted, c,
                            &c->req, &err);
        break;
    case C10D_GETNUMKEYS:
    case C10D_LIST_KEYS:
        rc = etcd_kv_list(kv, span_str(etcd_store_of(c)->dir), request_ms(c), on_listed,
                          c, &c->req, &err);
        break;
    default:
        rc = etcd_kv_get(kv, buf_span(&c->path), request_ms(c), on_held, c, &c->req,
                         &err);
    }
    started(c, rc, &err);
}

void etcd_store_call_start(struct etcd_store_call *c)
{
    struct c10d_reply none = { .op = c->base.op };

    if (c->has_list && !c10d_list_next(&c->list, &c->key)) {
        none.list.bytes = span_of("", 0);
        etcd_store_call_done(c, &none);
        return;
    }
    ask_key(c);
}
