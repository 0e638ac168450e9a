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

/* name: one that is_phase_name() takes. Memory that has become too small is not freed.
 * 0, or MUSTER_ENOMEM with nothing changed that counts. */
int phase_times_add(struct phase_times *p, struct span name, uint64_t us,
                    uint32_t node);

/* Of two versions, frees what p owns and the other does not; see judge_list_release. */
void phase_times_release(const struct phase_times *p, const struct phase_times *other);

/* Appends the lines of a PHASES entry, and empties it; the times stay where they were
 * in memory, for whoever puts the struct back. 0, or MUSTER_ENOMEM with p unchanged. */
int phase_times_print(struct phase_times *p, struct buf *out);

#endif
