/* v2_wire.h - encodes requests of etcd's v2 interface and decodes its answers. torch's
 * etcd classes use this interface. */
#ifndef ETCD_CORE_V2_WIRE_H
#define ETCD_CORE_V2_WIRE_H

#include "etcd/core/http_message.h"

enum etcd2_verb { ETCD2_GET, ETCD2_PUT, ETCD2_DELETE };
enum etcd2_exist { ETCD2_ANY, ETCD2_MUST_EXIST, ETCD2_MUST_NOT_EXIST };

/* One request on a key. Fields that are zero are not sent. A value whose p is NULL
 * stands for none; one without bytes is the empty value. */
struct etcd2_request {
    enum etcd2_verb verb;
    struct span key; /* "/torch/elastic/..."; a "/" at its end is kept */
    struct span value;
    struct span prev_value;
    uint64_t prev_index;
    enum etcd2_exist prev_exist;
    uint64_t ttl_s;
    uint64_t wait_index; /* of a wait */
    bool dir, refresh;   /* PUT */
    bool wait, recursive;
    bool quorum; /* GET: ask the leader, as this member may be behind */
};

int etcd2_encode(struct etcd_msg *out, const struct etcd2_request *req);
int etcd2_encode_machines(struct etcd_msg *out); /* GET /v2/machines */

/* etcd's error codes that mean something to us. */
enum etcd2_error {
    ETCD2_KEY_NOT_FOUND = 100,
    ETCD2_COMPARE_FAILED = 101,
    ETCD2_NOT_A_FILE = 102,
    ETCD2_NOT_A_DIR = 104,
    ETCD2_EXISTS = 105,
    ETCD2_UNAUTHORIZED = 110,
    ETCD2_LEADER_ELECT = 301,
    ETCD2_RAFT_INTERNAL = 300,
    ETCD2_CLEARED = 401,
};

struct etcd2_node {
    struct span key, value; /* borrowed from the reply; value.p NULL: none */
    uint64_t modified_index;
    bool dir;
};

struct etcd2_reply {
    json_t *root; /* owned: all spans point into it */
    int error;    /* 0, or etcd's error code: then only message, cause, index are set */
    struct span message, cause;
    uint64_t index; /* X-Etcd-Index, or the index in an error */
    struct span action;
    struct etcd2_node node;
    struct etcd2_node *nodes; /* owned: direct children of node */
    size_t count;
};

/* Returns 0 also for an error that etcd reports (see reply->error), and a negative code
 * with the remedy in err if this is not the answer of a v2 interface. The caller calls
 * etcd2_reply_fini. */
int etcd2_decode(const struct etcd_http *http, struct etcd2_reply *out,
                 struct muster_error *err);
void etcd2_reply_fini(struct etcd2_reply *r);

/* Turns an error of etcd's into one of ours: MUSTER_ENOENT, EEXIST (a condition did not
 * hold), EACCES, ECONN (no leader: try again), ESTATE (cleared history), else EPROTO.
 */
int etcd2_error(const struct etcd2_reply *r, struct muster_error *err);

/* 0, or MUSTER_ENOTSTORE if this is not a list of machines. */
int etcd2_check_machines(const struct etcd_http *http, struct muster_error *err);

/* Takes the next URL of a /v2/machines answer, "http://10.0.0.1:2379"; false at the
 * end. Anything else in it is skipped. */
bool etcd2_machines_next(struct span *list, struct span *url);

#endif
