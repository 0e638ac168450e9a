/* fuzz_run.c - messages to a run, in any order, from many peers, with losses, time and
 * what torchrun's nodes might write in between. Input: steps of a byte that chooses,
 * two of length, and data. What must always hold is asserted: rounds and numbers of
 * entries only grow, the ranks of a round are told once each, and what was read can be
 * written. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "job/core/run.h"

#define PEERS 16u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_record(const struct recorder *h, uint64_t *last)
{
    const struct record *r = recorder_record(h);

    assert(r->last >= *last && r->count <= RECORD_ENTRIES);
    *last = r->last;
    for (size_t i = 1; i < r->count && i < 8; i++) {
        uint64_t a, b;

        (void)record_bytes(r, r->count - i - 1, &a);
        (void)record_bytes(r, r->count - i, &b);
        assert(a < b);
    }
}

static void check_seats(const struct seats *c, const struct run_fx *fx, int64_t *round)
{
    bool told[64] = { false };

    assert(seats_round(c) >= *round);
    *round = seats_round(c);
    for (size_t i = 0; i < fx->count; i++) {
        const struct run_msg *m = &fx->items[i].msg;

        if (fx->items[i].kind != RUN_SEND || m->kind != MSG_JOINED)
            continue;
        assert(m->rank >= 0 && m->rank < m->world);
        if (m->rank >= 64)
            continue;
        assert(!told[m->rank]);
        told[m->rank] = true;
    }
}

static void write_again(const struct run_msg *m, struct span bytes)
{
    struct buf out;

    buf_init(&out, SIZE_MAX);
    assert(msg_encode(&out, m) == 0);
    assert(buf_len(&out) <= bytes.n);
    buf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct run *run = run_new(span_str("run"), NULL);
    struct run_now now = { 1000000, 1700000000000000 };
    struct run_fx fx = { 0 };
    uint64_t last = 0;
    int64_t round = 0;

    assert(run);
    while (size >= 3) {
        const uint8_t what = data[0];
        const size_t want = (size_t)data[1] | (size_t)data[2] << 8;
        const size_t n = want < size - 3 ? want : size - 3;
        const struct span bytes = span_of(data + 3, n);
        struct run_event ev = { .peer = what % PEERS };
        struct run_msg msg;

        data += 3 + n;
        size -= 3 + n;
        if (what < 0xc0) {
            if (msg_decode(bytes, &msg, NULL) < 0)
                continue;
            write_again(&msg, bytes);
            ev.kind = RUN_MSG;
            ev.msg = &msg;
        } else if (what < 0xd0) {
            ev.kind = RUN_GONE;
        } else if (what < 0xe0) {
            ev.kind = RUN_SEEN;
            ev.value = bytes;
        } else {
            now.mono_us += 10000u * n + 1;
            now.wall_us += 10000 * (int64_t)n + 1;
            ev.kind = RUN_TIMER;
        }
        ev.now = now;

        const int rc = run_step(run, &ev, &fx, NULL);

        assert(rc == 0 || ev.kind == RUN_SEEN);
        if (run_recorder(run))
            check_record(run_recorder(run), &last);
        if (run_seats(run))
            check_seats(run_seats(run), &fx, &round);
    }
    run_free(run);
    run_fx_fini(&fx);
    return 0;
}
