/* phase_times.h - how long each phase of a round took on each node: gathered until all
 * have told, then one line a phase. Pure; hub.c is its only caller. */
#ifndef RECORD_CORE_PHASE_TIMES_H
#define RECORD_CORE_PHASE_TIMES_H

#include "record/core/record.h"

#define PHASES_MAX      12u    /* of a round; more are not kept */
#define PHASE_NAME      24u    /* bytes of a name, with its end */
#define PHASE_TIMES_MAX 65536u /* of one phase */

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

bool is_phase_name(struct span s); /* small letters and _, not too long */

/* Without memory the time is not kept. name: one that is_phase_name() takes. */
void phase_times_add(struct phase_times *p, struct span name, uint64_t us,
                     uint32_t node);

/* Appends the lines of a PHASES entry, and empties it. */
void phase_times_print(struct phase_times *p, struct buf *out);

#endif
