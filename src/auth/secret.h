/* secret.h - where a job's secret comes from: a token file, the environment, or munge.
 */
#ifndef AUTH_SECRET_H
#define AUTH_SECRET_H

#include "auth/core/auth.h"

struct secret_opts {
    const char *token_file; /* NULL or empty: none */
    const char *run_id;     /* NULL: whatever the run */
    bool optional, encrypt;
    /* Without a token: -1 take it from munge if that runs here, 1 do so or fail. */
    int munge;
};

/* *out is NULL if there is none: no file, and MUSTER_TOKEN not set. MUSTER_EINVAL for a
 * file that cannot be read, that others may read, or whose token is too short. */
int secret_load(const struct secret_opts *o, struct auth **out,
                struct muster_error *err);

/* Random bytes of the kernel's, for keys and nonces. */
void secret_random(void *to, size_t size);

/* Brings a->addresses up to date if they are older than a second: this machine's, as
 * ANSWER has them, without loopback. */
void secret_addresses(struct auth *a);

#endif
