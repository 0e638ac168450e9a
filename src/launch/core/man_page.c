/* man_page.c - what the tables have for the manual page; see help.h. The rest of it is
 * docs/man/muster-run.1.in. */
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

int help_man_page(struct buf *out)
{
    put_man_options(out, false);
    buf_append_str(out, ".SS Options that torchrun does not have\n");
    put_man_options(out, true);
    put_man_conf(out);
    put_man_examples(out);
    return buf_error(out);
}
