/* fuzz_pickle.c - the reader of the shared state: whatever it takes, it writes and
 * takes again, to the same bytes. */
#include <assert.h>

#include "base/mem.h"
#include "rendezvous/core/state_pickle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct rdzv_state s, t;
    struct muster_error err;
    struct buf a, b;

    if (pickle_read(span_of(data, size), &s, &err) < 0) {
        assert(err.code == MUSTER_ESTATE && err.text[0]);
        return 0;
    }
    assert(s.nodes.count <= size);
    buf_init(&a, SIZE_MAX);
    buf_init(&b, SIZE_MAX);
    assert(pickle_write_text(&s, &a) == 0);
    assert(pickle_read_text(buf_span(&a), &t, &err) == 0);
    assert(pickle_write_text(&t, &b) == 0);
    assert(span_eq(buf_span(&a), buf_span(&b)));
    buf_fini(&a);
    buf_fini(&b);
    rdzv_state_fini(&s);
    rdzv_state_fini(&t);
    return 0;
}
