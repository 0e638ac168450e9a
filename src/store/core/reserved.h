/* reserved.h - keys that are questions to our server rather than entries in its map.
 * The decoder of requests looks once whether a key is one (c10d_request.name).
 *
 * On the wire they begin with "/\x01muster/" (clients put the "/" before every key). A
 * CHECK of the caps key tells a muster server from torch's, where nobody has set that
 * key. A WAIT for a RESERVED_CHANGED key ends as soon as the value of the key that it
 * names differs from the one that the caller knows, so that nobody needs to poll. */
#ifndef STORE_CORE_RESERVED_H
#define STORE_CORE_RESERVED_H

#include "base/base.h"

#define RESERVED_PREFIX "/\x01muster/"
#define RESERVED_CAPS   RESERVED_PREFIX "caps"
/* Sessions push messages to it (job/core/wire.h). CHECK finds it where
 * RESERVED_CAPS_RUN is among the caps: one question, which needs no answer to another
 * first. */
#define RESERVED_RUN RESERVED_PREFIX "run"
/* GET: the run ids of the jobs whose coordinator is in this store, a line each. */
#define RESERVED_RUNS RESERVED_PREFIX "runs"
/* GET: the runs whose nodes have come to this store, and how many: "2 some-id", a line
 * each. */
#define RESERVED_GATHERED RESERVED_PREFIX "gathered"
#define RESERVED_STATS    RESERVED_PREFIX "stats"    /* see store/server_int.h */
#define RESERVED_CHANGED  RESERVED_PREFIX "changed/" /* 16 hex digits, "/", wire key */

/* The answer to a GET of the caps key: words with a space between them. */
#define RESERVED_CAPS_RUN "run3" /* it hosts runs of jobs: job/core/wire.h */
/* Older releases hosted jobs by other messages. Nodes of theirs look for this word, and
 * are told that their release is too old. */
#define RESERVED_CAPS_OLD  "hosted"
#define RESERVED_CAPS_TEXT "changed " RESERVED_CAPS_OLD " " RESERVED_CAPS_RUN

/* Whether the word is among them. Words are compared whole, so that later ones may
 * begin alike. */
bool reserved_caps_have(struct span words, const char *word);

/* The answer to a client that has not proven that it holds the job's secret; with
 * --encrypt there is a second word. */
#define RESERVED_CAPS_SECRET  "secret"
#define RESERVED_CAPS_ENCRYPT "encrypt"

/* Under this prefix and a run's id torch's nodes share the state of their rendezvous.
 * An ordinary key to the engine; our server may have a run behind it. */
#define RESERVED_STATE "/torch.rendezvous."

enum reserved_kind {
    RESERVED_NONE,     /* an ordinary key */
    RESERVED_IS_STATE, /* an ordinary key, too; see RESERVED_STATE */
    RESERVED_IS_CAPS,  /* this and all below have RESERVED_PREFIX */
    RESERVED_IS_CHANGED,
    RESERVED_IS_ANSWERED, /* always ready; the server, not this engine, answers a GET */
    RESERVED_UNKNOWN, /* none of the above; it may name what messages are pushed to */
};

struct reserved {
    enum reserved_kind kind;
    uint64_t hash;   /* CHANGED: of the value that the caller knows */
    struct span key; /* CHANGED: the key watched; points into the name parsed */
};

/* FNV-1a, 64 bits. A key that is missing hashes like an empty value. */
uint64_t reserved_hash(struct span value);

struct reserved reserved_parse_slow(struct span name); /* for reserved_parse only */

static inline struct reserved reserved_parse(struct span name)
{
    if (name.n < sizeof RESERVED_PREFIX - 1 ||
        (name.p[1] != RESERVED_PREFIX[1] && name.p[1] != RESERVED_STATE[1]))
        return (struct reserved){ .kind = RESERVED_NONE };
    return reserved_parse_slow(name);
}

/* Whether the store has no entry of that name. */
static inline bool reserved_is_question(struct reserved r)
{
    return r.kind >= RESERVED_IS_CAPS;
}

#endif
