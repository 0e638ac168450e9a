/* options.c - reads a command line as Python's argparse (3.11) reads torchrun's.
 *
 * The file has three parts: what a word is (an option by one of its spellings or by the
 * beginning of one, a value, or neither); how values are taken, from the command line,
 * from PET_ variables and by default; and the walk over the words.
 *
 * There are two walks, because argparse looks at all words before it acts on the first:
 * the first walk only finds ambiguous options, the second takes values. Unlike
 * argparse, neither looks at the script's own arguments: torchrun refuses `script.py
 * --max 1` because --max could be the beginning of one of its own options. */
#include "launch/core/options.h"

#include <assert.h>
#include <stdio.h>

#include "base/err.h"
#include "base/nearest.h"
#include "base/py/repr.h"
#include "base/py/text.h"

/* A reading of the command line. */
struct walk {
    struct options *o;
    const struct options_input *in;
    struct muster_error *err;
    bool dry;           /* the first walk: values are not taken */
    uint64_t seen;      /* bit i: option i was given */
    struct buf unknown; /* words that belong to no option, a blank before each */
};

/* A word of the command line and what it turned out to be. */
struct word {
    enum { WORD_VALUE, WORD_DASHES, WORD_OPTION, WORD_UNKNOWN, WORD_AMBIGUOUS } what;
    const struct option_spec *spec;
    bool is_short;
    const char *value; /* in the same word: --a=value, -avalue; NULL: none */
};

/* ---- Spellings ---- */

bool option_underscored(const struct option_spec *s, char *to, size_t size)
{
    assert(strlen(s->name) < size);
    (void)snprintf(to, size, "%s", s->name);
    for (char *p = to; *p; p++)
        if (*p == '-')
            *p = '_';
    return strcmp(to, s->name) != 0;
}

int option_names(struct buf *b, const struct option_spec *s, const char *between)
{
    char under[OPTION_NAME_SIZE];

    if (s->letter)
        (void)buf_printf(b, "-%c%s", s->letter, between);
    (void)buf_printf(b, "--%s", s->name);
    if (option_underscored(s, under, sizeof under))
        (void)buf_printf(b, "%s--%s", between, under);
    return buf_error(b);
}

/* Calls visit for both spellings of each option. Argparse does not know that they
 * belong together, and counts both when it looks for ambiguous ones. */
typedef void (*visit_fn)(void *ctx, const struct option_spec *s, const char *spelling);

static void each_spelling(bool launch, visit_fn visit, void *ctx)
{
    for (size_t i = 0; i < options_count; i++) {
        const struct option_spec *s = &options_table[i];
        char under[OPTION_NAME_SIZE];

        if (!option_applies(s, launch))
            continue;
        visit(ctx, s, s->name);
        if (option_underscored(s, under, sizeof under))
            visit(ctx, s, under);
    }
}

struct match {
    const char *text; /* what follows the two hyphens */
    size_t n;         /* up to the '=' */
    const struct option_spec *exact, *prefix;
    unsigned count;      /* spellings that begin with it */
    struct buf *spelled; /* where to list them; may be NULL */
};

static void visit_match(void *ctx, const struct option_spec *s, const char *spelling)
{
    struct match *m = ctx;

    if (strncmp(spelling, m->text, m->n) != 0)
        return;
    if (spelling[m->n] == '\0')
        m->exact = s;
    if (s->owner == OWNER_MUSTER) /* Ours cannot be abbreviated. */
        return;
    if (m->spelled)
        (void)buf_printf(m->spelled, "%s--%s", m->count ? ", " : "", spelling);
    m->prefix = s;
    m->count++;
}

static struct match match_long(const char *arg, bool launch, struct buf *spelled)
{
    const char *eq = strchr(arg, '=');
    struct match m = { .text = arg + 2, .spelled = spelled };

    assert(arg[0] == '-' && arg[1] == '-');
    m.n = eq ? (size_t)(eq - m.text) : strlen(m.text);
    each_spelling(launch, visit_match, &m);
    return m;
}

static const struct option_spec *option_of_letter(char letter)
{
    for (size_t i = 0; i < options_count; i++)
        if (letter && options_table[i].letter == letter)
            return &options_table[i];
    return NULL;
}

/* ---- One word ---- */

/* Argparse's pattern for "-1" and "-.5". */
static bool is_negative_number(const char *s)
{
    const char *p = s + 1;

    while (*p >= '0' && *p <= '9')
        p++;
    if (*p == '\0')
        return p > s + 1;
    if (*p++ != '.' || *p == '\0')
        return false;
    while (*p >= '0' && *p <= '9')
        p++;
    return *p == '\0';
}

static struct word not_an_option(const char *arg)
{
    struct word w = { .what = WORD_UNKNOWN };

    if (is_negative_number(arg) || strchr(arg, ' '))
        w.what = WORD_VALUE;
    return w;
}

static struct word classify_long(const char *arg, bool launch)
{
    const struct match m = match_long(arg, launch, NULL);
    const char *eq = strchr(arg, '=');
    struct word w = { .what = WORD_OPTION, .value = eq ? eq + 1 : NULL };

    w.spec = m.exact ? m.exact : m.prefix;
    if (m.exact || m.count == 1)
        return w;
    if (m.count > 1)
        return (struct word){ .what = WORD_AMBIGUOUS };
    return not_an_option(arg);
}

static struct word word_classify(const char *arg, bool launch)
{
    struct word w = { .what = WORD_OPTION, .is_short = true };

    if (arg[0] != '-' || arg[1] == '\0')
        return (struct word){ .what = WORD_VALUE };
    if (strcmp(arg, "--") == 0)
        return (struct word){ .what = WORD_DASHES };
    if (arg[1] == '-')
        return classify_long(arg, launch);
    w.spec = option_of_letter(arg[1]);
    if (!w.spec)
        return not_an_option(arg);
    if (arg[2] != '\0')
        w.value = arg[2] == '=' ? arg + 3 : arg + 2;
    return w;
}

/* ---- Values ---- */

/* Sets w->err to "argument <names>: <text> '<value>'<more>"; value may be NULL. */
static enum options_fault option_refuse(struct walk *w, const struct option_spec *s,
                                        const char *text, const char *value,
                                        const char *more)
{
    struct buf b;

    buf_init(&b, SIZE_MAX);
    (void)buf_append_str(&b, "argument ");
    (void)option_names(&b, s, "/");
    (void)buf_printf(&b, ": %s", text);
    if (value) {
        (void)buf_u8(&b, ' ');
        (void)py_repr(&b, value);
    }
    (void)buf_append_str(&b, more);
    if (buf_error(&b))
        (void)err_nomem(w->err);
    else
        (void)err_set(w->err, MUSTER_EINVAL, "%.*s", (int)buf_len(&b), buf_data(&b));
    buf_fini(&b);
    return OPTIONS_USAGE;
}

static enum options_fault refuse_choice(struct walk *w, const struct option_spec *s,
                                        const char *value)
{
    char more[200] = " (choose from ";

    assert(s->choices);
    for (size_t i = 0; s->choices[i]; i++) {
        const size_t n = strlen(more);

        (void)snprintf(more + n, sizeof more - n, "%s'%s'", i ? ", " : "",
                       s->choices[i]);
    }
    (void)strncat(more, ")", sizeof more - strlen(more) - 1);
    return option_refuse(w, s, "invalid choice:", value, more);
}

static bool is_choice(const struct option_spec *s, const char *value)
{
    assert(s->choices);
    for (size_t i = 0; s->choices[i]; i++)
        if (strcmp(s->choices[i], value) == 0)
            return true;
    return false;
}

/* Stores one value. Like torchrun, we do not check the values of its variables against
 * the choices. */
static enum options_fault option_take(struct walk *w, const struct option_spec *s,
                                      const char *value, bool from_env)
{
    void *field = (char *)w->o + s->field;
    struct option_int *number = field;
    struct option_each *each = field;

    switch (s->kind) {
    case OPTION_HELP:
    case OPTION_FLAG:
        *(bool *)field = true;
        break;
    case OPTION_INT:
        if (!py_int(span_str(value), &number->value))
            return option_refuse(w, s, "invalid int value:", value, "");
        number->given = true;
        break;
    case OPTION_FLOAT:
        if (!py_float(value, field))
            return option_refuse(w, s, "invalid float value:", value, "");
        break;
    case OPTION_CHOICE:
    case OPTION_PRINT:
        if ((!from_env || s->owner == OWNER_MUSTER) && !is_choice(s, value))
            return refuse_choice(w, s, value);
        *(const char **)field = value;
        break;
    case OPTION_EACH:
        if (each->count == OPTION_EACH_MOST)
            return option_refuse(w, s, "may be given 64 times, and not for", value, "");
        each->items[each->count++] = value;
        each->is_list = from_env;
        break;
    case OPTION_TEXT:
    case OPTION_OPTIONAL:
    case OPTION_LIST:
        *(const char **)field = value;
        break;
    }
    return OPTIONS_FINE;
}

bool option_takes_value(const struct option_spec *s)
{
    return s->kind != OPTION_FLAG && s->kind != OPTION_HELP;
}

/* ---- The environment, and defaults ---- */

/* The variable that gives its default: "PET_NNODES", "MUSTER_RANK_ORDER". */
static void option_variable(const struct option_spec *s, char name[OPTION_NAME_SIZE])
{
    const char *prefix = s->owner == OWNER_MUSTER ? "MUSTER_" : "PET_";
    char under[OPTION_NAME_SIZE - 8];

    (void)option_underscored(s, under, sizeof under);
    (void)snprintf(name, OPTION_NAME_SIZE, "%s%s", prefix, under);
    for (char *p = name; *p; p++)
        if (*p >= 'a' && *p <= 'z')
            *p = (char)(*p - 'a' + 'A');
}

static const char *variable_value(const struct options_input *in,
                                  const struct option_spec *s)
{
    char name[OPTION_NAME_SIZE];

    if (!s->variable)
        return NULL;
    option_variable(s, name);
    return env_get(in->envp, name);
}

/* torchrun reads these while it makes its parser, so they count even with --help. */
static enum options_fault options_take_env_flags(struct walk *w)
{
    for (size_t i = 0; i < options_count; i++) {
        const struct option_spec *s = &options_table[i];
        const char *value = s->kind == OPTION_FLAG ? variable_value(w->in, s) : NULL;
        int64_t on;

        if (!value)
            continue;
        if (!py_int(span_str(value), &on)) {
            char name[OPTION_NAME_SIZE], remedy[200];

            option_variable(s, name);
            (void)snprintf(remedy, sizeof remedy,
                           "The variable %s switches --%s: 0 off, 1 on.", name,
                           s->name);
            (void)py_bad_int(w->err, value, strlen(value), remedy);
            return OPTIONS_VALUE;
        }
        *(bool *)((char *)w->o + s->field) = on != 0;
    }
    return OPTIONS_FINE;
}

static enum options_fault options_take_defaults(struct walk *w)
{
    for (size_t i = 0; i < options_count; i++) {
        const struct option_spec *s = &options_table[i];
        const char *value = variable_value(w->in, s);
        enum options_fault fault;

        if (w->seen >> i & 1 || !option_takes_value(s))
            continue;
        if (s->kind == OPTION_OPTIONAL && value && !*value)
            value = NULL; /* An empty variable counts as not set. */
        fault = value        ? option_take(w, s, value, true)
                : s->initial ? option_take(w, s, s->initial, true)
                             : OPTIONS_FINE;
        if (fault)
            return fault;
    }
    return OPTIONS_FINE;
}

/* ---- The walk over the words ---- */

/* An option was met that prints something instead of starting a job. Argparse acts on
 * such an option at once, and ignores what follows it. */
static bool printed_instead(const struct options *o)
{
    return o->help || o->print_completion;
}

/* Takes an option, which may be a cluster of letters (-mr3), and its value, and moves
 * *at past them. */
static enum options_fault take_option(struct walk *w, struct word word, size_t *at)
{
    const struct option_spec *flags[16]; /* of the cluster; set once all are valid */
    size_t n_flags = 0;
    enum options_fault fault = OPTIONS_FINE;

    assert(word.what == WORD_OPTION && word.spec && *at < w->in->argc);
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
    if (word.spec->kind == OPTION_OPTIONAL && !word.value)
        word.value = "";
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
    for (size_t i = 0; i < n_flags && !printed_instead(w->o); i++)
        fault = option_take(w, flags[i], NULL, false);
    if (fault || printed_instead(w->o))
        return fault;
    if (word.spec->kind == OPTION_HELP)
        w->o->help_whole = !word.is_short;
    assert(options_count <= 64 && word.spec < options_table + options_count);
    w->seen |= UINT64_C(1) << (word.spec - options_table);
    return option_take(w, word.spec, word.value, false);
}

/* Takes the script and its arguments. Only the first "--" before or behind the script
 * is dropped. */
static void take_script(struct walk *w, size_t at)
{
    char *const *argv = w->in->argv;
    const size_t argc = w->in->argc;
    const bool dashes = strcmp(argv[at], "--") == 0;

    assert(at < argc);
    at += dashes;
    if (at >= argc)
        return;
    w->o->script = argv[at++];
    if (!dashes && at < argc && strcmp(argv[at], "--") == 0)
        at++;
    w->o->script_args = argv + at;
    assert(at <= argc);
    w->o->n_script_args = argc - at;
}

static enum options_fault ambiguous(struct walk *w, const char *arg)
{
    struct buf b;

    buf_init(&b, SIZE_MAX);
    (void)match_long(arg, w->in->launch, &b);
    (void)err_set(w->err, MUSTER_EINVAL, "ambiguous option: %s could match %.*s", arg,
                  (int)buf_len(&b), buf_len(&b) ? (const char *)buf_data(&b) : "");
    buf_fini(&b);
    return OPTIONS_USAGE;
}

static enum options_fault walk_words(struct walk *w)
{
    enum options_fault fault = OPTIONS_FINE;

    for (size_t at = 0; at < w->in->argc && !fault && !printed_instead(w->o);) {
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
            if (fault && w->dry) {
                /* The second walk reports it, unless an ambiguous option follows. */
                fault = OPTIONS_FINE;
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

/* The option that a word like --nproc-per-nod was probably meant to be, or NULL. */
static const char *option_meant(const char *arg, bool launch)
{
    static const struct {
        const char *word, *meant; /* of mpirun, srun and the like */
    } others[] = { { "-np", "nproc-per-node" },
                   { "-n", "nproc-per-node" },
                   { "-N", "nnodes" },
                   { "--np", "nproc-per-node" },
                   { "--nodes", "nnodes" },
                   { "--nproc", "nproc-per-node" },
                   { "--nprocs", "nproc-per-node" } };
    const struct span word = span_of(arg + 2, strcspn(arg + 2, "="));
    struct nearest best = { 0 };

    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        if (strncmp(arg, others[i].word, strcspn(arg, "=0123456789")) == 0 &&
            strlen(others[i].word) == strcspn(arg, "=0123456789"))
            return others[i].meant;
    for (size_t i = 0; arg[1] == '-' && i < options_count; i++)
        if (option_applies(&options_table[i], launch))
            nearest_try(&best, word, options_table[i].name);
    return best.word;
}

static enum options_fault refuse_unknown(struct walk *w)
{
    (void)err_set(w->err, MUSTER_EINVAL, "unrecognized arguments:%.*s",
                  (int)buf_len(&w->unknown), buf_data(&w->unknown));
    for (size_t i = 0; i < w->in->argc; i++) {
        const char *arg = w->in->argv[i];
        const char *meant;

        if (strcmp(arg, "--") == 0 || arg == w->o->script)
            break;
        if (word_classify(arg, w->in->launch).what != WORD_UNKNOWN)
            continue;
        meant = option_meant(arg, w->in->launch);
        if (meant)
            err_add(w->err, "\n%.*s: did you mean --%s?", (int)strcspn(arg, "="), arg,
                    meant);
    }
    return OPTIONS_USAGE;
}

/* Perhaps an option took the script for its value: --nproc-per-node train.py */
static enum options_fault refuse_no_script(struct walk *w)
{
    const size_t n = w->in->argc;
    const char *last = n > 1 ? w->in->argv[n - 1] : "",
               *before = n > 1 ? w->in->argv[n - 2] : "";
    const size_t length = strlen(last);

    (void)err_set(w->err, MUSTER_EINVAL,
                  "the following arguments are required: training_script, "
                  "training_script_args");
    if (length > 3 && strcmp(last + length - 3, ".py") == 0 && !strchr(before, '=') &&
        word_classify(before, w->in->launch).what == WORD_OPTION)
        err_add(w->err, "\n%s took '%s' for its value; did you mean %s VALUE %s?",
                before, last, before, last);
    return OPTIONS_USAGE;
}

/* torchrun ends with a bare ValueError if this is not a number. */
static enum options_fault check_nnodes(struct walk *w)
{
    const char *text = w->o->nnodes, *colon = strchr(text, ':');
    const size_t n = colon ? (size_t)(colon - text) : strlen(text);
    int64_t number;

    if (py_int(span_of(text, n), &number) &&
        (!colon || py_int(span_str(colon + 1), &number)))
        return OPTIONS_FINE;
    (void)err_set(w->err, MUSTER_EINVAL,
                  "--nnodes takes a number of nodes, or a range as in 2:4, and not "
                  "'%.200s'",
                  text);
    return OPTIONS_USAGE;
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
    if (fault || printed_instead(&out))
        goto out;
    fault = options_take_defaults(&w);
    if (fault)
        goto out;
    if (!out.script) {
        fault = refuse_no_script(&w);
    } else if (buf_len(&w.unknown)) {
        fault = refuse_unknown(&w);
    } else {
        fault = check_nnodes(&w);
    }
out:
    buf_fini(&w.unknown);
    if (!fault)
        *o = out;
    return fault;
}
