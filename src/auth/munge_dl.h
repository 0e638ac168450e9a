/* munge_dl.h - credentials of the MUNGE service, which Slurm clusters run on every
 * node: only the user who encoded a credential can decode it on another machine.
 * libmunge is loaded when a job needs it; its calls ask a daemon and may block. */
#ifndef AUTH_MUNGE_DL_H
#define AUTH_MUNGE_DL_H

#include "auth/core/handshake.h"

/* The secret, then the nonces of client and server. */
#define MUNGE_PAYLOAD (AUTH_SECRET + 2 * AUTH_NONCE)

/* One call, made on a thread of its own (loop/blocking_call.h). err.code is 0 if it
 * succeeded. */
struct munge_job {
    uint8_t payload[MUNGE_PAYLOAD];
    char credential[AUTH_CREDENTIAL + 1];
    struct muster_error err;
};

void munge_make(void *job); /* makes the credential from the payload */
void munge_take(void *job); /* takes the payload from a credential of our own user */

/* 0 if the library and the daemon's socket exist, else MUSTER_ENOTSUP with the reason.
 * Does not block. */
int munge_available(struct muster_error *err);

#endif
