/* fuzz_etcd2.c - answers of something that claims to be etcd's v2 interface. The first
 * two bytes are the HTTP status. */
#include <assert.h>

#include "etcd/core/v2_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct etcd_http http = { 200, 0, { NULL, 0 } };
    struct muster_error err = { 0 };
    struct etcd2_reply r;
    struct span list, url;

    if (size < 2)
        return 0;
    http.status = 200 + data[0] + data[1];
    http.body = span_of(data + 2, size - 2);
    if (etcd2_decode(&http, &r, &err) == 0) {
        if (r.error)
            assert(etcd2_error(&r, &err) < 0);
        for (size_t i = 0; i < r.count; i++)
            assert(r.nodes[i].key.p || r.nodes[i].key.n == 0);
        etcd2_reply_fini(&r);
    } else {
        assert(err.code < 0 && err.text[0]);
    }
    list = http.body;
    while (etcd2_machines_next(&list, &url))
        assert(url.n > 0);
    return 0;
}
