/* kv_operation.h - one operation on a key of etcd, for v2 and v3: what to send, what an
 * answer means, and whether to send another request.
 *
 * Pure: etcd/kv.c sends what it encodes and passes it the answers; the simulator does
 * the same on a model of a cluster. Paths are whole keys, "/torch/elastic/..."; values
 * of v2 must be text. */
#ifndef ETCD_CORE_KV_OPERATION_H
#define ETCD_CORE_KV_OPERATION_H

#include "etcd/core/v2_wire.h"
#include "etcd/core/v3_wire.h"

enum etcd_api { ETCD_V2, ETCD_V3 };

/* A decoded answer: v2 or v3, borrowed for the call; the other one is NULL. */
struct etcd_answer {
    const struct etcd2_reply *v2;
    const struct etcd3_reply *v3;
    struct span body; /* of a raw answer */
};

enum etcd_cond { ETCD_ALWAYS, ETCD_IF_ABSENT, ETCD_IF_TOKEN };

struct etcd_item {
    struct span key, value; /* key: without the directory; borrowed */
    uint64_t token;
};

/* What etcd holds after the operation; borrowed from the answer and the operation. */
struct etcd_held {
    bool present;
    struct span value;
    uint64_t token;
    uint64_t revision;             /* of the whole store: wait for changes after it */
    const struct etcd_item *items; /* listing */
    size_t count;
};

struct etcd_put {
    struct span path, value;
    enum etcd_cond cond;
    uint64_t token;
    uint64_t ttl_s;         /* v2; 0: for ever */
    int64_t lease;          /* v3; 0: none */
    struct span change_key; /* v3: a key without a value that is written, too, so that
                               a watch of it reports each write without carrying the
                               value; may be none */
    bool unique; /* Nobody else writes this value. So a conditional write can be
                    repeated if its answer was lost: we recognize our own value. */
};

enum kv_operation_kind {
    KV_OPERATION_GET,
    KV_OPERATION_PUT,
    KV_OPERATION_DELETE,
    KV_OPERATION_LIST, /* the keys directly below path, which ends in "/" */
    KV_OPERATION_WAIT, /* for a change after `revision`; v2 only: v3 uses a stream */
};

struct kv_operation {
    enum etcd_api api;
    enum kv_operation_kind kind;
    struct span path;        /* owned */
    struct span value;       /* owned: of a put */
    struct span change_key;  /* owned */
    struct etcd_item *items; /* owned: of a listing */
    enum etcd_cond cond;
    uint64_t token, revision, ttl_s;
    int64_t lease;
    bool directory; /* DELETE: with all below it */
    bool unique;    /* see struct etcd_put */
    bool checking;  /* v2: the condition of a put failed; now we read what is there */
};

/* Both copy what they are given. After MUSTER_ENOMEM there is nothing to finish. */
int kv_operation_init(struct kv_operation *a, enum etcd_api api,
                      enum kv_operation_kind kind, struct span path);
int kv_operation_init_put(struct kv_operation *a, enum etcd_api api,
                          const struct etcd_put *put);
void kv_operation_fini(struct kv_operation *a);

/* The request to send now. 0 or MUSTER_ENOMEM. */
int kv_operation_encode(const struct kv_operation *a, struct etcd_msg *m);
enum etcd3_expect kv_operation_expect(const struct kv_operation *a); /* v3 */

/* Whether the request must not be repeated once it may have reached a server. The
 * repetition of a conditional write whose answer was lost would fail because of the
 * first one, and we could recognize that only by a unique value. */
bool kv_operation_once(const struct kv_operation *a);

/* Takes an answer: *status is that of etcd2_error() or etcd3_error(); answer is NULL if
 * there was none. Returns true if the operation is done; *status is then 0,
 * MUSTER_EEXIST (the condition of a write did not hold, and held is what is there), or
 * the error. Returns false if another request is to be encoded and sent. A missing key
 * is not a failure: held says that it is not present. */
bool kv_operation_answer(struct kv_operation *a, int *status,
                         const struct etcd_answer *answer, struct etcd_held *held);

#endif
