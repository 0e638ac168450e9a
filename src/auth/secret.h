/* secret.h - where a job's secret comes from: a token file, the environment, or munge.
 */
#ifndef AUTH_SECRET_H
#define AUTH_SECRET_H

#include "auth/core/auth.h"

struct secret_opts {
    const char *token_file; /* NULL or empty: none */
    const char *run_id;     /* NULL: any run */
    bool optional, encrypt;
    /* Without a token: 0 ignores munge, -1 uses it if it runs, 1 uses it or fails. */
    int munge;
};

/* *out is NULL if the job has no secret: no file, no MUSTER_TOKEN, no munge.
 * MUSTER_EINVAL for a file that cannot be read, that others may read, or whose token is
 * too short. */
int secret_load(const struct secret_opts *o, struct auth **out,
                struct muster_error *err);

/* Random bytes from the kernel, for keys and nonces. */
void secret_random(void *to, size_t size);

/* Updates a->addresses if they are older than a second: those of this machine without
 * loopback, in the form that ANSWER carries. */
void secret_addresses(struct auth *a);

#endif
