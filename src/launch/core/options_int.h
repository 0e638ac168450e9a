/* options_int.h - shared by options.c (the walk over the words), options_word.c (what a
 * word is) and options_value.c (what becomes of a value). */
#ifndef LAUNCH_CORE_OPTIONS_INT_H
#define LAUNCH_CORE_OPTIONS_INT_H

#include "launch/core/options.h"

#define NAME_MAX_LEN 64

/* A reading of the command line. */
struct walk {
    struct options *o;
    const struct options_input *in;
    struct muster_error *err;
    bool dry;           /* the first walk: look, take nothing */
    uint64_t seen;      /* bit i: option i was given */
    struct buf unknown; /* words that no option owns, with blanks between */
};

/* A word of the command line and what it turned out to be. */
struct word {
    enum { WORD_VALUE, WORD_DASHES, WORD_OPTION, WORD_UNKNOWN, WORD_AMBIGUOUS } what;
    const struct option_spec *spec;
    bool is_short;
    const char *value; /* glued on: --a=value, -avalue; NULL: none */
};

/* options_word.c */
struct word word_classify(const char *arg, bool launch);
const struct option_spec *option_of_letter(char letter); /* NULL: nobody's */

/* Lists the spellings that an ambiguous "--arg" could stand for. */
void word_spellings(const char *arg, bool launch, struct buf *out);

/* options_value.c: refusing says "argument <names>: <text> '<value>'<more>" in w->err;
 * value may be NULL. */
enum options_fault option_refuse(struct walk *w, const struct option_spec *s,
                                 const char *text, const char *value, const char *more);
enum options_fault option_take(struct walk *w, const struct option_spec *s,
                               const char *value, bool from_env);
bool option_takes_value(const struct option_spec *s);
enum options_fault options_take_env_flags(struct walk *w);
enum options_fault options_take_defaults(struct walk *w);

#endif
