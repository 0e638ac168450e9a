/* judge.h - finds which of several failures of one round caused the others. Pure. */
#ifndef JOB_CORE_JUDGE_H
#define JOB_CORE_JUDGE_H

#include "job/core/record.h"

/* Whether a failure only says that a peer is gone: "Connection closed by peer" and the
 * like. When a rank dies, the others fail with such words within milliseconds, now and
 * then before the kernel reports the death of the first one. */
bool judge_is_echo(const struct record_entry *e);

/* Negative if a is more likely the cause than b: a failure that is not an echo comes
 * before an echo, and then the earlier one comes first. */
int judge_compare(const struct record_entry *a, const struct record_entry *b);

/* Whether the clocks cannot tell which of the two came first. */
bool judge_simultaneous(const struct record_entry *a, const struct record_entry *b);

/* The failures of a round that are most likely its cause, the likeliest first. */
struct judge_list {
    struct record_entry worst[RECORD_FAILED_MAX];
    uint8_t *texts[RECORD_FAILED_MAX]; /* owned: what the spans of worst[] point to */
    size_t count;
    int64_t failed; /* workers that failed, those that are not kept included */
};

/* Keeps a copy. A worker may be reported twice, first when it exits and later with its
 * last words; then the later report counts. 0, or MUSTER_ENOMEM and no change. */
int judge_list_keep(struct judge_list *l, const struct record_entry *f);

void judge_list_fini(struct judge_list *l); /* also empties it; zeroed is fine */

#endif
