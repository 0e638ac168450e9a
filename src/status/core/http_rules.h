/* http_rules.h - decides who may see the page, by the client's user, the host name that
 * its browser used, and the key; and parses the address of --status-http. Pure. */
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

/* Whether the name in a Host header is a numeric address or localhost. A stranger's web
 * page can make the browser of the job's user send requests here under the stranger's
 * own host name (DNS rebinding), so a request under any other name is not taken for the
 * user's own. */
bool http_host_is_local(const char *host);

struct http_visit {
    bool same_user;     /* the client is the job's user, on this machine */
    const char *host;   /* header Host; NULL: none */
    const char *key;    /* given as ?key=; NULL: none */
    const char *bearer; /* header Authorization; NULL: none */
};

/* key: that of this job (64 hex digits), or "" for none. It is compared in constant
 * time. */
bool http_may_see(const struct http_visit *v, const char *key);

/* What a browser says of the page that a request comes from. */
struct http_origin {
    const char *host; /* header Host; NULL: none; so are the others */
    const char *site; /* Sec-Fetch-Site, which browsers send and pages cannot change */
    const char *origin; /* Origin */
    const char *agent;  /* User-Agent */
    bool from_our_page; /* X-Muster, which other sites' pages may not send to us */
};

/* Whether another site's page may have made the browser of the job's user send this. */
bool http_is_cross_site(const struct http_origin *o);

#endif
