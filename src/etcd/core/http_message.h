/* http_message.h - what both of etcd's HTTP interfaces share: a request ready to be
 * sent, an answer as it came, and functions that read JSON without trusting it. */
#ifndef ETCD_CORE_HTTP_MESSAGE_H
#define ETCD_CORE_HTTP_MESSAGE_H

#include <jansson.h>

#include "base/buf.h"
#include "muster/error.h"

#define ETCD_MAX_ANSWER (64u << 20) /* more than a large directory's listing needs */

struct etcd_msg {
    const char *method; /* static */
    const char *type;   /* static: of the body; NULL if there is none */
    struct buf path;    /* owned; escaped, with query, starts with "/", ends in NUL */
    struct buf body;    /* owned */
};

void etcd_msg_init(struct etcd_msg *m);
void etcd_msg_fini(struct etcd_msg *m);

/* 0, or the error of the first part that could not be appended. */
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

/* Parses the body as one JSON object. Returns a new reference, or NULL; err then says
 * what the answer seems to be: a web page, truncated text, another service's. */
json_t *etcd_parse(const struct etcd_http *http, struct muster_error *err);

/* Sets err for an answer that is not etcd's, with what it seems to be.
 * MUSTER_ENOTSTORE. */
int etcd_wrong_service(const struct etcd_http *http, struct muster_error *err);
bool etcd_is_html(struct span body);

/* A member of a JSON object, and where its value goes. A member that is missing counts
 * as zero, false or nothing, as in proto3's JSON. One of another type is MUSTER_EPROTO.
 */
enum etcd_type {
    ETCD_NUMBER, /* int64_t: a number, or decimal text */
    ETCD_INDEX,  /* likewise, but not negative: int64_t or uint64_t */
    ETCD_BOOL,
    ETCD_TEXT,   /* struct span, borrowed from the object; p NULL if absent */
    ETCD_OBJECT, /* const json_t *, borrowed, or NULL */
    ETCD_ARRAY,  /* likewise */
};

struct etcd_member {
    const char *name;
    enum etcd_type type;
    size_t at; /* in the struct that is filled in */
};

/* Reads the members of a table, in its order, until one is wrong. */
int etcd_read(const json_t *o, const struct etcd_member *members, size_t count,
              void *to, struct muster_error *err);
int etcd_read_one(const json_t *o, const char *name, enum etcd_type type, void *to,
                  struct muster_error *err);

/* Allocates an array of items of `size` bytes for the elements of a list, which may be
 * NULL or empty: then there is none. */
int etcd_make_items(const json_t *list, size_t size, void *items, size_t *count,
                    struct muster_error *err);

#endif
