/* script.c - see script.h. */
#include "launch/script.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/nearest.h"
#include "launch/refusal.h"
#include "loop/file.h"

/* The interpreter that "#!/usr/bin/env -S bash -e" names, without its directory. */
static struct span interpreter(struct span line)
{
    struct span word;

    while (span_take_word(&line, " \t", &word)) {
        const uint8_t *slash = memrchr(word.p, '/', word.n);

        if (slash)
            word = span_skip(word, (size_t)(slash - word.p) + 1);
        if (!span_eq(word, span_str("env")) && !span_starts(word, "-"))
            break;
    }
    return word;
}

/* These are surely not Python. Many others start a Python (uv, pypy, conda, srun), so
 * an interpreter that is not in the list is let through. */
static bool is_other_language(struct span name)
{
    static const char *const names[] = { "sh",   "bash", "dash",    "zsh",  "ksh",
                                         "fish", "csh",  "tcsh",    "perl", "ruby",
                                         "node", "lua",  "Rscript", "julia" };

    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (span_eq(name, span_str(names[i])))
            return true;
    return false;
}

/* pip writes scripts that a shell and Python both understand: the second line begins
 * with a quote. */
static bool is_for_both(struct span rest)
{
    return rest.n > 0 && (rest.p[0] == '\'' || rest.p[0] == '"');
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);

    return n > m && strcmp(text + n - m, end) == 0;
}

static int other_language(const char *path, struct span name, struct muster_error *err)
{
    return err_set(err, MUSTER_EINVAL,
                   "%s is a script for %.*s, and Python was to run it\n"
                   "Give --no-python to run it without Python.",
                   path, (int)name.n, (const char *)name.p);
}

static int check_kind(const char *path, struct span begin, struct muster_error *err)
{
    struct span rest = begin;
    const struct span first = span_take_line(&rest);

    if (begin.n >= 4 && memcmp(begin.p, "\177ELF", 4) == 0)
        return err_set(err, MUSTER_EINVAL,
                       "%s is a compiled program, and Python was to run it\n"
                       "Give --no-python to run it without Python.",
                       path);
    if (begin.n < 3 || memcmp(begin.p, "#!", 2) != 0)
        return ends_with(path, ".sh") ? other_language(path, span_str("sh"), err) : 0;
    if (is_for_both(rest))
        return 0;
    const struct span name = interpreter(span_skip(first, 2));
    return is_other_language(name) ? other_language(path, name, err) : 0;
}

/* Adds the file of the same directory that was probably meant. */
static void add_meant(const char *path, struct muster_error *err)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    const int before = (int)(name - path);
    char dir[4096], word[256] = "";
    struct nearest meant = { 0 };

    (void)snprintf(dir, sizeof dir, "%.*s", before ? before : 1, before ? path : ".");
    DIR *all = opendir(dir);
    for (struct dirent *e; all && (e = readdir(all));) {
        meant.word = NULL;
        const unsigned distance = meant.distance;
        nearest_try(&meant, span_str(name), e->d_name);
        if (meant.word && (!word[0] || meant.distance < distance))
            (void)snprintf(word, sizeof word, "%s", e->d_name);
        else
            meant.distance = distance;
    }
    if (all)
        (void)closedir(all);
    if (word[0])
        err_add(err, "\nDid you mean %.*s%s?", before, path, word);
}

static int unreadable(const char *path, struct muster_error *err)
{
    const int errnum = errno;

    (void)err_set(err, MUSTER_EINVAL, "the script '%s' cannot be read: %s", path,
                  strerror(errnum));
    if (errnum == ENOENT)
        add_meant(path, err);
    err_add(err, "\nA relative name starts from the directory that muster is started "
                 "in. The script must be there on every node.");
    return MUSTER_EINVAL;
}

/* "python", "python3", "/usr/bin/python3.11" */
static bool is_python(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

    return strncmp(name, "python", 6) == 0 &&
           !name[6 + strspn(name + 6, "0123456789.")];
}

/* `muster run python train.py` */
static int python_given(const struct launch_config *c, struct muster_error *err)
{
    const bool more = c->args.count > 0;

    return err_set(
        err, MUSTER_EINVAL,
        "'%s' is Python itself, and the script was expected: muster starts "
        "Python\nDid you mean `muster run %s`? (--no-python starts a program "
        "as it is given.)",
        c->script, more ? c->args.items[0] : "train.py");
}

/* `muster run --no-python train.py` */
static int check_program(const struct launch_config *c, struct muster_error *err)
{
    const bool here = strchr(c->script, '/'); /* else it is looked for on PATH */
    char path[4096];

    if (!ends_with(c->script, ".py") || strchr(c->script, '$') ||
        access(c->script, R_OK) != 0 || (here && access(c->script, X_OK) == 0) ||
        (!here && refusal_find(c->script, getenv("PATH"), path, sizeof path)))
        return 0;
    return err_set(err, MUSTER_EINVAL,
                   "--no-python was to execute '%s', which is a Python script and %s\n"
                   "Did you mean `muster run %s`, without --no-python?",
                   c->script,
                   here ? "may not be executed (chmod +x)"
                        : "is not looked for in this directory (./ does)",
                   c->script);
}

int script_check(const struct launch_config *c, struct muster_error *err)
{
    char begin[256];
    struct stat st;

    if (c->entry == ENTRY_EXEC)
        return check_program(c, err);
    if ((c->entry != ENTRY_SCRIPT && c->entry != ENTRY_RUN_PATH) ||
        c->python_is_custom || c->script[0] == '-' || strchr(c->script, '$'))
        return 0;
    if (is_python(c->script) &&
        (stat(c->script, &st) != 0 || (strchr(c->script, '/') && c->args.count > 0)))
        return python_given(c, err);
    if (stat(c->script, &st) != 0)
        return unreadable(c->script, err);
    if (!S_ISREG(st.st_mode)) /* Python runs a directory with a __main__.py, too. */
        return 0;
    const ssize_t got = file_read(c->script, begin, sizeof begin);

    if (got < 0)
        return unreadable(c->script, err);
    if (got <= 0 || ends_with(c->script, ".py"))
        return 0;
    return check_kind(c->script, span_of(begin, (size_t)got), err);
}
