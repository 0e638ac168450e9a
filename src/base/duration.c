/* duration.c - see duration.h. */
#include "base/duration.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/err.h"

#define TEXT_MAX 64

/* The longer names come first. */
static const struct {
    const char *name;
    uint64_t ms;
} units[] = {
    { "ms", 1 }, { "s", 1000 }, { "m", 60000 }, { "h", 3600000 }, { "d", 86400000 }
};

/* Digits with at most one point among them; strtod alone would take "0x1" and "1e9". */
static size_t number_length(const char *at)
{
    size_t n = strspn(at, "0123456789");

    if (n && at[n] == '.')
        n += 1 + strspn(at + n + 1, "0123456789");
    return n;
}

/* Adds one number with its unit and moves *at behind it; false: it is none. */
static bool take_part(const char **at, double *ms)
{
    const size_t n = number_length(*at);

    for (size_t i = 0; n && i < ARRAY_LEN(units); i++) {
        const size_t length = strlen(units[i].name);

        if (strncmp(*at + n, units[i].name, length) != 0)
            continue;
        *ms += strtod(*at, NULL) * (double)units[i].ms;
        *at += n + length;
        return true;
    }
    return false;
}

int duration_parse(const char *option, struct span text, uint64_t bare_ms, uint64_t *ms,
                   struct muster_error *err)
{
    const int n = (int)MIN_OF(text.n, TEXT_MAX);
    char copy[TEXT_MAX + 1];
    const char *at = copy;
    double sum = 0;

    memcpy(copy, text.p, (size_t)n);
    copy[n] = '\0';
    const bool bare = n > 0 && number_length(copy) == (size_t)n;
    if (bare && bare_ms == 0 && strtod(copy, NULL) > 0)
        return err_set(err, MUSTER_EINVAL,
                       "%s=%s: %s what? Add the unit: %ss, %sm or %sh", option, copy,
                       copy, copy, copy, copy);
    if (bare)
        sum = strtod(copy, NULL) * (double)bare_ms;
    else
        while (take_part(&at, &sum) && *at)
            ;
    if (text.n == 0 || text.n > TEXT_MAX || (!bare && *at) ||
        !(sum <= (double)DURATION_MOST_MS))
        return err_set(err, MUSTER_EINVAL,
                       "%s=%s: give a time, at most 30 days: 500ms, 90s, 10m, 1h30m",
                       option, copy);
    *ms = (uint64_t)sum;
    return 0;
}

int duration_print(struct buf *out, uint64_t ms)
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
