/* fuzz_etcd3.c - answers and streams of something that claims to be etcd's v3 gateway.
 * The first two bytes choose what is expected and the HTTP status. */
#include <assert.h>

#include "etcd/core/v3_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void decode(long status, enum etcd3_expect expect, struct span body)
{
    const struct etcd_http http = { status, 0, body };
    struct muster_error err = { 0 };
    struct etcd3_reply r;

    if (etcd3_decode(&http, expect, &r, &err) < 0) {
        assert(err.code < 0 && err.text[0]);
        return;
    }
    assert(r.used <= body.n && r.revision >= 0);
    if (r.error)
        assert(etcd3_error(&r, &err) < 0);
    for (size_t i = 0; i < r.count; i++)
        for (size_t k = 0; k < r.results[i].count; k++)
            assert(r.results[i].kvs[k].mod_revision >= 0);
    etcd3_reply_fini(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const enum etcd3_expect expect = size ? data[0] % (ETCD3_EXPECT_WATCH + 1) : 0;
    struct span line;
    struct buf in;
    size_t seen = 0;

    if (size < 2)
        return 0;
    decode(200 + data[1], expect, span_of(data + 2, size - 2));
    buf_init(&in, SIZE_MAX);
    for (size_t i = 2; i < size; i += 7) {
        if (buf_append(&in, data + i, MIN_OF(size - i, 7u)) < 0)
            break;
        while (etcd3_next_line(buf_span(&in), &seen, &line)) {
            decode(200, ETCD3_EXPECT_WATCH, line);
            buf_consume(&in, line.n + 1);
        }
    }
    buf_fini(&in);
    return 0;
}
