/* fuzz_job.c - messages to the coordinator of a job, in any order, from many peers,
 * with losses and time in between. Input: steps of a byte that chooses, two of length,
 * and data. What must always hold is asserted: numbers of entries only grow, what was
 * read can be written, and nothing is sent to a peer that is not attached. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "job/core/hub.h"

#define PEERS 8u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct hub *h, uint64_t *last)
{
    const struct record *r = hub_record(h);

    assert(r->last >= *last && r->count <= RECORD_ENTRIES);
    *last = r->last;
    for (size_t i = 1; i < r->count && i < 8; i++) {
        uint64_t a, b;

        (void)record_bytes(r, r->count - i - 1, &a);
        (void)record_bytes(r, r->count - i, &b);
        assert(a < b);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sessions sessions;

    sessions_init(&sessions);

    struct hub *h = hub_new(span_str("run"), &sessions, NULL);
    struct run_now now = { 1000, 1700000000000000 };
    struct hub_fx fx = { 0 };
    uint64_t last = 0;

    assert(h);
    while (size >= 3) {
        const uint8_t what = data[0];
        const size_t want = (size_t)data[1] | (size_t)data[2] << 8;
        const size_t n = want < size - 3 ? want : size - 3;
        const struct span bytes = span_of(data + 3, n);
        struct hub_event ev = { .peer = what % PEERS };
        struct job_msg msg;
        struct buf again;

        data += 3 + n;
        size -= 3 + n;
        if (what < 0xd0) {
            if (job_decode(bytes, &msg, NULL) < 0)
                continue;
            buf_init(&again, SIZE_MAX);
            assert(job_encode(&again, &msg) == 0);
            assert(buf_len(&again) <= bytes.n);
            buf_fini(&again);
            ev.kind = HUB_MSG;
            ev.msg = &msg;
        } else if (what < 0xe8) {
            ev.kind = HUB_GONE;
        } else {
            now.mono_us += 10000u * n + 1;
            now.wall_us += 10000 * (int64_t)n + 1;
            ev.kind = HUB_TIMER;
        }
        ev.now = now;
        assert(hub_step(h, &ev, &fx) == 0);
        check(h, &last);
    }
    hub_free(h);
    sessions_fini(&sessions);
    hub_fx_fini(&fx);
    return 0;
}
