/* log.c - see log.h. */
#include "base/log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/base.h"
#include "base/mem.h"

static const unsigned char place_flags[] = {
#define PLACE_FLAGS(place, text, flags) [place] = (flags),
    LOG_PLACES(PLACE_FLAGS)
#undef PLACE_FLAGS
};

bool log_wants(const struct log *log, enum log_level level, enum log_place place)
{
    return log && log->emit &&
           level >= (place_flags[place] & LOG_TORCH ? log->torch_least : log->least);
}

void log_line(const struct log *log, enum log_level level, enum log_place place,
              const char *fmt, ...)
{
    char text[1024], *more = NULL;
    va_list ap;

    if (!log_wants(log, level, place))
        return;
    va_start(ap, fmt);
    const int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n >= (int)sizeof text && (more = mem_alloc((size_t)n + 1)) != NULL) {
        va_start(ap, fmt);
        (void)vsnprintf(more, (size_t)n + 1, fmt, ap);
        va_end(ap);
    }
    log->emit(log->ctx, level, place, more ? more : text);
    mem_free(more);
}

bool log_rate_allows(struct log_rate *r, uint64_t now_ms, const struct log *log,
                     const char *who)
{
    if (!r->since_ms || now_ms - r->since_ms >= LOG_RATE_MS) {
        if (r->left_out)
            log_line(log, LOG_WARN, AT_RENDEZVOUS,
                     "%s: %u more connections were refused in %" PRIu64 " s", who,
                     r->left_out, (now_ms - r->since_ms) / 1000);
        *r = (struct log_rate){ .since_ms = now_ms ? now_ms : 1 };
    }
    if (++r->lines <= LOG_RATE_LINES)
        return true;
    r->left_out++;
    return false;
}
