/* trace.h - where core tells its story. The driver prints it, the simulator reads it.
 */
#ifndef BASE_TRACE_H
#define BASE_TRACE_H

enum trace_level { TRACE_DEBUG, TRACE_INFO, TRACE_WARN, TRACE_ERROR };

typedef void (*trace_fn)(void *ctx, enum trace_level level, const char *text);

struct trace {
    trace_fn emit; /* NULL: nobody listens */
    void *ctx;     /* borrowed */
    enum trace_level least;
};

/* Formats into a line of at most 1023 bytes and hands it on. t may be NULL. */
void trace(const struct trace *t, enum trace_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
