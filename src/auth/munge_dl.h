/* munge_dl.h - credentials of the MUNGE service, which clusters with Slurm run on every
 * node: what one user encodes on one machine, the same user decodes on another. By
 * libmunge, loaded when a job wants it; its calls ask a daemon and may block. */
#ifndef AUTH_MUNGE_DL_H
#define AUTH_MUNGE_DL_H

#include "auth/core/handshake.h"

/* The secret, then the nonces of client and server. */
#define MUNGE_PAYLOAD (AUTH_SECRET + 2 * AUTH_NONCE)

/* One call, for a thread of its own (loop/blocking_call.h). err.code 0: it went well.
 */
struct munge_job {
    uint8_t payload[MUNGE_PAYLOAD];
    char credential[AUTH_CREDENTIAL + 1];
    struct muster_error err;
};

void munge_make(void *job); /* the credential from the payload */
void munge_take(void *job); /* the payload from a credential of our own user */

/* 0 if the library is there and the daemon's socket; or MUSTER_ENOTSUP and why not.
 * Does not block. */
int munge_available(struct muster_error *err);

#endif
