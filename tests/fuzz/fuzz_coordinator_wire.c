/* fuzz_coordinator_wire.c - messages to the host of a rendezvous, in any order, from
 * many peers, with losses, time and what torchrun's nodes might write in between.
 *
 * Input: steps of a byte that chooses and its data. What must always hold is asserted:
 * ranks of a round are told once each, rounds only grow, a message that was read is
 * written back byte for byte. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "job/core/coordinator.h"
#include "job/core/sessions.h"
#include "rendezvous/core/settings.h"

#define PEERS 16u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct coordinator *h, const struct coordinator_fx *fx,
                  int64_t *round)
{
    bool told[64] = { false };

    assert(coordinator_round(h) >= *round);
    *round = coordinator_round(h);
    for (size_t i = 0; i < fx->count; i++) {
        const struct coord_msg *m = &fx->items[i].msg;

        if (fx->items[i].kind != COORDINATOR_SEND || m->kind != COORD_JOINED)
            continue;
        assert(m->rank >= 0 && m->rank < m->world);
        if (m->rank >= 64)
            continue;
        assert(!told[m->rank]);
        told[m->rank] = true;
    }
}

static void again(const struct coord_msg *m, struct span bytes)
{
    struct buf out;

    buf_init(&out, SIZE_MAX);
    assert(coord_encode(&out, m) == 0);
    assert(span_eq(buf_span(&out), bytes));
    buf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sessions sessions;

    sessions_init(&sessions);

    struct coordinator *h = coordinator_new(span_str("run"), &sessions, NULL);
    struct now now = { 1000, 1700000000000000 };
    struct coordinator_fx fx;
    int64_t round = 0;

    assert(h);
    coordinator_fx_init(&fx);
    while (size >= 2) {
        const uint8_t what = data[0];
        const size_t n = data[1] < size - 2 ? data[1] : size - 2;
        const struct span bytes = span_of(data + 2, n);
        struct coordinator_event ev = { .now = now, .peer = what % PEERS };
        struct coord_msg msg;
        struct span view;

        data += 2 + n;
        size -= 2 + n;
        if (what < 0xc0) {
            if (coord_decode(bytes, &msg, NULL) < 0)
                continue;
            again(&msg, bytes);
            ev.kind = COORDINATOR_MSG;
            ev.msg = &msg;
        } else if (what < 0xd0) {
            ev.kind = COORDINATOR_GONE;
        } else if (what < 0xe0) {
            ev.kind = COORDINATOR_SEEN;
            ev.value = bytes;
        } else if (what < 0xf0) {
            assert(coordinator_view(h, now, &view) == 0);
            continue;
        } else {
            now.mono_ms += 100u * n + 1;
            now.wall_us += 1000 * (100 * (int64_t)n + 1);
            ev.now = now;
            ev.kind = COORDINATOR_TIMER;
        }
        if (coordinator_step(h, &ev, &fx, NULL) == 0)
            check(h, &fx, &round);
    }
    coordinator_free(h);
    sessions_fini(&sessions);
    coordinator_fx_fini(&fx);
    return 0;
}
