/* requests.c - see requests.h. */
#include "etcd/legacy/core/requests.h"

#define REQUEST_MS 10000u
#define POLL_MS    20000u /* one long poll */
#define LATE_MS    1000u

/* A conditional write is not repeated if it may have been done: whether a document with
 * one more rank is ours or another node's, nobody can tell. */
struct legacy_manner legacy_manner_of(const struct legacy_effect *e)
{
    const struct etcd2_request *r = &e->request;

    return (struct legacy_manner){
        .timeout_ms = r->wait ? MIN_OF(e->timeout_ms, POLL_MS) : REQUEST_MS,
        .attempt_ms = r->wait ? POLL_MS : 0,
        .once = r->verb != ETCD2_GET || r->wait,
    };
}

static bool fatal(int code)
{
    return code == MUSTER_EACCES || code == MUSTER_ENOTSUP || code == MUSTER_EINVAL ||
           code == MUSTER_ENOTSTORE;
}

bool legacy_reply(struct legacy_event *ev, bool waiting, int status,
                  const struct etcd_answer *answer, const struct muster_error *err)
{
    const struct etcd2_reply *r = answer ? answer->v2 : NULL;

    *ev = (struct legacy_event){ .kind = LEGACY_EV_REPLY,
                                 .code = status,
                                 .fatal = fatal(status),
                                 .text = err ? err->text : NULL };
    if (waiting && !answer && !ev->fatal && status != MUSTER_ETIMEDOUT) {
        *ev =
            (struct legacy_event){ .kind = LEGACY_EV_REPLY, .code = MUSTER_ETIMEDOUT };
        return true;
    }
    if (r) {
        ev->value = r->node.value;
        ev->modified_index = r->node.modified_index;
        ev->index = MAX_OF(r->index, r->node.modified_index);
        ev->nodes = r->nodes;
        ev->count = r->count;
    }
    return false;
}

void legacy_keep_init(struct legacy_keep *k)
{
    *k = (struct legacy_keep){ .on = false };
    buf_init(&k->path, SIZE_MAX);
}

void legacy_keep_fini(struct legacy_keep *k)
{
    buf_fini(&k->path);
}

int legacy_keep_start(struct legacy_keep *k, const struct legacy_effect *e)
{
    k->on = false;
    buf_clear(&k->path);
    if (buf_append_span(&k->path, e->path) < 0)
        return MUSTER_ENOMEM;
    k->ttl_s = e->ttl_s;
    k->on = true;
    return 0;
}

int legacy_keep_encode(const struct legacy_keep *k, struct etcd_msg *m)
{
    const struct etcd2_request req = { .verb = ETCD2_PUT,
                                       .key = buf_span(&k->path),
                                       .ttl_s = k->ttl_s,
                                       .refresh = true,
                                       .prev_exist = ETCD2_MUST_EXIST };

    return etcd2_encode(m, &req);
}

uint64_t legacy_keep_timeout_ms(const struct legacy_keep *k)
{
    return k->ttl_s * 1000 / 2;
}

uint64_t legacy_keep_answer(struct legacy_keep *k, int status)
{
    if (status == MUSTER_ENOENT) {
        k->on = false; /* Too late: the others will see it, and so will the core. */
        return MONO_NEVER;
    }
    return status < 0 ? LATE_MS : k->ttl_s * 1000 / 2;
}
