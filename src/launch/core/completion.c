/* completion.c - completion scripts for shells, made from the table of options; see
 * completion.h. */
#include "launch/core/completion.h"

/* Words that the shell may offer behind an option; NULL: none, or files. */
static const char *words_for(const struct option_spec *s)
{
    static const char *const rows[][2] = {
        { "nproc-per-node", "auto cpu gpu xpu" },
        { "rdzv-backend", "static c10d etcd etcd-v2 etcd-v3" },
        { "event-log-handler", "null console file:" },
        { "metrics-handler", "null console file:" },
        { "redirects", "0 1 2 3" },
        { "tee", "0 1 2 3" },
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (strcmp(rows[i][0], s->name) == 0)
            return rows[i][1];
    return NULL;
}

static void put_choices(struct buf *out, const struct option_spec *s)
{
    if (!s->choices)
        buf_append_str(out, words_for(s) ? words_for(s) : "");
    for (size_t i = 0; s->choices && s->choices[i]; i++)
        buf_printf(out, "%s%s", i ? " " : "", s->choices[i]);
}

/* An option that may come without a value is completed like a flag. */
static bool needs_value(const struct option_spec *s)
{
    return s->kind != OPTION_OPTIONAL && option_takes_value(s);
}

static bool has_words(const struct option_spec *s)
{
    return s->kind != OPTION_OPTIONAL && (s->choices || words_for(s));
}

/* Writes a help text between a shell's single quotes, without the characters that would
 * end the quotes or have a meaning there. */
static void put_help(struct buf *out, const char *text, const char *without)
{
    for (; *text; text++)
        if (!strchr(without, *text))
            buf_u8(out, (uint8_t)*text);
}

static void put_options(struct buf *out, const char *hyphens)
{
    for (size_t i = 0; i < options_count; i++)
        buf_printf(out, "%s%s%s", i ? " " : "", hyphens, options_table[i].name);
}

/* ---- bash ---- */

static const char bash_head[] =
    "# bash completion for muster and torchrun; source it, or put it where bash "
    "looks.\n"
    "_muster() {\n"
    "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=\n"
    "  COMPREPLY=()\n"
    "  # bash makes a word of the = in --option=value.\n"
    "  [ \"$cur\" = = ] && cur=\n"
    "  [ \"$prev\" = = ] && prev=${COMP_WORDS[COMP_CWORD-2]}\n"
    "  if [ \"$COMP_CWORD\" = 1 ] && [ \"${COMP_WORDS[0]##*/}\" != torchrun ]; then\n"
    "    COMPREPLY=($(compgen -W '%s --version' -- \"$cur\"))\n"
    "    return\n"
    "  fi\n"
    "  case $prev in\n";

static const char bash_tail[] =
    "' ;; esac\n"
    "  if [ -n \"$words\" ]; then COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
    "  else COMPREPLY=($(compgen -f -- \"$cur\")); fi\n"
    "}\n"
    "complete -o filenames -F _muster muster torchrun\n";

static void put_bash(struct buf *out, const char *commands)
{
    buf_printf(out, bash_head, commands);
    for (size_t i = 0; i < options_count; i++) {
        const struct option_spec *s = &options_table[i];

        if (!has_words(s))
            continue;
        buf_append_str(out, "    ");
        option_names(out, s, "|");
        buf_append_str(out, ") words='");
        put_choices(out, s);
        buf_append_str(out, "' ;;\n");
    }
    buf_append_str(out,
                   "    --log-dir|--log_dir) COMPREPLY=($(compgen -d -- \"$cur\")); "
                   "return ;;\n  esac\n"
                   "  [ -n \"$words\" ] || case $cur in -*) words='");
    put_options(out, "--");
    buf_append_str(out, bash_tail);
}

/* ---- zsh ---- */

static void put_zsh(struct buf *out, const char *commands)
{
    buf_append_str(out, "#compdef muster torchrun\nlocal -a options\noptions=(\n");
    for (size_t i = 0; i < options_count; i++) {
        const struct option_spec *s = &options_table[i];
        const bool flag = !needs_value(s);

        buf_printf(out, "  '--%s%s[", s->name, flag ? "" : "=");
        put_help(out, s->help, "[]':$`\"\\");
        buf_append_str(out, flag ? "]" : "]:value:(");
        if (!flag) {
            put_choices(out, s);
            buf_u8(out, ')');
        }
        buf_append_str(out, "'\n");
    }
    buf_printf(out,
               ")\n"
               "if [[ $service = torchrun ]]; then\n"
               "  _arguments -s $options '*:file:_files'\n"
               "else\n"
               "  _arguments -s '1:command:(%s)' $options '*:file:_files'\n"
               "fi\n",
               commands);
}

/* ---- fish ---- */

static void put_fish_value(struct buf *out, const struct option_spec *s)
{
    if (strcmp(s->name, "log-dir") == 0) {
        buf_append_str(out, " -x -a '(__fish_complete_directories)'");
    } else if (has_words(s)) {
        buf_append_str(out, " -x -a '");
        put_choices(out, s);
        buf_u8(out, '\'');
    } else {
        buf_append_str(out, " -r -F");
    }
}

static void put_fish_options(struct buf *out, const char *command, const char *when)
{
    for (size_t i = 0; i < options_count; i++) {
        const struct option_spec *s = &options_table[i];

        buf_printf(out, "complete -c %s%s -l %s", command, when, s->name);
        if (s->letter)
            buf_printf(out, " -s %c", s->letter);
        if (needs_value(s))
            put_fish_value(out, s);
        buf_append_str(out, " -d '");
        put_help(out, s->help, "'\\");
        buf_append_str(out, "'\n");
    }
}

static void put_fish(struct buf *out, const char *commands)
{
    buf_printf(out,
               "# fish completion for muster and torchrun.\n"
               "complete -c muster -n __fish_use_subcommand -f -a '%s'\n",
               commands);
    put_fish_options(out, "muster", " -n '__fish_seen_subcommand_from run launch'");
    put_fish_options(out, "torchrun", "");
}

/* ---- tcsh ---- */

static void put_tcsh_rules(struct buf *out)
{
    for (size_t i = 0; i < options_count; i++) {
        if (!has_words(&options_table[i]))
            continue;
        buf_printf(out, " 'n/--%s/(", options_table[i].name);
        put_choices(out, &options_table[i]);
        buf_append_str(out, ")/'");
    }
    buf_append_str(out, " 'n/--log-dir/d/' 'c/--/(");
    put_options(out, "");
    buf_append_str(out, ")/'");
}

static void put_tcsh(struct buf *out, const char *commands)
{
    buf_append_str(out, "# tcsh completion for muster and torchrun.\n"
                        "complete torchrun");
    put_tcsh_rules(out);
    buf_append_str(out, " 'p/*/f/'\ncomplete muster");
    put_tcsh_rules(out);
    buf_printf(out, " 'p/1/(%s)/' 'p/*/f/'\n", commands);
}

int completion_script(struct buf *out, const char *shell, const char *commands)
{
    static const struct {
        const char *shell;
        void (*put)(struct buf *out, const char *commands);
    } rows[] = {
        { "bash", put_bash },
        { "zsh", put_zsh },
        { "fish", put_fish },
        { "tcsh", put_tcsh },
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (strcmp(rows[i].shell, shell) == 0) {
            rows[i].put(out, commands);
            return buf_error(out);
        }
    return MUSTER_EINVAL;
}
