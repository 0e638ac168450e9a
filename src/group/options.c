/* options.c - reads a command line as Python's argparse (3.11) reads torchrun's.
 *
 * Two walks over the words, because argparse looks at all of them before it acts on the
 * first: the first walk only finds ambiguous options, the second takes values. Unlike
 * argparse neither looks at the script's own arguments: torchrun refuses `script.py
 * --max 1` because --max could be one of ITS options.
 *
 * What a word is: options_word.c. What becomes of a value: options_value.c. */
#include "group/options.h"

#include "base/err.h"
#include "group/options_int.h"

/* One word that is an option, perhaps a cluster (-mr3), and the value behind it.
 * Moves *at past them. */
static enum options_fault take_option(struct walk *w, struct word word, size_t *at)
{
    const struct option_spec *flags[16]; /* of the cluster; taken when all is well */
    size_t n_flags = 0;
    enum options_fault fault = OPTIONS_FINE;

    while (!option_takes_value(word.spec) && word.value) {
        const struct option_spec *next =
            word.is_short && word.value[0] ? option_of_letter(word.value[0]) : NULL;

        if (!next || n_flags == ARRAY_LEN(flags))
            return option_refuse(w, word.spec, "ignored explicit argument", word.value,
                                 "");
        flags[n_flags++] = word.spec;
        word.spec = next;
        word.value = word.value[1] ? word.value + 1 : NULL;
    }
    if (option_takes_value(word.spec) && !word.value) {
        const size_t next = *at + 1;

        if (next == w->in->argc ||
            word_classify(w->in->argv[next], w->in->launch).what != WORD_VALUE)
            return option_refuse(w, word.spec, "expected one argument", NULL, "");
        word.value = w->in->argv[(*at)++ + 1];
    }
    (*at)++;
    if (w->dry)
        return OPTIONS_FINE;
    for (size_t i = 0; i < n_flags && !w->o->help; i++)
        fault = option_take(w, flags[i], NULL, false);
    if (fault || w->o->help)
        return fault;
    w->seen |= UINT64_C(1) << (word.spec - options_table);
    return option_take(w, word.spec, word.value, false);
}

/* The script and what follows it. Of the "--" that touch it only the first goes. */
static void take_script(struct walk *w, size_t at)
{
    char *const *argv = w->in->argv;
    const size_t argc = w->in->argc;
    const bool dashes = strcmp(argv[at], "--") == 0;

    at += dashes;
    if (at >= argc)
        return;
    w->o->script = argv[at++];
    if (!dashes && at < argc && strcmp(argv[at], "--") == 0)
        at++;
    w->o->script_args = argv + at;
    w->o->n_script_args = argc - at;
}

static enum options_fault ambiguous(struct walk *w, const char *arg)
{
    struct buf b;

    buf_init(&b, SIZE_MAX);
    word_spellings(arg, w->in->launch, &b);
    (void)err_set(w->err, MUSTER_EINVAL, "ambiguous option: %s could match %.*s", arg,
                  (int)buf_len(&b), buf_len(&b) ? (const char *)buf_data(&b) : "");
    buf_fini(&b);
    return OPTIONS_USAGE;
}

static enum options_fault walk_words(struct walk *w)
{
    enum options_fault fault = OPTIONS_FINE;

    for (size_t at = 0; at < w->in->argc && !fault && !w->o->help;) {
        const char *arg = w->in->argv[at];
        const struct word word = word_classify(arg, w->in->launch);

        switch (word.what) {
        case WORD_AMBIGUOUS:
            return ambiguous(w, arg);
        case WORD_UNKNOWN:
            at++;
            if (!w->dry && buf_printf(&w->unknown, " %s", arg))
                return err_nomem(w->err), OPTIONS_VALUE;
            break;
        case WORD_OPTION:
            fault = take_option(w, word, &at);
            if (fault && w->dry) {    /* Comes up in the second walk, unless there is */
                fault = OPTIONS_FINE; /* something ambiguous behind it. */
                at++;
            }
            break;
        case WORD_VALUE:
        case WORD_DASHES:
            if (!w->dry)
                take_script(w, at);
            return OPTIONS_FINE;
        }
    }
    return fault;
}

enum options_fault options_parse(struct options *o, const struct options_input *in,
                                 struct muster_error *err)
{
    struct options out = { 0 };
    struct walk w = { .o = &out, .in = in, .err = err, .dry = true };
    enum options_fault fault;

    buf_init(&w.unknown, SIZE_MAX);
    fault = options_take_env_flags(&w);
    fault = fault ? fault : walk_words(&w);
    w.dry = false;
    fault = fault ? fault : walk_words(&w);
    if (fault || out.help)
        goto out;
    fault = options_take_defaults(&w);
    if (fault)
        goto out;
    if (!out.script) {
        (void)err_set(err, MUSTER_EINVAL,
                      "the following arguments are required: training_script, "
                      "training_script_args");
        fault = OPTIONS_USAGE;
    } else if (buf_len(&w.unknown)) {
        (void)err_set(err, MUSTER_EINVAL, "unrecognized arguments:%.*s",
                      (int)buf_len(&w.unknown), buf_data(&w.unknown));
        fault = OPTIONS_USAGE;
    }
out:
    buf_fini(&w.unknown);
    if (!fault)
        *o = out;
    return fault;
}
