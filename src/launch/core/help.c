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

/* Writes one entry: the option on the left, its help on the right or below. mark: ' ',
 * or '*' for what torchrun does not have. */
static void put_entry(struct buf *out, char mark, struct span left, const char *help,
                      const char *initial, size_t width)
{
    struct filler f = { out, HELP_COLUMN, HELP_COLUMN, width };

    buf_printf(out, " %c", mark);
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

static void put_option(struct buf *out, const struct option_spec *s, size_t width)
{
    struct buf left;

    buf_init(&left, SIZE_MAX);
    invocation(&left, s);
    put_entry(out, s->owner == OWNER_MUSTER ? '*' : ' ', buf_span(&left), s->help,
              s->initial, width);
    buf_fail(out, buf_error(&left));
    buf_fini(&left);
}

/* The order of --help. An option that is in no group comes with the last one. */
static const struct group {
    const char *title;
    const char *names[24];
} groups[] = {
    { "what runs",
      { "nproc-per-node", "module", "no-python", "run-path", "role", "start-method",
        "virtual-local-rank", "numa-binding", "warm", "for", "env", "env-file",
        "use-env" } },
    { "where: one machine, or several that meet",
      { "standalone", "nnodes", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf",
        "rdzv-serve", "local-addr", "net", "rank-order", "node-rank", "master-addr",
        "master-port" } },
    { "who may join", { "token-file", "token-optional", "encrypt" } },
    { "failures, restarts and the end",
      { "max-restarts", "restart-policy", "restart-budget", "restart-backoff",
        "exit-codes", "notice", "on-notice", "notify", "restart-grace", "hang",
        "progress-file", "on-failure", "failure", "report", "signals-to-handle",
        "shutdown-timeout", "monitor-interval" } },
    { "output",
      { "log-dir", "log-attempts", "redirects", "tee", "local-ranks-filter",
        "log-line-prefix-template", "duplicate-stdout-filters",
        "duplicate-stderr-filters", "logs-specs" } },
    { "watching", { "status-http", "event-log-handler", "metrics-handler" } },
    { "other", { "help", "print-config", "print-completion" } },
};

/* Those of -h: what most jobs need, a line each. */
static const struct {
    const char *how, *says;
} common[] = {
    { "--nproc-per-node=N", "workers on this machine; or gpu, cpu, auto" },
    { "--nnodes=N", "machines; or MIN:MAX, to go on when some are lost" },
    { "--rdzv-backend=c10d", "how they meet; also static, etcd-v3 and others" },
    { "--rdzv-endpoint=HOST:PORT", "where they meet, the same on all" },
    { "--rdzv-id=NAME", "the job's name, the same on all" },
    { "--max-restarts=N", "start the workers again after a failure" },
    { "--log-dir=DIR", "where the files of -r and -t go" },
    { "--redirects=3", "(-r) output to files; --tee=3 (-t): there, too" },
    { "--warm", "import torch once: workers start in milliseconds" },
    { "--hang=10m", "tell which rank keeps a stuck job from going on" },
};

static const struct option_spec *option_named(const char *name)
{
    for (size_t i = 0; i < options_count; i++)
        if (strcmp(options_table[i].name, name) == 0)
            return &options_table[i];
    return NULL;
}

static bool is_in_group(const struct option_spec *s)
{
    for (size_t g = 0; g < ARRAY_LEN(groups); g++)
        for (const char *const *n = groups[g].names; *n; n++)
            if (strcmp(*n, s->name) == 0)
                return true;
    return false;
}

static void put_groups(struct buf *out, bool launch, size_t width)
{
    for (size_t g = 0; g < ARRAY_LEN(groups); g++) {
        buf_printf(out, "\n%s:\n", groups[g].title);
        for (const char *const *n = groups[g].names; *n; n++) {
            const struct option_spec *s = option_named(*n);

            if (s && option_applies(s, launch))
                put_option(out, s, width);
        }
    }
    for (size_t i = 0; i < options_count; i++)
        if (option_applies(&options_table[i], launch) &&
            !is_in_group(&options_table[i]))
            put_option(out, &options_table[i], width);
}

static void put_examples(struct buf *out, size_t most)
{
    buf_append_str(out, "\nexamples:\n");
    for (const struct help_example *e = help_examples; e->what && most--; e++)
        buf_printf(out, "  %s\n    %s%s%s\n", e->what, e->line,
                   e->more ? " \\\n        " : "", e->more ? e->more : "");
}

static size_t width_of(size_t columns)
{
    return columns > HELP_COLUMN + 13 ? columns - 2 : HELP_COLUMN + 11;
}

static void put_beginning(struct buf *out, const char *prog, size_t width)
{
    struct filler f = { out, 0, 0, width };

    buf_printf(out, "usage: %s [-h] [options] training_script ...\n\n", prog);
    put_words(&f, about);
    buf_append_str(out, "\n");
}

int help_short(struct buf *out, const char *prog, size_t columns, bool launch)
{
    const size_t width = width_of(columns);
    size_t all = 0;

    for (size_t i = 0; i < options_count; i++)
        all += option_applies(&options_table[i], launch);
    put_beginning(out, prog, width);
    put_examples(out, 3);
    buf_append_str(out, "\nthe options that most jobs need:\n");
    for (size_t i = 0; i < ARRAY_LEN(common); i++)
        buf_printf(out, "  %-27s%s\n", common[i].how, common[i].says);
    buf_printf(out, "\n%s --help has all %zu options.\n", prog, all);
    return buf_error(out);
}

int help_text(struct buf *out, const char *prog, size_t columns, bool launch)
{
    const size_t width = width_of(columns);

    put_beginning(out, prog, width);
    buf_append_str(out, "\npositional arguments:\n");
    put_entry(out, ' ', span_str("training_script"), script_help, NULL, width);
    put_entry(out, ' ', span_str("training_script_args"), args_help, NULL, width);
    put_groups(out, launch, width);
    buf_append_str(out,
                   "\nOptions with a * are muster's own and are never abbreviated; "
                   "the others are torchrun's.\n");
    put_examples(out, SIZE_MAX);
    buf_append_str(out, "\nEach default can be set by a variable PET_NAME, "
                        "for example PET_NPROC_PER_NODE;\nthose that torchrun does not "
                        "have by MUSTER_NAME.\n");
    return buf_error(out);
}
