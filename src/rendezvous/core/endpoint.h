/* endpoint.h - `<host>[:<port>]` as torch reads it. */
#ifndef RENDEZVOUS_CORE_ENDPOINT_H
#define RENDEZVOUS_CORE_ENDPOINT_H

#include "base/base.h"
#include "muster/error.h"

#define RDZV_C10D_PORT 29400
#define RDZV_ETCD_PORT 2379

struct endpoint {
    char host[1025]; /* without brackets; as long as getaddrinfo() allows */
    int32_t port;    /* default_port, which may be -1, if the text has none */
};

/* A decimal number from 0 to 65535, of at most five digits. */
bool port_parse(struct span s, int32_t *out);

/* Like torch: an empty text is localhost, and a bare IPv6 address is cut at its last
 * colon (`::1` is host `:`, port 1), so IPv6 addresses need brackets. text may be
 * NULL. */
int endpoint_parse(const char *text, int32_t default_port, struct endpoint *out,
                   struct muster_error *err);

#endif
