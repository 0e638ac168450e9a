/* proc_stat.c - see proc_stat.h. */
#include "process/core/proc_stat.h"

/* The fields that are read, by the kernel's numbers; 2 is the name. */
enum { STATE = 3, PARENT = 4, UTIME = 14, STIME = 15, RSS = 24 };

/* What is behind the name; empty if there is none. */
static struct span behind_command(struct span text, struct span *command)
{
    const uint8_t *first = text.n ? memchr(text.p, '(', text.n) : NULL;
    const uint8_t *last = text.n ? memrchr(text.p, ')', text.n) : NULL;

    if (!first || !last || last < first)
        return span_of(NULL, 0);
    *command = span_of(first + 1, (size_t)(last - first) - 1);
    return span_skip(text, (size_t)(last - text.p) + 1);
}

/* Takes the next word off the front: a number, and nothing else. */
static bool take_number(struct span *rest, uint64_t *out)
{
    struct span word;

    return span_take_word(rest, " ", &word) && span_take_number(&word, out) && !word.n;
}

bool proc_stat_parse(struct span text, struct proc_stat *out)
{
    struct proc_stat s = { 0 };
    struct span rest = behind_command(text, &s.command);
    uint64_t user = 0, system = 0;
    struct span word;

    if (!span_take_word(&rest, " ", &word) || word.n != 1 ||
        !take_number(&rest, &s.parent))
        return false;
    s.state = (char)*word.p;
    for (int field = PARENT + 1; field <= RSS; field++) {
        if (field == UTIME)
            (void)take_number(&rest, &user);
        else if (field == STIME)
            s.timed = take_number(&rest, &system) &&
                      !__builtin_add_overflow(user, system, &s.ticks);
        else if (field == RSS)
            (void)take_number(&rest, &s.rss_pages);
        else
            (void)span_take_word(&rest, " ", &word);
    }
    *out = s;
    return true;
}

bool proc_status_signal(struct span status, const char *mask, int sig)
{
    char before[32] = "\n"; /* In a name a newline is escaped. */
    uint64_t bits = 0;

    (void)strncat(strncat(before, mask, 16), ":\t", 3);
    const uint8_t *at = memmem(status.p, status.n, before, strlen(before));
    if (!at || status.n - (size_t)(at - status.p) < strlen(before) + 16)
        return false;
    at += strlen(before);
    for (size_t i = 0; i < 16; i++) {
        if (at[i] >= '0' && at[i] <= '9')
            bits = bits << 4 | (uint64_t)(at[i] - '0');
        else if (at[i] >= 'a' && at[i] <= 'f')
            bits = bits << 4 | (uint64_t)(at[i] - 'a' + 10);
        else
            return false;
    }
    return bits >> (sig - 1) & 1;
}
