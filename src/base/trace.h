/* trace.h - how core logs: a driver prints the lines, the simulator reads them. */
#ifndef BASE_TRACE_H
#define BASE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

enum trace_level {
    TRACE_DEBUG,
    TRACE_INFO,
    TRACE_WARN,
    TRACE_ADVICE, /* a warning that may be left out when there are others */
    TRACE_ECHO,   /* a warning of what the job's record tells, too */
    TRACE_ERROR
};

typedef void (*trace_fn)(void *ctx, enum trace_level level, const char *text);

struct trace {
    trace_fn emit; /* NULL: nobody listens */
    void *ctx;     /* borrowed */
    enum trace_level least;
};

/* Formats into a line of at most 1023 bytes and hands it on. t may be NULL. */
void trace(const struct trace *t, enum trace_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Limits log lines that anybody outside the job can cause: TRACE_LINES are printed in
 * TRACE_LINES_MS, the rest is only counted. Zeroed to begin with. */
#define TRACE_LINES    10u
#define TRACE_LINES_MS 10000u
struct trace_rate {
    uint64_t since_ms; /* when counting began; 0: not yet */
    unsigned lines, left_out;
};

/* Whether one more line may be printed. If lines were left out before, it first logs
 * how many: "[who]: N more connections were refused in S s". */
bool trace_rate_allows(struct trace_rate *r, uint64_t now_ms, const struct trace *t,
                       const char *who);

#endif
