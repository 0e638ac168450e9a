/* local_identity.h - who this machine is: does an endpoint mean us, and what are we
 * called? Answers with the rule that matched, since nobody can guess it from outside.
 */
#ifndef RENDEZVOUS_LOCAL_IDENTITY_H
#define RENDEZVOUS_LOCAL_IDENTITY_H

#include "base/base.h"
#include "base/trace.h"

/* Tells the nodes of one process apart: 0, 1, 2 ... */
int64_t rdzv_next_local_id(void);

struct rdzv_local {
    char host[1025]; /* in: the endpoint's host */
    bool is_local;
    char why[256]; /* "its address 10.0.0.1 belongs to interface eth0" */
};

/* What needs no resolver: localhost, our host name, numeric addresses. True if that
 * settled it; q is filled in then. Does not block. */
bool rdzv_local_quick(struct rdzv_local *q);

/* The rest, by resolving the host and looking for its addresses on this machine's
 * interfaces. Blocks as long as the resolver does; for a struct rdzv_local. */
void rdzv_local_resolve(void *q);

/* How long the resolver may take for our own name. It waits five seconds for one name
 * server by itself; a server that takes longer than one second is taken to be down. */
#define RDZV_NAME_MS 1000u

struct rdzv_fqdn {
    char name[1025]; /* never empty */
    bool resolves;   /* the machine's own name could be looked up */
};

/* The machine's name as Python's socket.getfqdn() has it; for a struct rdzv_fqdn.
 * Blocks as long as the resolver does. */
void rdzv_fqdn_resolve(void *f);

/* The same from the hosts file, if that settles it beyond doubt. Does not block. */
bool rdzv_fqdn_quick(struct rdzv_fqdn *f);

/* Says that the machine is announced by its address, its own name leading nowhere:
 * torch would announce that, and the workers would fail. */
void rdzv_log_nameless(const struct trace *t, const char *name, const char *addr);

/* gethostname(), or "localhost". Does not block. */
void rdzv_hostname(char *out, size_t size);

#endif
