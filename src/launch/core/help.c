/* help.c - the text of --help; see help.h. */
#include "launch/core/help.h"

#include <ctype.h>

#define HELP_COLUMN 24

static const char about[] =
    "Starts the workers of a distributed job on this node and restarts them after a "
    "failure, with torchrun's flags, variables, files and exit codes.";
static const char script_help[] = "The program that each worker runs: a Python script, "
                                  "a module with -m, any program with --no-python.";
static const char args_help[] =
    "Its arguments. ${local_rank} in them becomes the local "
    "rank of each worker.";

void help_metavar(struct buf *out, const struct option_spec *s)
{
    if (s->kind == OPTION_FLAG || s->kind == OPTION_HELP)
        return;
    if (s->kind == OPTION_OPTIONAL) {
        buf_append_str(out, s->choices[0]);
        return;
    }
    if (s->kind == OPTION_CHOICE || s->kind == OPTION_PRINT) {
        for (size_t i = 0; s->choices[i]; i++)
            buf_printf(out, "%s%s", i ? "," : "{", s->choices[i]);
        buf_append_str(out, "}");
        return;
    }
    for (const char *p = s->name; *p; p++)
        buf_u8(out, (uint8_t)(*p == '-' ? '_' : toupper((unsigned char)*p)));
}

const struct help_example help_examples[] = {
    { "Four workers on this machine:", "muster run --nproc-per-node=4 train.py", NULL },
    { "As many as it has GPUs, started again up to three times, output in files:",
      "muster run --nproc-per-node=gpu --max-restarts=3 --log-dir=l -r3 train.py",
      NULL },
    { "Two machines, the same line on both:",
      "muster run --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d",
      "--rdzv-endpoint=first-host:29400 --rdzv-id=job1 train.py" },
    { "Under Slurm:", "srun --ntasks-per-node=1 muster run --nproc-per-node=8 train.py",
      NULL },
    { "A program that is not Python:",
      "muster run --nproc-per-node=2 --no-python ./solver", NULL },
    { NULL, NULL, NULL },
};

/* Writes words and breaks the lines: `at` is the current column. */
struct filler {
    struct buf *out;
    size_t at, indent, width;
};

static void newline(struct filler *f)
{
    f->at = f->indent;
    buf_printf(f->out, "\n%*s", (int)f->indent, "");
}

/* Puts a piece that must stay in one line, after a blank unless the line is new. */
static void put_piece(struct filler *f, const char *p, size_t n)
{
    if (f->at > f->indent && f->at + 1 + n > f->width)
        newline(f);
    if (f->at > f->indent) {
        buf_u8(f->out, ' ');
        f->at++;
    }
    f->at += n;
    buf_append(f->out, p, n);
}

static void put_words(struct filler *f, const char *text)
{
    for (const char *p = text; *p;) {
        const size_t n = strcspn(p, " ");

        put_piece(f, p, n);
        p += n + (p[n] == ' ');
    }
}

/* "[--role ROLE]", "[-m]": the first spelling stands for all. */
static void put_in_brackets(struct filler *f, const struct option_spec *s)
{
    struct buf b;

    buf_init(&b, SIZE_MAX);
    if (s->letter)
        buf_printf(&b, "[-%c", s->letter);
    else
        buf_printf(&b, "[--%s", s->name);
    if (s->kind != OPTION_FLAG && s->kind != OPTION_HELP && s->kind != OPTION_OPTIONAL)
        buf_u8(&b, ' ');
    help_metavar(&b, s);
    buf_u8(&b, ']');
    put_piece(f, (const char *)buf_data(&b), buf_len(&b));
    buf_fail(f->out, buf_error(&b));
    buf_fini(&b);
}

static void put_usage(struct buf *out, const char *prog, size_t width, bool launch)
{
    const size_t indent = strlen("usage: ") + strlen(prog) + 1;
    struct filler f = { out, indent, indent, width };
    buf_printf(out, "usage: %s ", prog);

    for (size_t i = 0; i < options_count; i++)
        if (option_applies(&options_table[i], launch))
            put_in_brackets(&f, &options_table[i]);
    newline(&f);
    buf_append_str(out, "training_script ...\n\n");
}

/* "  -r REDIRECTS, --redirects REDIRECTS" */
static void invocation(struct buf *b, const struct option_spec *s)
{
    struct buf meta;
    char under[64];
    int n;

    buf_init(&meta, SIZE_MAX);
    help_metavar(&meta, s);
    n = (int)buf_len(&meta);
    const char *m = n ? (const char *)buf_data(&meta) : "",
               *gap = n && s->kind != OPTION_OPTIONAL ? " " : "";
    if (s->letter)
        buf_printf(b, "-%c%s%.*s, ", s->letter, gap, n, m);
    buf_printf(b, "--%s%s%.*s", s->name, gap, n, m);
    if (option_underscored(s, under, sizeof under))
        buf_printf(b, ", --%s%s%.*s", under, gap, n, m);
    buf_fail(b, buf_error(&meta));
    buf_fini(&meta);
}

/* Writes one entry: the option on the left, its help on the right or below. */
static void put_entry(struct buf *out, struct span left, const char *help,
                      const char *initial, size_t width)
{
    struct filler f = { out, HELP_COLUMN, HELP_COLUMN, width };
    buf_append_str(out, "  ");

    buf_append_span(out, left);
    if (left.n + 4 <= HELP_COLUMN)
        buf_printf(out, "%*s", (int)(HELP_COLUMN - 2 - left.n), "");
    else
        newline(&f);
    put_words(&f, help);
    if (initial && *initial) {
        put_words(&f, "Default:");
        put_piece(&f, initial, strlen(initial));
    }
    buf_u8(out, '\n');
}

static void put_options(struct buf *out, enum option_owner first,
                        enum option_owner last, bool launch, size_t width)
{
    for (size_t i = 0; i < options_count; i++) {
        const struct option_spec *s = &options_table[i];
        struct buf left;

        if (!option_applies(s, launch) || s->owner < first || s->owner > last)
            continue;
        buf_init(&left, SIZE_MAX);
        invocation(&left, s);
        put_entry(out, buf_span(&left), s->help, s->initial, width);
        buf_fail(out, buf_error(&left));
        buf_fini(&left);
    }
}

int help_text(struct buf *out, const char *prog, size_t columns, bool launch)
{
    const size_t width = columns > HELP_COLUMN + 13 ? columns - 2 : HELP_COLUMN + 11;
    struct filler f = { out, 0, 0, width };
    put_usage(out, prog, width, launch);

    put_words(&f, about);
    buf_append_str(out, "\n\npositional arguments:\n");
    put_entry(out, span_str("training_script"), script_help, NULL, width);
    put_entry(out, span_str("training_script_args"), args_help, NULL, width);
    buf_append_str(out, "\noptions:\n");
    put_options(out, OWNER_TORCH, OWNER_LAUNCH, launch, width);
    buf_append_str(out, "\noptions that torchrun does not have (never "
                        "abbreviated):\n");
    put_options(out, OWNER_MUSTER, OWNER_MUSTER, launch, width);
    buf_append_str(out, "\nexamples:\n");
    for (const struct help_example *e = help_examples; e->what; e++)
        buf_printf(out, "  %s\n    %s%s%s\n", e->what, e->line,
                   e->more ? " \\\n        " : "", e->more ? e->more : "");
    buf_append_str(out, "\nEach default can be set by a variable PET_NAME, "
                        "for example PET_NPROC_PER_NODE;\nthose that torchrun does not "
                        "have by MUSTER_NAME.\n");
    return buf_error(out);
}
