/* cause.h - a failure of the record in the words of policies and exit codes: an
 * exception's class, exit:N, signal:NAME, oom, hang, node, notice, check. Pure. */
#ifndef JOB_CORE_CAUSE_H
#define JOB_CORE_CAUSE_H

#include "job/core/record.h"
#include "policy/core/policy.h"

/* What a policy wants to know of a failure; spans point into the entry. The caller adds
 * progress, used, allowed and now_us. */
struct policy_failure cause_of_entry(const struct record_entry *e);

/* Writes the decision into the entry. The rule's text goes to `text`, which must live
 * as long as the entry. */
void cause_decided(struct record_entry *e, const struct policy *p,
                   const struct policy_decision *d, struct buf *text);

/* "ValueError", "exit:7", "signal:SIGKILL", "oom". */
void cause_print(struct buf *out, const struct record_entry *e);

/* Whether it would fail in the same way again. */
bool cause_is_deterministic(const struct record_entry *v);

#define EXIT_TRY_AGAIN 75
#define EXIT_NO_RETRY  93
#define EXIT_HANG      124
#define EXIT_MEMORY    137

/* The exit code of --exit-codes=cause for a job that ended with this verdict. */
int cause_exit_code(const struct record_entry *verdict);

#endif
