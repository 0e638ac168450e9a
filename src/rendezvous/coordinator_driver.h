/* coordinators.h - the rendezvous that live in a store server, one for each run id.
 *
 * The driver of rendezvous/core/coordinator.c: nodes of ours talk to it over their
 * store connections, and the key that torchrun's nodes read and compare-and-set shows
 * its state. That key is an ordinary one to the store; it is brought up to date just
 * before somebody looks, and looked at after somebody wrote. Used by store_server.c
 * alone. */
#ifndef RENDEZVOUS_COORDINATOR_DRIVER_H
#define RENDEZVOUS_COORDINATOR_DRIVER_H

#include "store/server_int.h"

/* True if the request is a message to a host; it has been dealt with then, and *rc is 0
 * or MUSTER_ENOMEM. */
bool coordinators_take(struct store_server *s, struct conn *c,
                       const struct c10d_request *req, int *rc);

/* Around a request of anybody, while there are hosts. */
void coordinators_before(struct store_server *s, const struct c10d_request *req);
void coordinators_after(struct store_server *s, const struct c10d_request *req);

void coordinators_left(struct store_server *s,
                       struct conn *c); /* its connection is gone */

/* Ends the timer; everything else goes with coordinators_free, once libuv has let go.
 */
void coordinators_close(struct store_server *s, uv_close_cb cb);
void coordinators_free(struct store_server *s);

#endif
