/* trace.c - see trace.h. */
#include "base/trace.h"

#include <stdarg.h>
#include <stdio.h>

void trace(const struct trace *t, enum trace_level level, const char *fmt, ...)
{
    char line[1024];
    va_list ap;

    if (!t || !t->emit || level < t->least)
        return;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    t->emit(t->ctx, level, line);
}
