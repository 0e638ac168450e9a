/* option.c - see option.h. */
#include "hang/core/option.h"

#include <assert.h>

#include "base/duration.h"
#include "base/err.h"

#define LEAST_MS 1000u

static const char *const actions[] = { "report", "restart", "stop" };

const char *hang_action_name(enum hang_action action)
{
    assert((size_t)action < ARRAY_LEN(actions));
    return actions[action];
}

int hang_option_parse(const char *text, uint64_t *time_ms, enum hang_action *action,
                      struct muster_error *err)
{
    const size_t n = strcspn(text, ":");
    uint64_t ms;
    const int rc = duration_parse("--hang", span_of(text, n), 0, &ms, err);

    if (rc)
        return rc;
    if (ms < LEAST_MS)
        return err_set(err, MUSTER_EINVAL,
                       "--hang=%.100s: the shortest time is one second", text);
    size_t chosen = 0;
    if (text[n] == ':') {
        while (chosen < ARRAY_LEN(actions) &&
               strcmp(text + n + 1, actions[chosen]) != 0)
            chosen++;
        if (chosen == ARRAY_LEN(actions))
            return err_set(err, MUSTER_EINVAL,
                           "--hang=%.100s: choose from report, restart, stop", text);
    }
    assert(chosen < ARRAY_LEN(actions));
    *time_ms = ms;
    *action = (enum hang_action)chosen;
    return 0;
}
