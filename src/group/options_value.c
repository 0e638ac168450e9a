/* options_value.c - values of options, from the command line, from PET_ variables and
 * by default; and torchrun's words for those that it refuses. */
#include <stdio.h>

#include "base/err.h"
#include "group/options_int.h"
#include "group/pyform.h"
#include "rdzv/pytext.h"

/* "argument <names>: <text> '<value>'<more>" in err. */
enum options_fault option_refuse(struct walk *w, const struct option_spec *s,
                                 const char *text, const char *value, const char *more)
{
    struct buf b;
    int rc;

    buf_init(&b, SIZE_MAX);
    rc = buf_append_str(&b, "argument ");
    rc = rc ? rc : option_names(&b, s, "/");
    rc = rc ? rc : buf_printf(&b, ": %s", text);
    if (value) {
        rc = rc ? rc : buf_u8(&b, ' ');
        rc = rc ? rc : py_repr(&b, value);
    }
    rc = rc ? rc : buf_append_str(&b, more);
    if (rc)
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
    for (size_t i = 0; s->choices[i]; i++)
        if (strcmp(s->choices[i], value) == 0)
            return true;
    return false;
}

/* Stores one value. A value of the environment is not held against the choices. */
enum options_fault option_take(struct walk *w, const struct option_spec *s,
                               const char *value, bool from_env)
{
    void *field = (char *)w->o + s->field;
    struct option_int *number = field;

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
        if (!from_env && !is_choice(s, value))
            return refuse_choice(w, s, value);
        *(const char **)field = value;
        break;
    case OPTION_TEXT:
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

const char *env_get(char *const *envp, const char *name)
{
    const size_t n = strlen(name);

    for (; envp && *envp; envp++)
        if (strncmp(*envp, name, n) == 0 && (*envp)[n] == '=')
            return *envp + n + 1;
    return NULL;
}

static const char *pet_value(const struct options_input *in,
                             const struct option_spec *s)
{
    char name[NAME_MAX_LEN] = "PET_";

    if (!s->pet)
        return NULL;
    (void)option_underscored(s, name + 4, sizeof name - 4);
    for (char *p = name; *p; p++)
        if (*p >= 'a' && *p <= 'z')
            *p = (char)(*p - 'a' + 'A');
    return env_get(in->envp, name);
}

/* torchrun reads these while it makes its parser, so they count even with --help. */
enum options_fault options_take_env_flags(struct walk *w)
{
    for (size_t i = 0; i < options_count; i++) {
        const struct option_spec *s = &options_table[i];
        const char *value = s->kind == OPTION_FLAG ? pet_value(w->in, s) : NULL;
        int64_t on;

        if (!value)
            continue;
        if (!py_int(span_str(value), &on)) {
            char remedy[100];

            (void)snprintf(remedy, sizeof remedy,
                           "The PET_ variable of --%s switches it: 0 off, 1 on.",
                           s->name);
            (void)py_bad_int(w->err, value, strlen(value), remedy);
            return OPTIONS_VALUE;
        }
        *(bool *)((char *)w->o + s->field) = on != 0;
    }
    return OPTIONS_FINE;
}

enum options_fault options_take_defaults(struct walk *w)
{
    for (size_t i = 0; i < options_count; i++) {
        const struct option_spec *s = &options_table[i];
        const char *value = pet_value(w->in, s);
        enum options_fault fault;

        if (w->seen >> i & 1 || !option_takes_value(s))
            continue;
        fault = value        ? option_take(w, s, value, true)
                : s->initial ? option_take(w, s, s->initial, true)
                             : OPTIONS_FINE;
        if (fault)
            return fault;
    }
    return OPTIONS_FINE;
}
