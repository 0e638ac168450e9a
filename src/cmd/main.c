/* main.c - the muster command: finds the subcommand and calls it. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/nearest.h"
#include "cmd/cmd.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/escape.h"

static int cmd_help(int argc, char **argv);

const struct command commands[] = {
    { "run", cmd_run, "start workers as torchrun does" },
    { "launch", cmd_launch, "start workers as torch.distributed.launch does" },
    { "store", cmd_store, "serve a key-value store to PyTorch's TCPStore clients" },
    { "status", cmd_status, "show what the jobs on this machine do" },
    { "stacks", cmd_stacks, "show where each rank of a job is now" },
    { "notice", cmd_notice, "tell all ranks of a job that it is to go by a deadline" },
    { "top", cmd_top, "show the jobs on this machine, live on the terminal" },
    { "report", cmd_report, "show the report of a job that has ended" },
    { "completion", cmd_completion, "print a completion script for a shell" },
    { "help", cmd_help, "print the help of a command" },
    { NULL, NULL, NULL },
};

static const struct command *command_find(const char *name)
{
    for (const struct command *c = commands; c->name; c++)
        if (strcmp(c->name, name) == 0)
            return c;
    return NULL;
}

static void usage(FILE *to)
{
    fputs("usage: muster COMMAND [ARGUMENTS]\n"
          "       muster --version\n"
          "\ncommands:\n",
          to);
    for (const struct command *c = commands; c->name; c++)
        fprintf(to, "  %-12s%s\n", c->name, c->help);
    fputs("\n`muster help COMMAND` says more. Under the name torchrun, the program "
          "behaves as\n`muster run`.\n",
          to);
}

void cmd_error(const char *prog, const struct muster_error *err)
{
    char text[2 * sizeof err->text];
    struct buf clean;
    size_t first;

    buf_init(&clean, sizeof text - 1); /* The text may quote a server. */
    (void)escape_append(&clean, span_str(err->text), ESCAPE_LINES);
    (void)snprintf(text, sizeof text, "%.*s", (int)buf_len(&clean),
                   buf_len(&clean) ? (const char *)buf_data(&clean) : "");
    buf_fini(&clean);
    first = strcspn(text, "\n");

    /* The cause comes first, then what to do. Scripts around torchrun look for the
     * cause in the last line, so under that name it stays there. */
    const bool last = strcmp(prog, "torchrun") == 0 && !isatty(STDERR_FILENO);
    if (!last)
        fprintf(stderr, "%s: error: %.*s\n", prog, (int)first, text);
    for (const char *p = text + first; *p++ == '\n';) {
        const size_t n = strcspn(p, "\n");

        fprintf(stderr, "%s: %.*s\n", prog, (int)n, p);
        p += n;
    }
    if (last)
        fprintf(stderr, "%s: error: %.*s\n", prog, (int)first, text);
}

int cmd_bad_option(int c, const char *word, const struct option *options,
                   const char *prog, struct muster_error *err)
{
    const char *name = word + strspn(word, "-");
    const struct span meant = span_of(name, strcspn(name, "="));
    struct nearest near = { 0 };

    for (const struct option *o = options; o->name; o++)
        nearest_try(&near, meant, o->name);
    if (c == ':')
        return err_set(err, MUSTER_EINVAL, "%s: needs a value; see `%s --help`", word,
                       prog);
    if (near.word && near.distance == 0)
        return err_set(err, MUSTER_EINVAL, "--%s: takes no value; see `%s --help`",
                       near.word, prog);
    if (near.word)
        return err_set(
            err, MUSTER_EINVAL,
            "%s: there is no such option; did you mean --%s? See `%s --help`", word,
            near.word, prog);
    return err_set(err, MUSTER_EINVAL, "%s: there is no such option; see `%s --help`",
                   word, prog);
}

static int cmd_help(int argc, char **argv)
{
    const struct command *c = argc > 1 ? command_find(argv[1]) : NULL;
    char *help[] = { argc > 1 ? argv[1] : NULL, (char *)"--help", NULL };

    if (argc < 2) {
        usage(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--man") == 0) /* for the build */
        return cmd_man();
    if (!c || c->run == cmd_help) {
        fprintf(stderr, "muster: error: there is no help on %s\n", argv[1]);
        return 2;
    }
    return c->run(2, help);
}

/* Whether the word is a script, or one of the options of `muster run`. */
static bool is_for_run(const char *word)
{
    const size_t n = strlen(word);

    return word[0] == '-' || strchr(word, '/') ||
           (n > 3 && strcmp(word + n - 3, ".py") == 0);
}

static void print_unknown(int argc, char **argv)
{
    const char *word = argv[1];
    struct nearest meant = { 0 };

    fprintf(stderr, "muster: error: unknown command: %s\n", word);
    for (const struct command *c = commands; c->name; c++)
        nearest_try(&meant, span_str(word), c->name);
    nearest_try(&meant, span_str(word), "version");
    if (is_for_run(word)) {
        fputs("muster: did you mean `muster run", stderr);
        for (int i = 1; i < argc && i < 8; i++)
            fprintf(stderr, " %s", argv[i]);
        fprintf(stderr, "%s`?\n", argc > 8 ? " ..." : "");
    } else if (meant.word) {
        fprintf(stderr, "muster: did you mean `muster %s`?\n", meant.word);
    }
    fputs("muster: `muster --help` lists the commands\n", stderr);
}

int main(int argc, char **argv)
{
    const char *slash = argc ? strrchr(argv[0], '/') : NULL;
    const struct command *c;

    (void)signal(SIGXFSZ, SIG_IGN); /* As in Python, the write fails instead. */
    if (argc && strcmp(slash ? slash + 1 : argv[0], "torchrun") == 0)
        return cmd_run(argc, argv);
    if (argc == 2 &&
        (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "version") == 0)) {
        printf("muster %s\n", muster_version());
        return 0;
    }
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        usage(stdout);
        return 0;
    }
    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    c = command_find(argv[1]);
    if (!c) {
        print_unknown(argc, argv);
        return 2;
    }
    return c->run(argc - 1, argv + 1);
}
