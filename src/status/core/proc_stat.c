/* proc_stat.c - see proc_stat.h. */
#include "status/core/proc_stat.h"

/* Fields behind the name: 3 is the state, 14 and 15 the times, 24 the pages. */
#define STATE 3
#define UTIME 14
#define STIME 15
#define RSS   24

static const uint8_t *after_name(struct span text)
{
    for (size_t i = text.n; i-- > 0;)
        if (text.p[i] == ')') /* the last one, as the name may have others */
            return text.p + i + 1;
    return NULL;
}

bool proc_stat_parse(struct span text, struct proc_stat *out)
{
    const uint8_t *p = after_name(text), *end = text.p + text.n;
    struct proc_stat s = { 0 };

    if (!p)
        return false;
    for (int field = STATE; field <= RSS; field++) {
        uint64_t v = 0;

        while (p < end && *p == ' ')
            p++;
        if (p == end)
            return false;
        if (field == STATE)
            s.state = (char)*p;
        for (; p < end && *p != ' '; p++)
            if (*p >= '0' && *p <= '9')
                v = v * 10 + (uint64_t)(*p - '0');
        if (field == UTIME || field == STIME)
            s.ticks += v;
        if (field == RSS)
            s.rss_pages = v;
    }
    *out = s;
    return true;
}
