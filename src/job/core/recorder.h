/* recorder.h - the part of a run that keeps the job's record: it numbers the entries
 * and passes them on, gathers answers to questions, compares clocks, and judges
 * failures. Pure. What always holds:
 *
 *   - numbers of entries only grow, and every agent gets the same entries;
 *   - a round in which a worker failed ends with exactly one RESTART or VERDICT, within
 *     RECORDER_JUDGE_US of the first failure;
 *   - restarts are counted once a round, however many workers fail in it, and a lost
 *     node does not count. */
#ifndef JOB_CORE_RECORDER_H
#define JOB_CORE_RECORDER_H

#include "base/log.h"
#include "job/core/effects.h"
#include "job/core/record.h"
#include "job/core/sessions.h"

#define RECORDER_JUDGE_US   2000000u /* from the first failure to the verdict */
#define RECORDER_UNHEARD_US 6000000u /* a node that lives beats every 5 s */
#define RECORDER_GATHER_US  2000000u /* a round is recorded then, even without some */
#define RECORDER_ASKS       16u      /* questions under way at once */
#define RECORDER_NODES      65536u

/* At most so many nodes get a question in one step. The store serves its other clients
 * until the next step. */
#define RECORDER_SLICE    256u
#define RECORDER_SLICE_US 2000u

struct recorder;

/* run_id is copied, the table of nodes borrowed. NULL: out of memory. */
struct recorder *recorder_new(struct span run_id, struct sessions *sessions,
                              const struct log *log);
void recorder_free(struct recorder *h); /* NULL is fine */

/* What the run tells it, between begin_step and end_step. Where there is no memory,
 * fx->no_memory is set, and the run can only be closed. */
void recorder_begin_step(struct recorder *h, struct run_now now);
void recorder_end_step(struct recorder *h);

/* The node is here, for the first time or again; answered by WELCOME, and by what it
 * lacks of the record. MUSTER_EFULL: there are too many. */
int recorder_hello(struct recorder *h, struct run_session *s, const struct run_msg *m,
                   struct run_fx *fx);
/* False: the message is not about the record. */
bool recorder_message(struct recorder *h, struct record_peer *n,
                      const struct run_msg *m, struct run_fx *fx);
/* Its connection, which was this peer, is gone. */
void recorder_gone(struct recorder *h, struct record_peer *n, uint32_t peer,
                   struct run_fx *fx);
void recorder_lost(struct recorder *h, struct record_peer *n, struct run_fx *fx);
void recorder_ping(struct recorder *h, struct record_peer *n, int64_t beat_us,
                   struct run_fx *fx); /* answers a BEAT */
void recorder_timer(struct recorder *h, struct run_fx *fx);

/* When to call recorder_timer(), by mono_us; MONO_NEVER if nothing is due. */
uint64_t recorder_deadline(const struct recorder *h);

/* The rendezvous has a new round: what has failed before it is judged now, and what is
 * told of earlier rounds after it does not count. */
void recorder_seated(struct recorder *h, int64_t round, struct run_fx *fx);

/* The round for which this step has granted a restart, if all of its nodes are here and
 * their workers gone; else -1. */
int64_t recorder_restarts(const struct recorder *h);

bool recorder_succeeded(const struct recorder *h); /* all of the job's work is done */
const struct record *recorder_record(const struct recorder *h);

/* Each peer that shares the record:
 * for (size_t i = 0; recorder_next_peer(h, &i, &peer);) ... */
bool recorder_next_peer(const struct recorder *h, size_t *i, uint32_t *peer);

#endif
