/* options_word.c - what a word of the command line is to Python's argparse (3.11): an
 * option by one of its spellings or by the beginning of one, a value, or neither. */
#include <stdio.h>

#include "group/options_int.h"

/* ---- Spellings ---- */

bool option_underscored(const struct option_spec *s, char *to, size_t size)
{
    (void)snprintf(to, size, "%s", s->name);
    for (char *p = to; *p; p++)
        if (*p == '-')
            *p = '_';
    return strcmp(to, s->name) != 0;
}

int option_names(struct buf *b, const struct option_spec *s, const char *between)
{
    char under[NAME_MAX_LEN];
    int rc = s->letter ? buf_printf(b, "-%c%s", s->letter, between) : 0;

    rc = rc ? rc : buf_printf(b, "--%s", s->name);
    if (rc == 0 && option_underscored(s, under, sizeof under))
        rc = buf_printf(b, "%s--%s", between, under);
    return rc;
}

/* Calls visit for both spellings of each option, as argparse does: it does not know
 * that they belong together. */
typedef void (*visit_fn)(void *ctx, const struct option_spec *s, const char *spelling);

static void each_spelling(bool launch, visit_fn visit, void *ctx)
{
    for (size_t i = 0; i < options_count; i++) {
        const struct option_spec *s = &options_table[i];
        char under[NAME_MAX_LEN];

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
    if (s->owner == OWNER_MUSTER) /* In full or not at all. */
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

    m.n = eq ? (size_t)(eq - m.text) : strlen(m.text);
    each_spelling(launch, visit_match, &m);
    return m;
}

void word_spellings(const char *arg, bool launch, struct buf *out)
{
    (void)match_long(arg, launch, out);
}

const struct option_spec *option_of_letter(char letter)
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

struct word word_classify(const char *arg, bool launch)
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
