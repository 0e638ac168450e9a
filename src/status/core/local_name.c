/* local_name.c - see local_name.h. */
#include "status/core/local_name.h"

#include <inttypes.h>
#include <stdio.h>

#define PREFIX "muster/"

size_t local_name_print(const struct local_name *n, char out[LOCAL_NAME_MAX])
{
    int len =
        snprintf(out, LOCAL_NAME_MAX, PREFIX "%" PRIu32 "/%" PRId32, n->uid, n->pid);

    if (n->number)
        len +=
            snprintf(out + len, LOCAL_NAME_MAX - (size_t)len, "/%" PRIu32, n->number);
    return (size_t)len;
}

bool local_name_parse(struct span text, struct local_name *out)
{
    struct span rest = span_after(text, PREFIX);
    uint64_t v[3] = { 0 }; /* user, process, number */
    char again[LOCAL_NAME_MAX];

    for (size_t i = 0; i < ARRAY_LEN(v) && span_take_number(&rest, &v[i]) && rest.n;
         i++)
        rest = span_skip(rest, 1);
    if (v[0] > UINT32_MAX || v[1] == 0 || v[1] > INT32_MAX || v[2] >= LOCAL_NAME_TRIES)
        return false;
    const struct local_name n = { (uint32_t)v[0], (int32_t)v[1], (uint32_t)v[2] };
    if (!span_eq(span_of(again, local_name_print(&n, again)), text))
        return false; /* The same numbers in other words. */
    *out = n;
    return true;
}

/* Num RefCount Protocol Flags Type St Inode Path: the flag 00010000 is a socket that
 * listens, type 0001 a stream, and an '@' stands for each NUL byte of the name. */
bool local_name_of_line(struct span line, struct local_name *out)
{
    struct span fields[7];

    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        (void)span_take_word(&line, " ", &fields[i]);
    return span_eq(fields[3], span_str("00010000")) &&
           span_eq(fields[4], span_str("0001")) && span_starts(line, " @") &&
           local_name_parse(span_skip(line, 2), out);
}
