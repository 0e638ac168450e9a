/* fuzz_report.c - a report's file, as `muster report` reads it: whatever it holds, it
 * is refused with a reason, or shown without a character that does something to a
 * reader. */
#include <assert.h>

#include "base/buf.h"
#include "status/core/report_status.h"
#include "status/core/status_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct status_style style = { .columns = 80, .workers = true };
    json_t *report = json_loadb((const char *)data, size, 0, NULL);
    struct muster_error err = { 0 };
    struct job_status status = { 0 };
    struct buf b;

    buf_init(&b, SIZE_MAX);
    if (report && report_status(report, &status, &err) == 0) {
        status_text(&b, &status, &style);
        job_status_json(&b, &status, 0, true);
    } else {
        assert(!report || err.code);
    }
    for (size_t i = 0; i < buf_len(&b); i++)
        assert(buf_data(&b)[i] >= ' ' || buf_data(&b)[i] == '\n');
    buf_fini(&b);
    job_status_fini(&status);
    json_decref(report);
    return 0;
}
