/* phase_times.h - how long each phase of a round took on each node. The times are
 * gathered until all nodes have sent theirs, and then printed as one line a phase.
 * Pure; recorder.c is its only caller. */
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

/* Adds a time. is_phase_name(name) must hold. 0, or MUSTER_ENOMEM. */
int phase_times_add(struct phase_times *p, struct span name, uint64_t us,
                    uint32_t node);

/* Appends the lines of a PHASES entry, and empties p. 0, or MUSTER_ENOMEM. */
int phase_times_print(struct phase_times *p, struct buf *out);

#endif
