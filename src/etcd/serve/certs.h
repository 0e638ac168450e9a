/* certs.h - certificates for the etcd of a job that has a secret.
 *
 * The key of the job's CA is derived from the secret, so every agent of the job can
 * sign its own certificates and knows the CA of all others. Without the secret nobody
 * can be a member of the cluster or a client of it, and nothing has to be handed out.
 * Ed25519; OpenSSL, loaded when it is needed. */
#ifndef ETCD_SERVE_CERTS_H
#define ETCD_SERVE_CERTS_H

#include "auth/core/auth.h"
#include "muster/error.h"

struct serve_certs {
    char *ca, *cert, *key; /* owned; PEM files, for this user alone */
};

/* Makes a key and a certificate in dir, in files called name, and the CA's beside them.
 * host and address: whom a server's is for; both NULL for a client's. MUSTER_ENOTSUP:
 * OpenSSL is missing; MUSTER_EINVAL: the host's name cannot be in a certificate. */
int serve_certs_make(const struct auth *auth, const char *dir, const char *name,
                     const char *host, const char *address, struct serve_certs *out,
                     struct muster_error *err);
void serve_certs_fini(struct serve_certs *c); /* zeroed is fine; the files stay */

#endif
