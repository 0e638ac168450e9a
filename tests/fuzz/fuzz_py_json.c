/* fuzz_py_json.c - what workers and other agents write: error files, role_info,
 * assigned_ranks. Whatever is accepted can be printed and read again. */
#include <assert.h>
#include <stdint.h>

#include "agent/core/failure_report.h"
#include "rendezvous/core/rank_exchange.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void error_files(struct span in)
{
    struct error_file e = { 0 }, again = { 0 };
    struct muster_error err;
    struct buf b;

    if (error_file_parse(&e, in, &err) != 0)
        return;
    buf_init(&b, SIZE_MAX);
    assert(error_file_for_parent(&b, &e, -9) == 0);
    assert(error_file_parse(&again, buf_span(&b), &err) == 0);
    assert(again.time_s == e.time_s && again.object == e.object);
    buf_fini(&b);
    error_file_fini(&e);
    error_file_fini(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct span in = span_of(data, size);
    struct role_info r = { 0 };
    struct rank_range g;
    struct buf b;

    error_files(in);
    if (role_info_parse(&r, in, NULL) == 0)
        role_info_fini(&r);
    if (rank_range_parse(&g, in, NULL) == 0) {
        buf_init(&b, SIZE_MAX);
        assert(rank_range_print(&b, &g) == 0);
        assert(rank_range_parse(&g, buf_span(&b), NULL) == 0);
        buf_fini(&b);
    }
    return 0;
}
