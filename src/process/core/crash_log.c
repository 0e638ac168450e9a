/* crash_log.c - see crash_log.h. The messages look like these:
 *
 *   <6>[  838.522557] python3[7244]: segfault at 0 ip 00007f968b385ad8 sp
 * 00007ffd493941c8 error 4 in libc.so.6[167ad8,7f968b244000+156000] likely on CPU 1
 *   <6>[  901.100000] traps: a.out[77] trap divide error ip:401136 sp:7ffc error:0 in
 *       a.out[401000+1000]
 *
 * Whoever runs a process chooses its name and those of its files, so a pid is looked
 * for only where the kernel puts it: behind a name of at most 15 bytes. */
#include "process/core/crash_log.h"

#define COMM_MAX   15u  /* bytes of a process's name */
#define FILE_MAX   255u /* bytes of a file's name */
#define DIGITS_MAX 10u

static bool is_digit(uint8_t c)
{
    return c >= '0' && c <= '9';
}

static bool is_hex(uint8_t c)
{
    return is_digit(c) || (c >= 'a' && c <= 'f');
}

/* The number that s begins with, and how many digits it has: 0 if there is none, or too
 * many. */
static size_t take_digits(struct span s, int64_t *number)
{
    const size_t n = s.n;
    uint64_t v;

    if (!span_take_number(&s, &v) || n - s.n > DIGITS_MAX)
        return 0;
    *number = (int64_t)v;
    return n - s.n;
}

/* Takes "<6>" from the front. A line without it was cut. */
static bool take_level(struct span *line)
{
    int64_t level;
    const size_t n =
        span_starts(*line, "<") ? take_digits(span_skip(*line, 1), &level) : 0;

    if (n == 0 || n + 1 >= line->n || line->p[n + 1] != '>')
        return false;
    *line = span_skip(*line, n + 2);
    return true;
}

/* Takes a group in brackets from the front. */
static void take_brackets(struct span *line)
{
    const uint8_t *end = span_starts(*line, "[") ? memchr(line->p, ']', line->n) : NULL;

    if (end)
        *line = span_skip(*line, (size_t)(end - line->p) + 1);
}

/* Takes "[  838.522557] " from the front; -1 if there is none (printk.time=0). Some
 * kernels add who printed it: "[  838.522557][ T7244] ". */
static double take_time(struct span *line)
{
    int64_t whole = 0, micros;
    size_t i = 1;

    if (!span_starts(*line, "["))
        return -1;
    while (i < line->n && line->p[i] == ' ')
        i++;
    i += take_digits(span_skip(*line, i), &whole);
    if (i + 1 >= line->n || !is_digit(line->p[i - 1]) || line->p[i] != '.' ||
        take_digits(span_skip(*line, i + 1), &micros) != 6)
        return -1;
    take_brackets(line);
    take_brackets(line);
    if (span_starts(*line, " "))
        *line = span_skip(*line, 1);
    return (double)whole + (double)micros / 1e6;
}

/* Takes "python3[7244]" from the front, and returns the pid; -1 if that is not there. A
 * process may have brackets in its name, so the last ones count. */
static int64_t take_pid(struct span *line)
{
    struct span rest = *line;
    int64_t pid = -1;

    for (size_t i = 0; i <= COMM_MAX && i < line->n; i++) {
        int64_t number;
        const size_t n =
            line->p[i] == '[' ? take_digits(span_skip(*line, i + 1), &number) : 0;
        const size_t end = i + 1 + n;

        if (n == 0 || end + 1 >= line->n || line->p[end] != ']' ||
            (line->p[end + 1] != ':' && line->p[end + 1] != ' '))
            continue;
        pid = number;
        rest = span_skip(*line, end + 1);
    }
    *line = rest;
    return pid;
}

/* Whether s ends with "[167ad8,7f968b244000+156000]", or without the first number as in
 * older kernels; then *n is what comes before it. */
static bool ends_with_mapping(struct span s, size_t *n)
{
    size_t i = s.n, plus = 0;

    if (i == 0 || s.p[--i] != ']')
        return false;
    while (i > 0 && (is_hex(s.p[i - 1]) || s.p[i - 1] == '+' || s.p[i - 1] == ','))
        plus += s.p[--i] == '+';
    if (plus != 1 || i == 0 || s.p[i - 1] != '[')
        return false;
    *n = i - 1;
    return true;
}

/* The file of " in libc.so.6[167ad8,7f968b244000+156000] likely on CPU 1". */
static bool find_file(struct span s, struct span *where)
{
    const uint8_t *in = s.n ? memmem(s.p, s.n, " in ", 4) : NULL;
    size_t n;

    if (!in)
        return false;
    s = span_skip(s, (size_t)(in - s.p) + 4);
    for (; s.n; s.n--)
        if (ends_with_mapping(s, &n)) {
            *where = span_of(s.p, n);
            return n > 0 && n <= FILE_MAX;
        }
    return false;
}

static bool read_line(struct span line, int64_t pid, double since_s, struct span *where)
{
    static const char traps[] = "traps: ";

    if (!take_level(&line))
        return false;
    const double at = take_time(&line);

    if (at >= 0 && at < since_s)
        return false;
    if (span_starts(line, traps))
        line = span_skip(line, sizeof traps - 1);
    return take_pid(&line) == pid && find_file(line, where);
}

bool crash_log_find(struct span log, int64_t pid, double since_s, struct span *where)
{
    while (log.n) {
        const uint8_t *nl = memrchr(log.p, '\n', log.n);
        const size_t from = nl ? (size_t)(nl - log.p) + 1 : 0;

        if (read_line(span_skip(log, from), pid, since_s, where))
            return true;
        log.n = nl ? (size_t)(nl - log.p) : 0;
    }
    return false;
}
