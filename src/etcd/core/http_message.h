/* http_message.h - what both of etcd's HTTP interfaces share: a request ready to be
 * sent, an answer as it came, and careful reading of JSON from a stranger. */
#ifndef ETCD_CORE_HTTP_MESSAGE_H
#define ETCD_CORE_HTTP_MESSAGE_H

#include <jansson.h>

#include "base/buf.h"
#include "muster/error.h"

#define ETCD_MAX_ANSWER (64u << 20) /* a listing of a large directory, with room */

struct etcd_msg {
    const char *method; /* static */
    const char *type;   /* static: of the body; NULL if there is none */
    struct buf path;    /* owned; escaped, with query, starts with "/", ends in NUL */
    struct buf body;    /* owned */
};

void etcd_msg_init(struct etcd_msg *m);
void etcd_msg_fini(struct etcd_msg *m);

/* Whether a piece of it could not be appended: 0, or why. */
static inline int etcd_msg_error(const struct etcd_msg *m)
{
    return buf_error(&m->path) ? buf_error(&m->path) : buf_error(&m->body);
}

/* An answer of a server, or of whatever listens at that address. */
struct etcd_http {
    long status;
    uint64_t index;   /* X-Etcd-Index, 0 if absent */
    struct span body; /* borrowed */
};

/* Percent-encodes all but letters, digits and "-._~" and, if slash is true, "/". */
int etcd_escape(struct buf *out, struct span s, bool slash);

/* Parses the body as one JSON object: a new reference, or NULL with err saying what
 * answered instead: a web page, a cut-off text, another service. */
json_t *etcd_parse(const struct etcd_http *http, struct muster_error *err);

/* Says in err who seems to have answered, if not etcd. MUSTER_ENOTSTORE. */
int etcd_stranger(const struct etcd_http *http, struct muster_error *err);
bool etcd_is_html(struct span body);

/* All of these take a missing member for zero, false or nothing, as proto3 writes them,
 * and fail with MUSTER_EPROTO on a member of another type. */
int etcd_get_i64(const json_t *o, const char *name, int64_t *out,
                 struct muster_error *err); /* a number, or decimal text */
int etcd_get_bool(const json_t *o, const char *name, bool *out,
                  struct muster_error *err);
int etcd_get_text(const json_t *o, const char *name, struct span *out,
                  struct muster_error *err); /* borrowed from o; p NULL if absent */
int etcd_get_object(const json_t *o, const char *name, const json_t **out,
                    struct muster_error *err);
int etcd_get_array(const json_t *o, const char *name, const json_t **out,
                   struct muster_error *err);

#endif
