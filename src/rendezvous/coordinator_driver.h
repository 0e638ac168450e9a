/* coordinator_driver.h - the coordinators that live in a store server, one for each run
 * id.
 *
 * This is the driver of rendezvous/core/coordinator.c. Nodes of ours talk to a
 * coordinator over their store connections, and the key that torchrun's nodes read and
 * compare-and-set shows its state. To the store that key is an ordinary one: we bring
 * it up to date just before a request reads it, and look at it after a request that may
 * have written it. */
#ifndef RENDEZVOUS_COORDINATOR_DRIVER_H
#define RENDEZVOUS_COORDINATOR_DRIVER_H

#include "store/server.h"

/* For store_server_opts.tenant. */
extern const struct store_tenant coordinator_tenant;

#endif
