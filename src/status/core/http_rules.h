/* http_rules.h - who may see the page, decided: the address of --status-http, the name
 * by which a browser came, and the key. Pure. */
#ifndef STATUS_CORE_HTTP_RULES_H
#define STATUS_CORE_HTTP_RULES_H

#include "base/base.h"
#include "muster/error.h"

/* --status-http: "ADDR:PORT", "[V6]:PORT", ":PORT" or "PORT"; without an address it is
 * loopback. */
struct http_address {
    char host[64]; /* numeric; "127.0.0.1" if not given */
    uint16_t port; /* 0: any free one */
};

int http_address_parse(const char *text, struct http_address *out,
                       struct muster_error *err);

/* Whether the name in a Host header can only be this very machine's: a numeric address,
 * or localhost. A web page of a stranger can make a browser of the job's user send
 * requests here under the stranger's own name (DNS rebinding); such a name is not
 * enough to be taken for the user. */
bool http_host_is_local(const char *host);

struct http_visit {
    bool same_user;     /* over loopback, the job's own user */
    const char *host;   /* header Host; NULL: none */
    const char *key;    /* given as ?key=; NULL: none */
    const char *bearer; /* header Authorization; NULL: none */
};

/* The key that this job has (64 hex digits), "" for none. Compares in constant time. */
bool http_may_see(const struct http_visit *v, const char *key);

#endif
