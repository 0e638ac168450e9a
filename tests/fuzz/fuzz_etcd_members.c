/* fuzz_etcd_members.c - what a peer says of the members of an etcd cluster, and what a
 * host of --rdzv-serve makes of it. */
#include <stdint.h>

#include "etcd/serve/core/serve_plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct serve_members m = { 0 };
    uint64_t old = 0;
    int major, minor;
    struct buf b;

    (void)serve_version_parse(span_of(data, size), &major, &minor);
    (void)serve_turn_lease(span_of(data, size), &old);
    (void)serve_turn_is_ours(span_of(data, size));
    if (serve_members_parse(&m, span_of(data, size), NULL) < 0)
        return 0;
    buf_init(&b, SIZE_MAX);
    (void)serve_plan(&(struct serve_view){ &m, 3, 1, "http://h2:2380", "m" }, &old);
    (void)serve_cluster_existing(&b, &m, "m1", "http://h2:2380");
    buf_fini(&b);
    serve_members_fini(&m);
    return 0;
}
