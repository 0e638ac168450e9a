/* fuzz_job_input.c - what an agent tells `muster status` over its socket. What can be
 * read is written again as the same, and is printed as text and as JSON without a
 * character that does something to a reader. */
#include <assert.h>

#include "status/core/job_status.h"
#include "status/core/status_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct status_style style = { .columns = 80, .workers = true };
    struct job_known known;
    struct job_status status;
    struct buf b;

    if (job_input_decode(span_of(data, size), &known, NULL) != 0)
        return 0;
    buf_init(&b, SIZE_MAX);
    if (job_status_build(&status, &known.in) == 0) {
        status_text(&b, &status, &style);
        job_status_json(&b, &status, 0, true);
        job_status_fini(&status);
    }
    assert(buf_error(&b) == 0);
    for (size_t i = 0; i < buf_len(&b); i++)
        assert(buf_data(&b)[i] >= ' ' || buf_data(&b)[i] == '\n');
    buf_fini(&b);
    job_known_fini(&known);
    return 0;
}
