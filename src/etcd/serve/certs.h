/* certs.h - certificates for the etcd of a job that has a secret.
 *
 * The key of the job's CA is derived from the secret, so every agent of the job can
 * sign its own certificates and check those of the others, and nothing has to be
 * distributed. Only those that hold the secret can be members or clients of the
 * cluster. The keys are Ed25519; OpenSSL is loaded when it is needed. */
#ifndef ETCD_SERVE_CERTS_H
#define ETCD_SERVE_CERTS_H

#include "auth/core/auth.h"
#include "muster/error.h"

struct serve_certs {
    char *ca, *cert, *key; /* owned; names of PEM files that only this user can read */
};

/* Makes a key and a certificate in dir, in files called name, with the CA's beside
 * them. A server's certificate is for host and address; for a client both are NULL.
 * MUSTER_ENOTSUP if OpenSSL is missing; MUSTER_EINVAL if the host's name cannot be in a
 * certificate. */
int serve_certs_make(const struct auth *auth, const char *dir, const char *name,
                     const char *host, const char *address, struct serve_certs *out,
                     struct muster_error *err);
/* Frees the names; the files stay. Zeroed is fine. */
void serve_certs_fini(struct serve_certs *c);

#endif
