/* warm_core.h - what becomes of the warm interpreter: which modules it imports, what
 * its lines mean, and whether one that is gone is replaced. Pure.
 *
 * Lines of src/warm/server.py, one each:
 *     importing NAME          before each module
 *     ready MS KB MODULES     workers can be forked from now on
 *     left-out NAME WHY       importing it left WHY behind; it begins again without it
 *     needs NAME OTHER        the same: importing it would have imported OTHER, which
 * is one of those that must not be there never NAME              this is why: it must
 * not be there the next time either fails NAME WHY          it does not import, and
 * nobody named it; it goes on failed WHY              it will never be ready; it exits
 *     refused WHY             this worker was not forked
 *     stale FILE, grown KB    it is out of date, or too large; it begins again
 *     module NAME             a worker has imported this (--warm=auto)
 *     differs NAME            its import depends on a variable that the script sets, or
 *                             on the worker's rank: as never, and for torch, too */
#ifndef WARM_CORE_WARM_CORE_H
#define WARM_CORE_WARM_CORE_H

#include "base/base.h"
#include "base/buf.h"
#include "launch/core/config.h"

enum warm_phase {
    WARM_IMPORTING, /* workers that are asked for wait for it */
    WARM_READY,
    WARM_GIVEN_UP, /* workers are started the ordinary way, for good */
};

struct warm_core {
    struct text_list modules; /* owned: what the next server imports */
    size_t chosen;            /* how many of these, the first, were not learned */
    bool optional;            /* nobody named them */
    bool learning;            /* --warm=auto */
    bool changed;             /* there is something new to keep for the next start */
    enum warm_phase phase;
    char importing[256];  /* the module that is being imported; "" none */
    char reason[1024];    /* why the server is about to exit; "" it did not say */
    unsigned deaths;      /* in a row, without a worker in between */
    bool left_out;        /* this server began again: a module had to be left out */
    bool late;            /* it is ended because workers have waited long enough */
    struct text_list had; /* owned: what a worker has imported besides (--warm=auto) */
    struct text_list never;  /* owned: what this script imports and a server must not,
                                nor anything below it, nor what would import it */
    struct text_list broken; /* owned: what does not import in a server */
};

enum warm_log_level { WARM_QUIET, WARM_INFO, WARM_WARN };

/* What to tell the user, if anything. */
struct warm_text {
    enum warm_log_level level;
    char text[2048];
};

/* value: of --warm; "" for the usual modules, "auto", or names between commas.
 * MUSTER_EINVAL if one of them cannot be the name of a module. */
int warm_core_init(struct warm_core *w, const char *value, struct muster_error *err);
void warm_core_fini(struct warm_core *w);

/* For --warm=auto: what was learned before, one name a line; with a ! in front of it, a
 * module that a server must not import, with a ~ one that it cannot. Anything else is
 * skipped. */
int warm_core_learned(struct warm_core *w, struct span text);

/* What warm_core_learned shall be given at the next start. Whoever has kept it clears
 * changed. */
int warm_core_keep(const struct warm_core *w, struct buf *out);

/* A line without its end. 0 or MUSTER_ENOMEM; a line that means nothing is ignored. */
int warm_core_line(struct warm_core *w, struct span line, struct warm_text *out);

/* Workers have waited so long for a module that is still being imported. */
void warm_core_slow(const struct warm_core *w, uint64_t ms, struct warm_text *out);

/* Modules that had to be left out have kept the workers waiting for so long: the server
 * is about to be killed, so that they start the ordinary way. */
void warm_core_late(struct warm_core *w, uint64_t ms, struct warm_text *out);

/* A worker was forked. */
void warm_core_forked(struct warm_core *w);

/* The server is gone: status as from waitpid, or errnum if it was never there. True:
 * start another one. */
bool warm_core_exited(struct warm_core *w, int status, int errnum,
                      struct warm_text *out);

/* Is this a module's name: identifiers between dots? */
bool warm_is_module(struct span name);

/* After a restart of workers that are not warm: the line that names --warm, or
 * WARM_QUIET. ms: from exec to the first request at the store. */
void warm_hint(uint64_t ms, struct warm_text *out);

#endif
