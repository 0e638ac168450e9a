/* v3_wire.h - encodes requests of etcd's v3 interface for its JSON gateway, and decodes
 * the answers.
 *
 * On the wire keys and values are in base64, 64-bit numbers are text, and a field that
 * is zero, false or empty is absent. Callers see nothing of that. */
#ifndef ETCD_CORE_V3_WIRE_H
#define ETCD_CORE_V3_WIRE_H

#include "etcd/core/http_message.h"

enum etcd3_target { ETCD3_CREATE, ETCD3_MOD, ETCD3_VALUE };

struct etcd3_compare { /* equality only */
    enum etcd3_target target;
    struct span key;
    int64_t revision;  /* CREATE (0: the key does not exist), MOD */
    struct span value; /* VALUE */
};

enum etcd3_kind { ETCD3_RANGE, ETCD3_PUT, ETCD3_DELETE };

struct etcd3_op {
    enum etcd3_kind kind;
    struct span key;
    struct span end;   /* RANGE, DELETE: up to here, exclusive; none: only the key */
    struct span value; /* PUT */
    int64_t lease;     /* PUT: 0: none */
    int64_t limit;     /* RANGE: 0: all */
    bool keys_only;    /* RANGE */
};

/* If all compares hold, etcd does the ops of yes, else those of no; all of them or
 * none. Without compares it does those of yes. */
struct etcd3_txn {
    const struct etcd3_compare *compare; /* all borrowed */
    size_t compare_count;
    const struct etcd3_op *yes;
    size_t yes_count;
    const struct etcd3_op *no;
    size_t no_count;
};

int etcd3_encode_txn(struct etcd_msg *out, const struct etcd3_txn *txn);
int etcd3_encode_range(struct etcd_msg *out, const struct etcd3_op *op);
int etcd3_encode_grant(struct etcd_msg *out, int64_t id, int64_t ttl_s);
int etcd3_encode_keepalive(struct etcd_msg *out, int64_t id);
int etcd3_encode_revoke(struct etcd_msg *out, int64_t id);
int etcd3_encode_auth(struct etcd_msg *out, struct span name, struct span password);
int etcd3_encode_watch(struct etcd_msg *out, struct span key, struct span end,
                       bool only_ends, int64_t start_revision); /* 0: from now on */

/* Appends the end of the range of all keys that begin with prefix. */
int etcd3_prefix_end(struct buf *out, struct span prefix);

struct etcd3_kv {
    struct span key, value; /* borrowed from the reply */
    int64_t create_revision, mod_revision, version, lease;
};

struct etcd3_result {
    enum etcd3_kind kind;
    struct etcd3_kv *kvs; /* owned by the reply */
    size_t count;
    int64_t total;   /* RANGE: how many there are, also beyond a limit */
    int64_t deleted; /* DELETE */
};

struct etcd3_event {
    struct etcd3_kv kv;
    bool deleted; /* or expired */
};

/* gRPC's status codes that mean something to us. */
enum etcd3_code {
    ETCD3_CANCELED = 1,
    ETCD3_DEADLINE = 4,
    ETCD3_NOT_FOUND = 5,
    ETCD3_DENIED = 7,
    ETCD3_EXHAUSTED = 8,
    ETCD3_PRECONDITION = 9,
    ETCD3_OUT_OF_RANGE = 11,
    ETCD3_UNAVAILABLE = 14,
    ETCD3_UNAUTHENTICATED = 16,
};

struct etcd3_reply {
    json_t *root;   /* owned */
    uint8_t *arena; /* owned: the decoded keys and values */
    size_t used;
    int error; /* 0, or gRPC's code: then only message is set */
    struct span message;
    int64_t revision;             /* of the header; 0 if absent */
    bool succeeded;               /* txn */
    struct etcd3_result *results; /* owned; a bare range has one */
    size_t count;
    int64_t lease_id, lease_ttl; /* grant, keep-alive; ttl 0: the lease is gone */
    struct span token;           /* authenticate */
    bool created, canceled;      /* watch */
    int64_t compact_revision;
    struct etcd3_event *events; /* owned; watch */
    size_t event_count;
};

enum etcd3_expect {
    ETCD3_EXPECT_TXN,
    ETCD3_EXPECT_RANGE,
    ETCD3_EXPECT_LEASE,
    ETCD3_EXPECT_TOKEN,
    ETCD3_EXPECT_WATCH, /* one line of the stream */
};

/* Returns 0 also for an error that etcd reports (see reply->error), and a negative code
 * with the remedy in err if this is not the answer of a v3 gateway. The caller calls
 * etcd3_reply_fini. */
int etcd3_decode(const struct etcd_http *http, enum etcd3_expect expect,
                 struct etcd3_reply *out, struct muster_error *err);
void etcd3_reply_fini(struct etcd3_reply *r);

/* Turns an error of etcd's into one of ours, with the remedy: MUSTER_ENOENT (lease
 * gone), EACCES, EFULL (NOSPACE alarm), ECONN (no leader, no quorum: try again),
 * ETIMEDOUT, EINVAL (too large), ESTATE (compacted), else EPROTO. */
int etcd3_error(const struct etcd3_reply *r, struct muster_error *err);

/* Whether the error means that users or roles have changed since our token was made,
 * which makes all signed tokens (--auth-token=jwt) invalid. */
bool etcd3_token_outdated(const struct etcd3_reply *r);

/* Finds the next whole line of a stream; false if more bytes are needed. The caller
 * removes it from the buffer (line.n + 1 bytes). *seen, zero at first, has how far
 * earlier calls have searched. */
bool etcd3_next_line(struct span in, size_t *seen, struct span *line);

#endif
