/* notice.h - where word comes from that a node is to go, and how the workers hear of
 * it:
 * --notice and --on-notice. Pure. */
#ifndef POLICY_CORE_NOTICE_H
#define POLICY_CORE_NOTICE_H

#include "base/base.h"
#include "muster/error.h"

#define NOTICE_SIGNALS 8u
#define NOTICE_SLURM_MS                                                                \
    120000u /* before the job's end, unless another time is given                      \
             */
#define NOTICE_MOST_MS 86400000u

/* --notice=SIGNAL[:TIME],...,slurm[:TIME] or a command; TIME is what is left then. */
struct notice_sources {
    struct {
        int sig;
        uint64_t ms; /* 0: as after any signal, --shutdown-timeout */
    } signals[NOTICE_SIGNALS];
    size_t count;
    bool slurm; /* the end time of the job, and SIGTERM, by which it preempts */
    uint64_t slurm_ms;
    const char *command; /* borrowed from the text; NULL: none */
};

/* text NULL: none. MUSTER_EINVAL: err says what is wrong, and the nearest word. */
int notice_parse(struct notice_sources *out, const char *text,
                 struct muster_error *err);

/* --on-notice=SIGNAL|CMD: the signal, or 0 and it is a command. text NULL: SIGTERM. */
int notice_answer_parse(int *sig, const char *text, struct muster_error *err);

/* The file of MUSTER_NOTICE_FILE: always so many bytes, the deadline in seconds since
 * 1970 or 0, and a newline. */
#define NOTICE_FILE_SIZE 32u
void notice_file_text(char text[NOTICE_FILE_SIZE + 1], int64_t deadline_us);

#endif
