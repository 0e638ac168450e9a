/* judge.h - which of several failures of one round was the cause of the others. */
#ifndef RECORD_CORE_JUDGE_H
#define RECORD_CORE_JUDGE_H

#include "record/core/record.h"

/* Whether a failure only tells that a peer is gone: "Connection closed by peer" and the
 * like. When a rank dies, the others fail with such words within milliseconds, now and
 * then before the kernel has told anybody that the first one is dead. */
bool judge_is_echo(const struct record_entry *e);

/* Negative if a is more likely the cause than b: one with words of its own comes before
 * one that is an echo, then the earlier one comes first. */
int judge_compare(const struct record_entry *a, const struct record_entry *b);

/* Whether the clocks cannot tell which of the two came first. */
bool judge_simultaneous(const struct record_entry *a, const struct record_entry *b);

/* The failures of a round that are most likely its cause, that one first. */
struct judge_list {
    struct record_entry worst[RECORD_FAILED_MAX];
    uint8_t *texts[RECORD_FAILED_MAX]; /* owned: what they point to */
    size_t count;
    int64_t failed; /* workers, those that are not kept among them */
};

/* Keeps a copy. A worker may be told of twice: when it exits, and with all its words
 * later; then the later one counts. What makes room is not freed. 0, or MUSTER_ENOMEM
 * with nothing changed. */
int judge_list_keep(struct judge_list *l, const struct record_entry *f);

/* Of two versions of a list, frees what l has and the other has not; l is not to be
 * used after that. So a change is made final (l: the list before it), or is undone (l:
 * the list after it). */
void judge_list_release(const struct judge_list *l, const struct judge_list *other);
void judge_list_fini(struct judge_list *l); /* and empty; zeroed is fine */

#endif
