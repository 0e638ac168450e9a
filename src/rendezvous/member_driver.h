/* member_driver.h - the driver of rendezvous/core/member.c: a member of a coordinator's
 * run on a uv loop, with its connection to the host. The dynamic handler (dynamic.c)
 * uses it when the store has a coordinator; so does the benchmark, with thousands of
 * them. */
#ifndef RENDEZVOUS_MEMBER_DRIVER_H
#define RENDEZVOUS_MEMBER_DRIVER_H

#include <uv.h>

#include "rendezvous/core/member.h"

struct member_driver;

/* Called with JOINED, REFUSED, DONE and NEWS, as in cas_node.h; borrowed for the call.
 * Always from the loop, never from inside a call of the functions below. */
typedef void (*rdzv_notify_cb)(void *ctx, const struct rdzv_effect *notice);

/* cfg is copied as member_new does; host is copied. */
int member_driver_open(uv_loop_t *loop, const struct member_config *cfg,
                       const char *host, uint16_t port, rdzv_notify_cb cb, void *ctx,
                       struct member_driver **out, struct muster_error *err);

/* kind: RDZV_EV_JOIN, LEAVE or CLOSE. May be called from inside cb. LEAVE ends a JOIN
 * with REFUSED and MUSTER_ECANCELED, even one that came just before. */
void member_driver_request(struct member_driver *d, enum rdzv_event_kind kind);

const struct member *member_driver_core(const struct member_driver *d);

/* After this the only callback is gone (which may be NULL), when libuv has closed
 * everything. */
void member_driver_close(struct member_driver *d, void (*gone)(void *ctx), void *ctx);

#endif
