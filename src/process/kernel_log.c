/* kernel_log.c - see kernel_log.h. */
#include "process/kernel_log.h"

#include <string.h>
#include <sys/klog.h>
#include <time.h>
#include <unistd.h>

#include "base/escape.h"
#include "base/mem.h"
#include "process/core/crash_log.h"

#define READ_ALL 3 /* syslog(2): the last bytes of the log, which stay there */
#define TAIL     (64u << 10) /* of it */
#define SLACK_S  600 /* the log's clock may drift from CLOCK_MONOTONIC over months */

/* The log has the pids of the initial namespace; in another one they mean nothing. The
 * kernel gives that namespace a fixed number. */
static bool are_pids_global(void)
{
    static const char initial[] = "pid:[4026531836]";
    char text[64];
    const ssize_t n = readlink("/proc/self/ns/pid", text, sizeof text);

    return n == sizeof initial - 1 && memcmp(text, initial, sizeof initial - 1) == 0;
}

bool kernel_log_crash(pid_t pid, double alive_s, char *name, size_t size)
{
    char *tail = are_pids_global() ? mem_alloc(TAIL) : NULL;
    struct timespec now = { 0 };
    struct span where;
    bool found = false;

    if (!tail)
        return false;
    const int n = klogctl(READ_ALL, tail, TAIL);

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    if (n > 0 && crash_log_find(span_of(tail, (size_t)n), pid,
                                (double)now.tv_sec - alive_s - SLACK_S, &where)) {
        (void)escape_text(name, size, where);
        found = true;
    }
    mem_free(tail);
    return found;
}
