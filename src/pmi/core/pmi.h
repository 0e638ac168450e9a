/* pmi.h - a PMI-1 server for the workers of one node: the line protocol that MPICH and
 * Intel MPI speak over the descriptor PMI_FD. Pure.
 *
 *   worker                               server
 *   cmd=init pmi_version=1 ...           cmd=response_to_init ... rc=0
 *   cmd=get_maxes                        cmd=maxes kvsname_max=.. keylen_max=..
 * vallen_max=.. cmd=get_my_kvsname                   cmd=my_kvsname kvsname=..
 *   cmd=get_appnum, get_universe_size    cmd=appnum appnum=0, cmd=universe_size size=..
 *   cmd=put kvsname=.. key=.. value=..   cmd=put_result rc=0 msg=success
 *   cmd=get kvsname=.. key=..            cmd=get_result rc=0 msg=success value=..
 *   cmd=barrier_in                       cmd=barrier_out rc=0, once all workers are in
 *   cmd=finalize                         cmd=finalize_ack rc=0
 *   cmd=abort exitcode=N                 (the worker exits)
 *
 * A pair is seen by the workers of this node at once and by the others after a barrier:
 * what was put since the last one travels with it. When the last worker of this node
 * has come to a barrier, GATHER asks for the pairs of all nodes (pmi_exchange() are
 * ours), and pmi_gathered() lets the workers go. A job of one node needs no GATHER.
 *
 * Nobody waits for a worker that never says init, but in a barrier, as MPI itself does.
 * A line that is no PMI drops the worker's connection: it is told by DROP, and by what
 * its MPI library says. */
#ifndef PMI_CORE_PMI_H
#define PMI_CORE_PMI_H

#include "base/buf.h"
#include "base/text_list.h"
#include "muster/error.h"

#define PMI_NAME_MOST  256u
#define PMI_KEY_MOST   64u
#define PMI_VALUE_MOST 1024u
#define PMI_LINE_MOST  4096u
#define PMI_HELD_MOST  (64u << 20) /* bytes of pairs; more are refused */

struct pmi_place {
    int64_t workers; /* of this node */
    int64_t nodes;
    int64_t world_size;
    const char *name;    /* of the space of pairs; without blanks; copied */
    const char *mapping; /* PMI_process_mapping; copied */
};

enum pmi_fx_kind {
    PMI_SEND,   /* what pmi_output() has for this worker */
    PMI_GATHER, /* pmi_exchange() */
    PMI_ABORT,  /* MPI_Abort was called, with this code */
    PMI_DROP,   /* why: this is no PMI */
};

struct pmi_fx {
    enum pmi_fx_kind kind;
    int64_t worker;
    int64_t code;
    const char *why; /* a constant */
};

/* The effects of one call; empty before it. */
struct pmi_fx_list {
    struct pmi_fx *items; /* owned */
    size_t count, size;
};

struct pmi_core;

int pmi_core_new(const struct pmi_place *place, struct pmi_core **out);
void pmi_core_free(struct pmi_core *p); /* NULL is fine */

/* Each returns 0, or MUSTER_ENOMEM, after which the core can only be freed. */
int pmi_bytes(struct pmi_core *p, int64_t worker, struct span bytes,
              struct pmi_fx_list *fx);
int pmi_gathered(struct pmi_core *p, const struct text_list *texts,
                 struct pmi_fx_list *fx);

struct buf *pmi_output(struct pmi_core *p, int64_t worker);
struct span pmi_exchange(const struct pmi_core *p); /* until pmi_gathered() */

/* Whether the worker has begun to speak PMI and has not said finalize: if it exits now,
 * the others may wait for it for ever. Of one that was dropped nobody can tell. */
bool pmi_is_speaking(const struct pmi_core *p, int64_t worker);

void pmi_fx_fini(struct pmi_fx_list *fx);

#endif
