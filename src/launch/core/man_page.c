/* man_page.c - the manual page; see help.h. */
#include "launch/core/help.h"
#include "rendezvous/core/conf_table.h"

/* Escapes text for troff, so that hyphens can be copied and no line is taken for a
 * request. */
static void put_troff(struct buf *out, const char *text)
{
    if (*text == '.' || *text == '\'')
        buf_append_str(out, "\\&");
    for (const char *p = text; *p; p++)
        if (*p == '-')
            buf_append_str(out, "\\-");
        else if (*p == '\\')
            buf_append_str(out, "\\e");
        else
            buf_u8(out, (uint8_t)*p);
}

static void put_man_option(struct buf *out, const struct option_spec *s)
{
    struct buf names, meta;

    buf_init(&names, SIZE_MAX);
    buf_init(&meta, SIZE_MAX);
    option_names(&names, s, ", ");
    buf_u8(&names, 0);
    help_metavar(&meta, s);
    buf_append_str(out, ".TP\n.B ");
    if (!buf_error(&names))
        put_troff(out, (const char *)buf_data(&names));
    if (buf_len(&meta))
        buf_printf(out, "%s\\fI%.*s\\fR", s->kind == OPTION_OPTIONAL ? "" : " ",
                   (int)buf_len(&meta), buf_data(&meta));
    buf_u8(out, '\n');
    put_troff(out, s->help);
    if (s->initial && *s->initial) {
        buf_append_str(out, " Default: ");
        put_troff(out, s->initial);
    }
    buf_u8(out, '\n');
    buf_fail(out, buf_error(&names) ? buf_error(&names) : buf_error(&meta));
    buf_fini(&names);
    buf_fini(&meta);
}

static void put_man_options(struct buf *out, bool ours)
{
    for (size_t i = 0; i < options_count; i++)
        if ((options_table[i].owner == OWNER_MUSTER) == ours)
            put_man_option(out, &options_table[i]);
}

static void put_man_conf(struct buf *out)
{
    buf_append_str(
        out, ".SH SETTINGS OF THE RENDEZVOUS\nKeys of \\fB\\-\\-rdzv\\-conf\\fR, the "
             "backends that read them, and their defaults. Others are ignored.\n");

    for (size_t i = 0; i < CONF_COUNT; i++) {
        const struct conf_key *k = &conf_keys[i];
        struct buf text;

        if (!k->help)
            continue;
        buf_init(&text, SIZE_MAX);
        conf_backends_text(&text, k->backends);
        buf_u8(&text, 0);
        conf_default_text(&text, k);
        buf_u8(&text, 0);
        buf_append_str(out, ".TP\n.B ");
        put_troff(out, k->name);
        buf_append_str(out, " \\fR(");
        if (!buf_error(&text)) {
            const char *read_by = (const char *)buf_data(&text);

            put_troff(out, read_by);
            buf_append_str(out, ")\n");
            put_troff(out, k->help);
            buf_append_str(out, " Default: ");
            put_troff(out, read_by + strlen(read_by) + 1);
        }
        buf_u8(out, '\n');
        buf_fail(out, buf_error(&text));
        buf_fini(&text);
    }
}

static const char man_head[] =
    ".SH NAME\n"
    "muster\\-run \\- start and watch the workers of a distributed job\n"
    ".SH SYNOPSIS\n"
    ".B muster run\n[\\fIoptions\\fR] \\fIscript\\fR [\\fIargument\\fR ...]\n.br\n"
    ".B muster launch\n[\\fIoptions\\fR] \\fIscript\\fR [\\fIargument\\fR ...]\n"
    ".SH DESCRIPTION\n"
    "Starts workers on this node, gives them their ranks, starts them again when one "
    "fails or when nodes come and go, and reports what went wrong. Flags, variables, "
    "files and exit codes are those of PyTorch's torchrun; under the name\n"
    ".B torchrun\nthe program behaves as\n.BR \"muster run\" .\n.PP\n"
    "Options come before the script; everything after it belongs to the script, where\n"
    ".B ${local_rank}\nbecomes the local rank of each worker and\n.B $$\na single $. "
    "Long options may be shortened as far as they stay unique, and be spelled with "
    "hyphens or with underscores.\n.PP\n"
    ".B muster launch\nis torch.distributed.launch: without\n.B \\-\\-use\\-env\nthe "
    "script gets an argument \\-\\-local\\-rank=N.\n"
    ".SH OPTIONS\n";

static const char man_tail[] =
    ".SH ENVIRONMENT\n"
    "A variable \\fBPET_\\fINAME\\fR gives the default of the option \\fINAME\\fR (in "
    "capitals, with underscores), \\fBMUSTER_\\fINAME\\fR that of an option that "
    "torchrun does not have; for flags 0 is off and any other number on. "
    "PYTHON_EXEC names the interpreter; without it the one of the active virtual "
    "environment is used, then the one beside this program, then python3 or python on "
    "PATH.\n.PP\n"
    "LOGLEVEL (DEBUG, INFO, WARNING, ERROR, CRITICAL) and, for the rendezvous, "
    "TORCH_LOGS=distributed or +distributed say how much is logged; TORCH_LOGS_FORMAT "
    "(short, or a format of Python's logging) in which form, and TORCH_LOGS_OUT names "
    "a file for a copy.\n"
    ".SH WAITING\n"
    "While it waits for other nodes (to join, to agree on ranks, and to end) it says "
    "which nodes are here, which are missing as far as that is known, how long it has "
    "waited and until when it will wait. On a terminal this is one line that is kept "
    "up to date; in a log it comes after 5 seconds and then every 30. Colours are used "
    "on terminals, unless NO_COLOR is set.\n"
    ".SH SIGNALS\n"
    "Those of \\fB\\-\\-signals\\-to\\-handle\\fR are passed on to the workers, which "
    "then have \\fB\\-\\-shutdown\\-timeout\\fR seconds to end before they are killed. "
    "A "
    "second SIGINT (Ctrl\\-C) kills them at once. Any other second signal sends them "
    "SIGTERM and starts the time anew; a third one kills. SIGUSR1 and SIGUSR2, unless "
    "they are listed there, end nothing: each worker whose own process has a handler "
    "for them gets them. Signals that were ignored "
    "when the program was started (\\fBnohup\\fR) stay ignored. What the workers have "
    "started ends with them, also if this program is killed.\n"
    ".SH FILES\n"
    ".TP\n"
    "\\fIlog\\-dir\\fB/\\fIrun\\-id\\fB_\\fIsuffix\\fB/attempt_\\fIn\\fB/"
    "\\fIlocal\\-rank\\fR\n"
    "Output (stdout.log, stderr.log) and error file (error.json) of each worker.\n"
    ".TP\n"
    "\\fIlog\\-dir\\fB/\\fIrun\\-id\\fB_\\fIsuffix\\fB/earlier/"
    "attempt_\\fIn\\fB.\\fIk\\fR\n"
    "The same of a round that ended because nodes came or went.\n"
    ".SH EXIT STATUS\n"
    "0: all workers succeeded. 1: a worker failed, the job could not start, or a "
    "signal ended it while its workers ran. A signal that comes earlier ends it like "
    "any other program (a shell shows 128 plus the number of the signal). 2: the "
    "command line is wrong.\n"
    ".SH CONFORMING TO\n"
    "Options, variables, files, messages and exit codes are those of torchrun 2.15. "
    "Tests compare them with a running torch 2.13, and with what 2.15 was seen to do. "
    "Groups with nodes of 2.13 and 2.15 were tried in both roles; what nodes of 2.6 "
    "and later write is read.\n";

static void put_man_examples(struct buf *out)
{
    buf_append_str(out, ".SH EXAMPLES\n");
    for (const struct help_example *e = help_examples; e->what; e++) {
        buf_append_str(out, ".PP\n");
        put_troff(out, e->what);
        buf_append_str(out, "\n.PP\n.RS\n.nf\n");
        put_troff(out, e->line);
        if (e->more) {
            buf_append_str(out, " \\e\n    ");
            put_troff(out, e->more);
        }
        buf_append_str(out, "\n.fi\n.RE\n");
    }
}

int help_man_page(struct buf *out, const char *version)
{
    buf_printf(out, ".TH MUSTER\\-RUN 1 \"\" \"muster %s\"\n", version);

    buf_append_str(out, man_head);
    put_man_options(out, false);
    buf_append_str(out, ".SS Options that torchrun does not have\n");
    put_man_options(out, true);
    put_man_conf(out);
    buf_append_str(out, man_tail);
    put_man_examples(out);
    buf_append_str(out, ".SH SEE ALSO\n.BR muster (1)\n");
    return buf_error(out);
}
