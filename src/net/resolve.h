/* resolve.h - host names to addresses, off the loop.
 *
 * getaddrinfo cannot be interrupted and may take minutes when a name server is dead. It
 * runs on a thread of its own that nothing waits for: a lookup that is cancelled is
 * forgotten at once, and the loop can close while the thread still runs. Numeric
 * addresses and localhost need neither thread nor resolver. */
#ifndef NET_RESOLVE_H
#define NET_RESOLVE_H

#include <sys/socket.h>
#include <uv.h>

#include "base/base.h"
#include "muster/error.h"

#define RESOLVE_MAX 64 /* addresses of one name; those beyond are ignored */

struct resolve; /* one lookup */

/* status is 0 and the addresses are in the resolver's order, borrowed until the
 * callback returns; or status is MUSTER_ERESOLVE or MUSTER_ENOMEM. The lookup is gone
 * by then. */
typedef void (*resolve_cb)(void *ctx, int status, const struct sockaddr_storage *addrs,
                           size_t count, const struct muster_error *err);

/* The callback comes once, from the loop, never from inside the call. There is no
 * deadline: a caller that has one cancels. */
int resolve_start(uv_loop_t *loop, const char *host, uint16_t port, resolve_cb cb,
                  void *ctx, struct resolve **out, struct muster_error *err);

/* No callback will come. NULL is fine. */
void resolve_cancel(struct resolve *r);

/* True and the address if host is numeric: "10.0.0.1", "::1", "fe80::1%eth0". */
bool resolve_numeric(const char *host, uint16_t port, struct sockaddr_storage *out);

/* "10.0.0.1:29400", "[::1]:29400". IPv4 mapped into IPv6 is shown as IPv4. */
#define ADDRESS_TEXT 80
void address_text(const struct sockaddr *sa, char out[ADDRESS_TEXT]);

/* "host:29400", "[::1]:29400": brackets where the host has colons. */
#define ENDPOINT_TEXT 300
void endpoint_text(const char *host, uint16_t port, char out[ENDPOINT_TEXT]);

#endif
