/* fuzz_node_status.c - what another node says of itself. What can be read is written
 * again as the same, and is printed in every form without a character that does
 * something to a reader. */
#include <assert.h>

#include "base/mem.h"
#include "status/core/job_status.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_text(const struct buf *b)
{
    assert(buf_error(b) == 0);
    for (size_t i = 0; i < buf_len(b); i++)
        assert(buf_data(b)[i] >= ' ' || buf_data(b)[i] == '\n');
}

static void print_all(const struct node_status *n)
{
    const struct job_answer answer = { 1, *n, 5 };
    struct job_input in = { .run_id = "r",
                            .backend = "b",
                            .endpoint = "e",
                            .now_us = 5,
                            .self = 1,
                            .host = "h",
                            .addr = "a",
                            .own = n,
                            .answers = &answer,
                            .answer_count = 1 };
    struct job_status j;
    struct buf b;

    buf_init(&b, SIZE_MAX);
    if (job_status_build(&j, &in) == 0) {
        job_status_json(&b, &j, 0, true);
        check_text(&b);
        job_status_metrics(&b, &j, (n->worker_count & 1) != 0);
        job_status_table(&b, &j);
        job_status_trace(&b, &j);
        check_text(&b);
        job_status_fini(&j);
    }
    buf_fini(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct node_status n, back;
    struct buf b;

    if (node_status_decode(span_of(data, size), &n, NULL) != 0)
        return 0;
    buf_init(&b, SIZE_MAX);
    node_status_encode(&b, &n);
    assert(node_status_decode(buf_span(&b), &back, NULL) == 0);
    assert(back.worker_count == n.worker_count && span_eq(back.wait, n.wait));
    print_all(&n);
    node_status_fini(&back);
    node_status_fini(&n);
    buf_fini(&b);
    return 0;
}
