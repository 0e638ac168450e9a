/* metric_names.c - see metric_names.h. */
#include "agent/core/metric_names.h"

#include <inttypes.h>

#include "base/py/json.h"
#include "muster/error.h"

const char *metric_call_name(enum metric_call call)
{
    static const char *const names[] = {
#define METRIC_CALL_NAME(name, word) [name] = word,
        METRIC_CALLS(METRIC_CALL_NAME)
#undef METRIC_CALL_NAME
    };
    return names[call];
}

/* A float as Python shows it. */
static void put_metric_time(struct buf *out, double t)
{
    json_t *real = json_real(t);

    if (real)
        json_python(out, real);
    else
        buf_fail(out, MUSTER_ENOMEM);
    json_decref(real);
}

int metric_print(struct buf *out, const struct metric *m)
{
    buf_u8(out, '[');

    put_metric_time(out, m->timestamp);
    buf_printf(out, "][" METRIC_GROUP "]: %s=%" PRId64 "\n", m->name, m->value);
    return buf_error(out);
}

int metric_print_json(struct buf *out, const struct metric *m)
{
    buf_append_str(out, "{\"timestamp\": ");

    put_metric_time(out, m->timestamp);
    buf_append_str(out, ", \"group_name\": \"" METRIC_GROUP "\", \"name\": ");
    json_text(out, m->name);
    buf_printf(out, ", \"value\": %" PRId64 "}\n", m->value);
    return buf_error(out);
}

int64_t metric_flakiness(bool failed, int64_t remaining, int64_t max_restarts)
{
    if (failed)
        return 100;
    return (int64_t)(100.0 -
                     100.0 * (double)(remaining + 1) / (double)(max_restarts + 1));
}
