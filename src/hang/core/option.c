/* option.c - see option.h. */
#include "hang/core/option.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/err.h"

#define LEAST_MS 1000u
#define MOST_MS  (30ull * 86400 * 1000)

static const char *const actions[] = { "report", "restart", "stop" };

const char *hang_action_name(enum hang_action action)
{
    assert((size_t)action < ARRAY_LEN(actions));
    return actions[action];
}

static uint64_t unit_of(const char *at, size_t *length)
{
    static const struct {
        const char *name;
        uint64_t ms;
    } units[] = {
        { "ms", 1 }, { "s", 1000 }, { "m", 60000 }, { "h", 3600000 }, { "d", 86400000 }
    };

    for (size_t i = 0; i < ARRAY_LEN(units); i++)
        if (strncmp(at, units[i].name, strlen(units[i].name)) == 0) {
            *length = strlen(units[i].name);
            return units[i].ms;
        }
    *length = 0;
    return *at == '\0' || *at == ':' ? 1000 : 0;
}

/* One number with its unit; *at is then behind it. False: not such a thing. */
static bool take_part(const char **at, uint64_t *ms)
{
    size_t length;
    char *end;

    if (**at < '0' || **at > '9')
        return false;
    const double number = strtod(*at, &end);
    const uint64_t unit = unit_of(end, &length);
    const double part = number * (double)unit;
    if (unit == 0 || !(part <= (double)MOST_MS))
        return false;
    *ms += (uint64_t)part;
    *at = end + length;
    return *ms <= MOST_MS;
}

/* A time up to the end of the text, or to what `--hang` has behind it. */
static const char *take_time(const char *text, uint64_t *ms)
{
    *ms = 0;
    do {
        if (!take_part(&text, ms))
            return NULL;
    } while (*text != '\0' && *text != ':');
    return text;
}

bool hang_time_parse(const char *text, uint64_t *ms)
{
    uint64_t time;
    const char *end = take_time(text, &time);

    if (!end || *end)
        return false;
    *ms = time;
    return true;
}

int hang_option_parse(const char *text, uint64_t *time_ms, enum hang_action *action,
                      struct muster_error *err)
{
    uint64_t ms;
    const char *at = take_time(text, &ms);

    if (!at)
        return err_set(err, MUSTER_EINVAL,
                       "--hang=%.100s: give a time, at most 30 days: 90s, 10m, "
                       "1h30m; and what to do: 10m:report, 10m:restart, 10m:stop",
                       text);
    if (ms < LEAST_MS)
        return err_set(err, MUSTER_EINVAL,
                       "--hang=%.100s: the shortest time is one second", text);
    size_t chosen = 0;
    if (*at == ':') {
        while (chosen < ARRAY_LEN(actions) && strcmp(at + 1, actions[chosen]) != 0)
            chosen++;
        if (chosen == ARRAY_LEN(actions))
            return err_set(err, MUSTER_EINVAL,
                           "--hang=%.100s: choose from report, restart, stop", text);
    }
    assert(ms <= MOST_MS && chosen < ARRAY_LEN(actions));
    *time_ms = ms;
    *action = (enum hang_action)chosen;
    return 0;
}

int hang_time_print(struct buf *out, uint64_t ms)
{
    const uint64_t s = (ms + 500) / 1000;

    if (s >= 3600)
        buf_printf(out, "%" PRIu64 " h %" PRIu64 " min", s / 3600, s / 60 % 60);
    else if (s >= 60)
        buf_printf(out, "%" PRIu64 " min %" PRIu64 " s", s / 60, s % 60);
    else
        buf_printf(out, "%" PRIu64 " s", s);
    return buf_error(out);
}
