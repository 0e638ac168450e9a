/* phase_times.h - how long each phase of a round took on each node. The times are
 * gathered until all nodes have sent theirs, and then printed as one line a phase.
 * Pure; hub.c is its only caller. */
#ifndef JOB_CORE_PHASE_TIMES_H
#define JOB_CORE_PHASE_TIMES_H

#include "job/core/record.h"

#define PHASES_MAX      12u    /* phases of a round; more are not kept */
#define PHASE_NAME      24u    /* bytes of a name, with its '\0' */
#define PHASE_TIMES_MAX 65536u /* times of one phase */

struct phase_times {
    struct phase {
        char name[PHASE_NAME];
        struct phase_time {
            uint64_t us;
            uint32_t node;
        } * times; /* owned */
        size_t count, size;
    } items[PHASES_MAX];
    size_t count;
};

void phase_times_fini(struct phase_times *p); /* zeroed is fine */

bool is_phase_name(struct span s); /* lower case letters and _, not too long */

/* Adds a time. is_phase_name(name) must hold. If the times move to larger memory, the
 * old memory is not freed: phase_times_release() does that. 0, or MUSTER_ENOMEM, after
 * which p may have a new phase without times, and nothing else has changed. */
int phase_times_add(struct phase_times *p, struct span name, uint64_t us,
                    uint32_t node);

/* Of two versions of a struct, frees what p owns and the other does not; see
 * judge_list_release. */
void phase_times_release(const struct phase_times *p, const struct phase_times *other);

/* Appends the lines of a PHASES entry, and empties p. The memory of the times stays as
 * it is, so that a caller can put a copy of the struct back. 0, or MUSTER_ENOMEM with p
 * unchanged. */
int phase_times_print(struct phase_times *p, struct buf *out);

#endif
