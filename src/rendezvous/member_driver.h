/* rdzv_guest.h - the driver of rendezvous/core/member.c: a node of a hosted rendezvous on a uv
 * loop, with its line to the host. The dynamic handler (rdzv_driver.c) uses it when the
 * store can host; so does the benchmark, with thousands of them. */
#ifndef RENDEZVOUS_MEMBER_DRIVER_H
#define RENDEZVOUS_MEMBER_DRIVER_H

#include <uv.h>

#include "rendezvous/core/member.h"

struct rdzv_guest_driver;

/* JOINED, REFUSED, DONE and NEWS, as rdzv.h has them; borrowed for the call. Always
 * from the loop, never from inside a call of the functions below. */
typedef void (*rdzv_told_cb)(void *ctx, const struct rdzv_effect *told);

/* cfg is copied as rdzv_guest_new does; host is copied. */
int rdzv_guest_open(uv_loop_t *loop, const struct rdzv_guest_config *cfg,
                    const char *host, uint16_t port, rdzv_told_cb cb, void *ctx,
                    struct rdzv_guest_driver **out, struct muster_error *err);

/* kind: RDZV_EV_JOIN, LEAVE or CLOSE. May be called from inside cb. LEAVE ends a JOIN
 * with REFUSED and MUSTER_ECANCELED, however short it came before. */
void rdzv_guest_wish(struct rdzv_guest_driver *d, enum rdzv_event_kind kind);

const struct rdzv_guest *rdzv_guest_core(const struct rdzv_guest_driver *d);

/* No callback comes afterwards but gone (may be NULL), when libuv has let go. */
void rdzv_guest_close(struct rdzv_guest_driver *d, void (*gone)(void *ctx), void *ctx);

#endif
