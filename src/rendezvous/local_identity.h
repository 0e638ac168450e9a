/* local_identity.h - whether an endpoint means this machine, and what this machine is
 * called. The answer says which rule matched, since that cannot be guessed from
 * outside. */
#ifndef RENDEZVOUS_LOCAL_IDENTITY_H
#define RENDEZVOUS_LOCAL_IDENTITY_H

#include "base/base.h"
#include "base/log.h"

/* Numbers that tell the nodes of one process apart: 0, 1, 2 ... */
int64_t rdzv_next_local_id(void);

struct rdzv_local {
    char host[1025]; /* in: the endpoint's host */
    bool is_local;
    char why[256]; /* "its address 10.0.0.1 belongs to interface eth0" */
};

/* Decides what needs no resolver: localhost, our host name, numeric addresses. Returns
 * true if that settled it; q is filled in then. Does not block. */
bool rdzv_local_quick(struct rdzv_local *q);

/* Decides the rest by resolving the host and looking for its addresses on this
 * machine's interfaces. The argument is a struct rdzv_local. Blocks as long as the
 * resolver does. */
void rdzv_local_resolve(void *q);

/* How long the resolver may take for our own name. By itself it waits five seconds for
 * each name server; one that takes longer than a second is probably down. */
#define RDZV_NAME_MS 1000u

struct rdzv_fqdn {
    char name[1025]; /* never empty */
    bool resolves;   /* the machine's own name could be looked up */
};

/* Finds the machine's name as Python's socket.getfqdn() does. The argument is a struct
 * rdzv_fqdn. Blocks as long as the resolver does. */
void rdzv_fqdn_resolve(void *f);

/* The same from the hosts file, if that settles it. Does not block. */
bool rdzv_fqdn_quick(struct rdzv_fqdn *f);

/* Logs that MASTER_ADDR is this machine's address, since its own name does not resolve:
 * torch would use the name, and the workers would fail. */
void rdzv_log_nameless(const struct log *t, const char *name, const char *addr);

/* gethostname(), or "localhost". Does not block. */
void rdzv_hostname(char *out, size_t size);

#endif
