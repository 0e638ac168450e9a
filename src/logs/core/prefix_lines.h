/* prefix_lines.h - from the bytes a worker wrote to the lines the console shows: prefix
 * + line, as torch's tailer prints them. Pure.
 *
 * Line ends are universal: \n, \r\n and \r all print as \n. Bytes that are not UTF-8
 * print as U+FFFD, by Python's count. A line is held back until it is whole; tee_flush
 * lets go of one that will not be. */
#ifndef LOGS_CORE_PREFIX_LINES_H
#define LOGS_CORE_PREFIX_LINES_H

#include "base/buf.h"

#define TEE_LINE_MAX (1u << 20) /* A longer line comes in pieces. */

struct tee {
    struct span prefix;   /* borrowed */
    char *const *needles; /* borrowed; lines with one of them are also copied */
    size_t needle_count;
    struct buf held; /* the line so far */
    bool fresh;      /* none of what is held is older than the last tee_feed */
    bool after_cr;   /* the last line ended in \r: a \n now belongs to it */
};

void tee_init(struct tee *t, struct span prefix, char *const *needles,
              size_t needle_count);
void tee_fini(struct tee *t); /* zeroed is fine */

/* Appends the whole lines of bytes to out, with their prefix; those that contain a
 * needle also to copy (may be NULL). 0 or MUSTER_ENOMEM, MUSTER_EFULL: then some lines
 * are lost, and the next ones are still whole. */
int tee_feed(struct tee *t, struct span bytes, struct buf *out, struct buf *copy);

/* The unfinished line, if there is one, without an end. What follows gets a prefix
 * again, as with torch. */
int tee_flush(struct tee *t, struct buf *out, struct buf *copy);

/* Before each line of a worker: "[default0]:", or the user's template (NULL or empty:
 * none). hostname is what gethostname() says, not the qualified name. */
int line_prefix(struct buf *out, const char *template, const char *role, int64_t rank,
                int64_t local_rank, const char *hostname);

static inline bool tee_holds(const struct tee *t)
{
    return buf_len(&t->held) > 0;
}

#endif
