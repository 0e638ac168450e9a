/* pmi.h - serves PMI-1 (core/pmi.h) to the workers of one attempt: a pair of sockets
 * for each, and a gathering over the round's store for each barrier of several nodes.
 */
#ifndef PMI_PMI_H
#define PMI_PMI_H

#include "pmi/core/pmi.h"
#include "store/async_store.h"

struct pmi;

struct pmi_opts {
    uv_loop_t *loop;
    struct pmi_place place;
    int64_t node_rank;
    struct async_store *store; /* borrowed until pmi_close(); unused with one node */
    int64_t attempt;           /* the same on all nodes: part of the keys */
    /* A worker has called MPI_Abort. */
    void (*on_abort)(void *ctx, int64_t worker, int64_t code);
    /* Its connection has ended without MPI_Finalize: so does the worker. */
    void (*on_gone)(void *ctx, int64_t worker);
    /* err.code == 0: only to be said. Otherwise the job cannot go on. */
    void (*on_trouble)(void *ctx, int64_t worker, const struct muster_error *err);
    void *ctx;
};

int pmi_open(const struct pmi_opts *opts, struct pmi **out, struct muster_error *err);

/* Makes the sockets of a worker; *theirs is then the caller's to close. */
int pmi_worker(struct pmi *p, int64_t worker, int *theirs, struct muster_error *err);

/* Whether a worker that has exited was still to call MPI_Finalize. What it has sent
 * before is taken first. */
bool pmi_left_early(struct pmi *p, int64_t worker);

/* Lets go of the workers and of the store at once. NULL is fine. */
void pmi_close(struct pmi *p);

#endif
