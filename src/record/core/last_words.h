/* last_words.h - what a worker wrote to its stderr before it failed, understood: the
 * exception, where in the user's own code, and the last lines as a person saw them.
 * Pure; the bytes may be anything. */
#ifndef RECORD_CORE_LAST_WORDS_H
#define RECORD_CORE_LAST_WORDS_H

#include "base/base.h"
#include "base/buf.h"

#define LAST_WORDS_LINES 20u
#define LAST_WORDS_BYTES 32768u /* of stderr that are worth keeping */
#define LAST_WORDS_LINE  400u   /* bytes of one line */

/* The first of the last lines where they come from a file that others wrote to, too. */
#define LAST_WORDS_SHARED "(of a file that other processes write to, too)\n"

struct last_words {
    bool python;       /* there is a traceback, or a syntax error */
    bool aborts;       /* text is what a C++ exception or an assertion leaves */
    struct buf text;   /* owned: "RuntimeError: bad data shard 17"; "" if unknown */
    struct buf place;  /* owned: File "train.py", line 41, in load */
    struct buf source; /* owned: the line there, if Python showed it */
    struct buf file;   /* owned: train.py */
    int64_t line;      /* of file; 0: unknown */
    struct buf lines;  /* owned: the last lines, each with its newline */
};

/* Of the end of a stderr. rank: where several share one file, lines of other ranks
 * ("[rank3]: ", as torch marks them), of a launcher's own log and of streams that it
 * shows there are passed over; -1: all lines are the worker's. Clean, see
 * base/escape.h. Fails to understand rather than to return. */
void last_words_read(struct last_words *w, struct span tail, int64_t rank);
void last_words_fini(struct last_words *w); /* zeroed is fine */

/* Whether a piece of output has the first line of a traceback. */
bool last_words_has_traceback(struct span bytes);

#endif
