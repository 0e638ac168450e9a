/* coordinator_driver.h - the rendezvous that live in a store server, one for each run
 * id.
 *
 * The driver of rendezvous/core/coordinator.c: nodes of ours talk to it over their
 * store connections, and the key that torchrun's nodes read and compare-and-set shows
 * its state. That key is an ordinary one to the store; it is brought up to date just
 * before somebody looks, and looked at after somebody wrote. */
#ifndef RENDEZVOUS_COORDINATOR_DRIVER_H
#define RENDEZVOUS_COORDINATOR_DRIVER_H

#include "store/server.h"

/* For store_server_opts.tenant. */
extern const struct store_tenant coordinator_tenant;

#endif
