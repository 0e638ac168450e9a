/* last_words.h - finds in the stderr of a worker that failed the exception, the place
 * in the user's own code that raised it, and the last lines as a person saw them. Pure;
 * the bytes may be anything. */
#ifndef LOGS_CORE_LAST_WORDS_H
#define LOGS_CORE_LAST_WORDS_H

#include "base/base.h"
#include "base/buf.h"

#define LAST_WORDS_LINES 20u
#define LAST_WORDS_BYTES 32768u /* of stderr that are worth keeping */
#define LAST_WORDS_LINE  400u   /* bytes of one line */

/* Comes before the last lines if they are from a file that others wrote to, too. */
#define LAST_WORDS_SHARED "(of a file that other processes write to, too)\n"

struct last_words {
    bool python;       /* there is a traceback, or a syntax error */
    bool aborts;       /* text is of a C++ exception or a failed assertion */
    bool unwound;      /* the C++ runtime ended it, and there was no exception */
    struct buf text;   /* owned: "RuntimeError: bad data shard 17"; "" if unknown */
    struct buf place;  /* owned: File "train.py", line 41, in load */
    struct buf source; /* owned: the source line there, if Python showed it */
    struct buf file;   /* owned: train.py */
    int64_t line;      /* of file; 0: unknown */
    struct buf lines;  /* owned: the last lines, each with its newline */
};

/* Reads the end of a stderr. rank: several workers share the file, so lines of other
 * ranks (which torch marks with "[rank3]: "), of a launcher's own log and of streams
 * that it copies there are skipped; -1: all lines are the worker's. Colours are taken
 * out, and the results are escaped (base/escape.h). It cannot fail: what is not
 * understood stays empty. */
void last_words_read(struct last_words *w, struct span tail, int64_t rank);
void last_words_fini(struct last_words *w); /* zeroed is fine */

/* Whether a piece of output has the first line of a traceback. */
bool last_words_has_traceback(struct span bytes);

/* Whether it has that of an exception that nobody caught in this rank: torch marks the
 * lines of those alone with "[rank3]: ". */
bool last_words_has_uncaught(struct span bytes, int64_t rank);

#endif
