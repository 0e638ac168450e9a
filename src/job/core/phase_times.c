/* phase_times.c - see phase_times.h. */
#include "job/core/phase_times.h"

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"

void phase_times_fini(struct phase_times *p)
{
    for (size_t i = 0; i < PHASES_MAX; i++)
        mem_free(p->items[i].times);
    *p = (struct phase_times){ 0 };
}

bool is_phase_name(struct span s)
{
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] != '_' && (s.p[i] < 'a' || s.p[i] > 'z'))
            return false;
    return s.n > 0 && s.n < PHASE_NAME;
}

static struct phase *phase_of(struct phase_times *p, struct span name)
{
    struct phase *phase;

    for (size_t i = 0; i < p->count; i++)
        if (span_eq(span_str(p->items[i].name), name))
            return &p->items[i];
    if (p->count == PHASES_MAX)
        return NULL;
    assert(p->count < PHASES_MAX && name.n < PHASE_NAME);
    phase = &p->items[p->count++];
    memcpy(phase->name, name.p, name.n);
    phase->name[name.n] = '\0';
    phase->count = 0;
    return phase;
}

int phase_times_add(struct phase_times *p, struct span name, uint64_t us, uint32_t node)
{
    struct phase *phase;

    assert(is_phase_name(name));
    phase = phase_of(p, name);
    if (!phase || phase->count == PHASE_TIMES_MAX)
        return 0;
    if (phase->count == phase->size) {
        const size_t size = phase->size ? 2 * phase->size : 16;
        struct phase_time *times = mem_calloc(size, sizeof *times);

        if (!times)
            return MUSTER_ENOMEM;
        if (phase->count)
            memcpy(times, phase->times, phase->count * sizeof *times);
        mem_free(phase->times);
        phase->times = times;
        phase->size = size;
    }
    assert(phase->count < phase->size);
    phase->times[phase->count++] =
        (struct phase_time){ MIN_OF(us, (uint64_t)INT64_MAX), node };
    return 0;
}

static int by_time(const void *a, const void *b)
{
    const struct phase_time *x = a, *y = b;

    return (x->us > y->us) - (x->us < y->us);
}

int phase_times_print(struct phase_times *p, struct buf *out)
{
    for (size_t i = 0; i < p->count; i++) {
        const struct phase *phase = &p->items[i];
        const size_t n = phase->count;

        if (n == 0)
            continue;
        struct phase_time *sorted = mem_memdup(phase->times, n * sizeof *sorted);
        if (!sorted)
            return MUSTER_ENOMEM;
        qsort(sorted, n, sizeof *sorted, by_time);
        (void)record_phases_print(out, &(struct record_phase){
                                           .name = span_str(phase->name),
                                           .min_us = (int64_t)sorted[0].us,
                                           .median_us = (int64_t)sorted[n / 2].us,
                                           .max_us = (int64_t)sorted[n - 1].us,
                                           .slowest = sorted[n - 1].node,
                                       });
        mem_free(sorted);
    }
    phase_times_fini(p);
    return 0;
}
