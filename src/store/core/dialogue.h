/* dialogue.h - how a step machine talks to a store: it asks one question at a time, and
 * asks it again when the connection breaks, until a deadline.
 *
 * The machines are the workers' address, the static count-in, the rank exchange and the
 * exit barrier. Each embeds a struct store_dialogue as its first member and has a step
 * of type dialogue_step. One driver (store/dialogue_driver.c) runs them all; the
 * simulator can, too. What always holds:
 *
 *   - BEGIN comes first and once; each ASK and each DO is answered by one ANSWER;
 *   - a step gives exactly one effect, or NOTHING while it waits for
 * dialogue_deadline();
 *   - DONE, FAILED and REJOIN end the machine: no event comes after them;
 *   - a step that returns MUSTER_ENOMEM ends the machine, too: it can only be finished.
 */
#ifndef STORE_CORE_DIALOGUE_H
#define STORE_CORE_DIALOGUE_H

#include "base/base.h"
#include "base/buf.h"
#include "muster/error.h"
#include "store/core/wire.h"

#define DIALOGUE_KEY      96u
#define DIALOGUE_PARTS    2u
#define DIALOGUE_SLICE_MS 3000u /* of one wait; then the connection is checked */
#define DIALOGUE_REPLY_MS 5000u /* for questions that a server answers at once */

struct store_dialogue {
    /* The question: its parts are sent in one piece, and the last one is answered. */
    struct c10d_request parts[DIALOGUE_PARTS];
    size_t count;
    bool blocks; /* the last part waits for keys, so it may time out without harm */
    bool raw;    /* keys are as on the wire */
    uint64_t timeout_ms;
    char key[DIALOGUE_PARTS][DIALOGUE_KEY]; /* parts may point to these */
    struct buf list, value;                 /* owned; parts may point to these, too */

    uint64_t by_ms;    /* the machine gives up then */
    uint64_t again_ms; /* the question is asked again then; MONO_NEVER: it is not */
    uint64_t broke_ms; /* when the connection first broke; MONO_NEVER: never */
    unsigned failures; /* in a row */
    bool asking;       /* an ANSWER is due */
};

enum dialogue_event_kind {
    DIALOGUE_BEGIN,
    DIALOGUE_ANSWER, /* status, and reply or number or text */
    DIALOGUE_TIMER,  /* dialogue_deadline() has come */
};

struct dialogue_event {
    enum dialogue_event_kind kind;
    struct now now;
    int status;
    const struct c10d_reply *reply; /* to an ASK; borrowed for the step */
    int64_t number;                 /* to a DO */
    const char *text;               /* why status is negative; borrowed for the step */
};

enum dialogue_fx_kind {
    DIALOGUE_NOTHING,
    DIALOGUE_ASK,  /* the parts of struct store_dialogue */
    DIALOGUE_DO,   /* what: the machine's own number for it */
    DIALOGUE_DONE, /* the machine's struct has the result */
    DIALOGUE_FAILED,
    DIALOGUE_REJOIN, /* the others have gone on without us */
};

struct dialogue_fx {
    enum dialogue_fx_kind kind;
    int what;
    struct muster_error err; /* FAILED */
};

/* 0, or MUSTER_ENOMEM: no event may come after that. */
typedef int (*dialogue_step)(struct store_dialogue *t, const struct dialogue_event *ev,
                             struct dialogue_fx *fx);

void dialogue_init(struct store_dialogue *t); /* cannot fail */
void dialogue_fini(struct store_dialogue *t); /* NULL and zeroed are fine */

/* When to send TIMER, by mono_ms; MONO_NEVER while an answer is due. */
uint64_t dialogue_deadline(const struct store_dialogue *t);

/* ---- for the machines ---- */

/* Whether an error means that the connection, not the question, is at fault. */
bool dialogue_is_broken(int status);

/* The answer did not come: asks again after a pause that grows with each failure. */
void dialogue_again(struct store_dialogue *t, struct now now, struct dialogue_fx *fx);

/* Asks the question whose parts the caller sets afterwards. Takes over the buffers that
 * the parts point to, if there are any. Cannot fail. */
void dialogue_ask(struct store_dialogue *t, struct buf *list, struct buf *value,
                  size_t parts, bool blocks, struct now now, struct dialogue_fx *fx);

int dialogue_fail(struct dialogue_fx *fx, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4))); /* returns 0 */

#endif
