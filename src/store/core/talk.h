/* talk.h - how a step machine talks to a store: it asks one question at a time, and
 * asks it again when the connection breaks, until a deadline.
 *
 * The machines are the workers' address, the static count-in, the rank exchange and the
 * exit barrier. Each embeds a struct talk as its first member and has a step of type
 * talk_step. One driver (store/talk_driver.c) runs them all; the simulator can, too.
 * What always holds:
 *
 *   - BEGIN comes first and once; each ASK and each DO is answered by one ANSWER;
 *   - a step gives exactly one effect, or NOTHING while it waits for talk_deadline();
 *   - DONE, FAILED and REJOIN end the machine: no event comes after them;
 *   - a step that returns MUSTER_ENOMEM has changed nothing: the event may come again.
 */
#ifndef STORE_CORE_TALK_H
#define STORE_CORE_TALK_H

#include "base/base.h"
#include "base/buf.h"
#include "muster/error.h"
#include "store/core/wire.h"

#define TALK_KEY      96u
#define TALK_PARTS    2u
#define TALK_SLICE_MS 3000u /* of one wait; then the connection is checked */
#define TALK_REPLY_MS 5000u /* for questions that a server answers at once */

struct talk {
    /* The question: its parts are sent in one piece, and the last one is answered. */
    struct c10d_request parts[TALK_PARTS];
    size_t count;
    bool blocks; /* the last part waits for keys, so it may time out without harm */
    bool raw;    /* keys are as on the wire */
    uint64_t timeout_ms;
    char key[TALK_PARTS][TALK_KEY]; /* parts may point to these */
    struct buf list, value;         /* owned; parts may point to these, too */

    uint64_t by_ms;    /* the machine gives up then */
    uint64_t again_ms; /* the question is asked again then; MONO_NEVER: it is not */
    uint64_t broke_ms; /* when the connection first broke; MONO_NEVER: never */
    unsigned failures; /* in a row */
    bool asking;       /* an ANSWER is due */
};

enum talk_event_kind {
    TALK_BEGIN,
    TALK_ANSWER, /* status, and reply or number or text */
    TALK_TIMER,  /* talk_deadline() has come */
};

struct talk_event {
    enum talk_event_kind kind;
    struct now now;
    int status;
    const struct c10d_reply *reply; /* to an ASK; borrowed for the step */
    int64_t number;                 /* to a DO */
    const char *text;               /* why status is negative; borrowed for the step */
};

enum talk_fx_kind {
    TALK_NOTHING,
    TALK_ASK,  /* the parts of struct talk */
    TALK_DO,   /* what: the machine's own number for it */
    TALK_DONE, /* the machine's struct has the result */
    TALK_FAILED,
    TALK_REJOIN, /* the others have gone on without us */
};

struct talk_fx {
    enum talk_fx_kind kind;
    int what;
    struct muster_error err; /* FAILED */
};

/* 0, or MUSTER_ENOMEM with nothing changed. */
typedef int (*talk_step)(struct talk *t, const struct talk_event *ev,
                         struct talk_fx *fx);

void talk_init(struct talk *t); /* cannot fail */
void talk_fini(struct talk *t); /* NULL and zeroed are fine */

/* When to send TIMER, by mono_ms; MONO_NEVER while an answer is due. */
uint64_t talk_deadline(const struct talk *t);

/* ---- for the machines ---- */

/* Whether an error means that the connection, not the question, is at fault. */
bool talk_is_broken(int status);

/* The answer did not come: asks again after a pause that grows with each failure. */
void talk_again(struct talk *t, struct now now, struct talk_fx *fx);

/* Asks the question whose parts the caller sets afterwards. Takes over the buffers that
 * the parts point to, if there are any. Cannot fail. */
void talk_ask(struct talk *t, struct buf *list, struct buf *value, size_t parts,
              bool blocks, struct now now, struct talk_fx *fx);

int talk_fail(struct talk_fx *fx, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4))); /* returns 0 */

#endif
