/* help.c - the text of --help; see help.h. */
#include "launch/core/help.h"

#include <ctype.h>

#define HELP_COLUMN 24

static const char about[] =
    "Starts the workers of a distributed job on this node and keeps them going: "
    "torchrun's flags, variables, files and exit codes.";
static const char script_help[] = "The program that each worker runs: a Python script, "
                                  "a module with -m, any program with --no-python.";
static const char args_help[] =
    "Its arguments. ${local_rank} in them becomes the local "
    "rank of each worker.";

int help_metavar(struct buf *out, const struct option_spec *s)
{
    int rc = 0;

    if (s->kind == OPTION_FLAG || s->kind == OPTION_HELP)
        return 0;
    if (s->kind == OPTION_CHOICE) {
        for (size_t i = 0; rc == 0 && s->choices[i]; i++)
            rc = buf_printf(out, "%s%s", i ? "," : "{", s->choices[i]);
        return rc ? rc : buf_append_str(out, "}");
    }
    for (const char *p = s->name; rc == 0 && *p; p++)
        rc = buf_u8(out, (uint8_t)(*p == '-' ? '_' : toupper((unsigned char)*p)));
    return rc;
}

/* Writes words with a column to break at: `at` is where the line stands. */
struct filler {
    struct buf *out;
    size_t at, indent, width;
};

static int newline(struct filler *f)
{
    f->at = f->indent;
    return buf_printf(f->out, "\n%*s", (int)f->indent, "");
}

/* Puts a piece that must stay in one line, after a blank unless the line is new. */
static int put_piece(struct filler *f, const char *p, size_t n)
{
    int rc = 0;

    if (f->at > f->indent && f->at + 1 + n > f->width)
        rc = newline(f);
    if (rc == 0 && f->at > f->indent) {
        rc = buf_u8(f->out, ' ');
        f->at++;
    }
    f->at += n;
    return rc ? rc : buf_append(f->out, p, n);
}

static int put_words(struct filler *f, const char *text)
{
    int rc = 0;

    for (const char *p = text; rc == 0 && *p;) {
        const size_t n = strcspn(p, " ");

        rc = put_piece(f, p, n);
        p += n + (p[n] == ' ');
    }
    return rc;
}

/* "[--role ROLE]", "[-m]": the first spelling stands for all. */
static int put_in_brackets(struct filler *f, const struct option_spec *s)
{
    struct buf b;
    int rc;

    buf_init(&b, SIZE_MAX);
    rc = s->letter ? buf_printf(&b, "[-%c", s->letter)
                   : buf_printf(&b, "[--%s", s->name);
    if (rc == 0 && s->kind != OPTION_FLAG && s->kind != OPTION_HELP)
        rc = buf_u8(&b, ' ');
    rc = rc ? rc : help_metavar(&b, s);
    rc = rc ? rc : buf_u8(&b, ']');
    rc = rc ? rc : put_piece(f, (const char *)buf_data(&b), buf_len(&b));
    buf_fini(&b);
    return rc;
}

static int put_usage(struct buf *out, const char *prog, size_t width, bool launch)
{
    const size_t indent = strlen("usage: ") + strlen(prog) + 1;
    struct filler f = { out, indent, indent, width };
    int rc = buf_printf(out, "usage: %s ", prog);

    for (size_t i = 0; rc == 0 && i < options_count; i++)
        if (option_applies(&options_table[i], launch))
            rc = put_in_brackets(&f, &options_table[i]);
    rc = rc ? rc : newline(&f);
    return rc ? rc : buf_append_str(out, "training_script ...\n\n");
}

/* "  -r REDIRECTS, --redirects REDIRECTS" */
static int invocation(struct buf *b, const struct option_spec *s)
{
    struct buf meta;
    char under[64];
    int rc, n;

    buf_init(&meta, SIZE_MAX);
    rc = help_metavar(&meta, s);
    n = (int)buf_len(&meta);
    const char *m = n ? (const char *)buf_data(&meta) : "", *gap = n ? " " : "";
    if (rc == 0 && s->letter)
        rc = buf_printf(b, "-%c%s%.*s, ", s->letter, gap, n, m);
    rc = rc ? rc : buf_printf(b, "--%s%s%.*s", s->name, gap, n, m);
    if (rc == 0 && option_underscored(s, under, sizeof under))
        rc = buf_printf(b, ", --%s%s%.*s", under, gap, n, m);
    buf_fini(&meta);
    return rc;
}

/* One entry: what on the left, its help on the right or below. */
static int put_entry(struct buf *out, struct span left, const char *help,
                     const char *initial, size_t width)
{
    struct filler f = { out, HELP_COLUMN, HELP_COLUMN, width };
    int rc = buf_append_str(out, "  ");

    rc = rc ? rc : buf_append_span(out, left);
    if (rc == 0 && left.n + 4 <= HELP_COLUMN)
        rc = buf_printf(out, "%*s", (int)(HELP_COLUMN - 2 - left.n), "");
    else
        rc = rc ? rc : newline(&f);
    rc = rc ? rc : put_words(&f, help);
    if (rc == 0 && initial && *initial) {
        rc = put_words(&f, "Default:");
        rc = rc ? rc : put_piece(&f, initial, strlen(initial));
    }
    return rc ? rc : buf_u8(out, '\n');
}

static int put_options(struct buf *out, enum option_owner first, enum option_owner last,
                       bool launch, size_t width)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < options_count; i++) {
        const struct option_spec *s = &options_table[i];
        struct buf left;

        if (!option_applies(s, launch) || s->owner < first || s->owner > last)
            continue;
        buf_init(&left, SIZE_MAX);
        rc = invocation(&left, s);
        rc = rc ? rc : put_entry(out, buf_span(&left), s->help, s->initial, width);
        buf_fini(&left);
    }
    return rc;
}

int help_text(struct buf *out, const char *prog, size_t columns, bool launch)
{
    const size_t width = columns > HELP_COLUMN + 13 ? columns - 2 : HELP_COLUMN + 11;
    struct filler f = { out, 0, 0, width };
    int rc = put_usage(out, prog, width, launch);

    rc = rc ? rc : put_words(&f, about);
    rc = rc ? rc : buf_append_str(out, "\n\npositional arguments:\n");
    rc =
        rc ? rc : put_entry(out, span_str("training_script"), script_help, NULL, width);
    rc = rc ? rc
            : put_entry(out, span_str("training_script_args"), args_help, NULL, width);
    rc = rc ? rc : buf_append_str(out, "\noptions:\n");
    rc = rc ? rc : put_options(out, OWNER_TORCH, OWNER_LAUNCH, launch, width);
    rc = rc ? rc
            : buf_append_str(out, "\noptions that torchrun does not have (never "
                                  "abbreviated):\n");
    rc = rc ? rc : put_options(out, OWNER_MUSTER, OWNER_MUSTER, launch, width);
    return rc ? rc
              : buf_append_str(out, "\nEach default can be set by a variable PET_NAME, "
                                    "for example PET_NPROC_PER_NODE.\n");
}
