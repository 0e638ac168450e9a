/* warm_core.c - see warm_core.h. */
#include "warm/core/warm_core.h"

#include <assert.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "base/err.h"
#include "base/mem.h"

#define DEATHS_MAX  5    /* in a row: something is wrong with it */
#define DEATH_EARLY 2    /* how many a death while importing counts for */
#define LEARNED_MAX 4000 /* modules; a large job has 3,000 */
#define HINT_MS     1000

/* DDP's constructor imports torch._dynamo, and with it 829 modules. */
static const char *const usual[] = {
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
    "torch._dynamo",
    "torch.distributed.elastic.multiprocessing.errors",
};

bool warm_is_module(struct span name)
{
    bool first = true;

    for (size_t i = 0; i < name.n; i++) {
        const uint8_t c = name.p[i];
        const bool letter =
            (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c >= 0x80;

        if (c == '.' ? first : !letter && (first || c < '0' || c > '9'))
            return false;
        first = c == '.';
    }
    return name.n > 0 && name.n < 256 && !first;
}

static bool has(const struct text_list *l, struct span name)
{
    for (size_t i = 0; i < l->count; i++)
        if (span_eq(span_str(l->items[i]), name))
            return true;
    return false;
}

/* The name itself, or that of a package above it. */
static bool has_above(const struct text_list *l, struct span name)
{
    for (size_t i = 0; i < l->count; i++) {
        const struct span above = span_str(l->items[i]);

        if (above.n <= name.n && memcmp(above.p, name.p, above.n) == 0 &&
            (above.n == name.n || name.p[above.n] == '.'))
            return true;
    }
    return false;
}

static bool is_usual(struct span name)
{
    for (size_t i = 0; i < ARRAY_LEN(usual); i++)
        if (span_eq(span_str(usual[i]), name))
            return true;
    return false;
}

/* These lists grow for as long as the agent runs, so a name that there was no memory
 * for does not keep later ones out. */
static int module_add(struct text_list *l, struct span name)
{
    const int rc = has(l, name) ? 0 : text_list_add(l, (const char *)name.p, name.n);

    l->err = 0;
    return rc;
}

static int add_named(struct warm_core *w, const char *value, struct muster_error *err)
{
    for (const char *p = value;;) {
        const size_t n = strcspn(p, ",");

        if (!warm_is_module(span_of(p, n)))
            return err_set(err, MUSTER_EINVAL,
                           "--warm=%s: '%.*s' is not the name of a module\n"
                           "Say --warm for torch and what DDP needs, --warm=auto for "
                           "what this script imports, or --warm=MODULE,MODULE.",
                           value, (int)n, p);
        if (module_add(&w->modules, span_of(p, n)))
            return err_nomem(err);
        if (p[n] == '\0')
            return 0;
        p += n + 1;
    }
}

int warm_core_init(struct warm_core *w, const char *value, struct muster_error *err)
{
    int rc = 0;

    *w = (struct warm_core){ .learning = strcmp(value, "auto") == 0 };
    w->optional = *value == '\0' || w->learning;
    if (!w->optional)
        rc = add_named(w, value, err);
    for (size_t i = 0; w->optional && rc == 0 && i < ARRAY_LEN(usual); i++)
        if (module_add(&w->modules, span_str(usual[i])))
            rc = err_nomem(err);
    w->chosen = w->modules.count;
    if (rc != 0)
        warm_core_fini(w);
    return rc;
}

void warm_core_fini(struct warm_core *w)
{
    text_list_fini(&w->modules);
    text_list_fini(&w->had);
    text_list_fini(&w->never);
    text_list_fini(&w->broken);
}

/* Without what must not be there. */
static void purge(struct warm_core *w)
{
    struct text_list *l = &w->modules;
    size_t kept = 0, chosen = w->chosen;

    for (size_t i = 0; i < l->count; i++) {
        if (!has_above(&w->never, span_str(l->items[i]))) {
            l->items[kept++] = l->items[i];
            continue;
        }
        mem_free(l->items[i]);
        chosen -= i < w->chosen;
    }
    if (l->items)
        l->items[kept] = NULL;
    l->count = kept;
    w->chosen = chosen;
}

int warm_core_learned(struct warm_core *w, struct span text)
{
    int rc = 0;

    while (rc == 0 && text.n) {
        const struct span line = span_take_line(&text);
        const bool never = span_starts(line, "!");
        const bool marked = never || span_starts(line, "~");
        const struct span name = span_skip(line, marked);
        struct text_list *to = never ? &w->never : marked ? &w->broken : &w->modules;

        if (warm_is_module(name) && to->count < LEARNED_MAX)
            rc = module_add(to, name);
    }
    purge(w);
    return rc;
}

int warm_core_keep(const struct warm_core *w, struct buf *out)
{
    const struct {
        const struct text_list *list;
        const char *mark;
    } parts[] = {
        { &w->modules, "" }, { &w->had, "" }, { &w->never, "!" }, { &w->broken, "~" }
    };

    for (size_t k = 0; k < ARRAY_LEN(parts); k++)
        for (size_t i = 0; i < parts[k].list->count; i++)
            if (parts[k].list != &w->modules || i >= w->chosen)
                (void)buf_printf(out, "%s%s\n", parts[k].mark, parts[k].list->items[i]);
    return buf_error(out);
}

/* --- lines ------------------------------------------------------------------------ */

/* Text that a process outside of us has written: no control characters. */
static void keep_module(char *to, size_t size, struct span text)
{
    const size_t n = MIN_OF(text.n, size - 1);

    assert(size > 0);
    for (size_t i = 0; i < n; i++)
        to[i] = text.p[i] < ' ' || text.p[i] == 0x7f ? '?' : (char)text.p[i];
    to[n] = '\0';
}

/* The next word, and what follows the blank behind it. */
static struct span next_word(struct span *rest)
{
    const uint8_t *blank = rest->n ? memchr(rest->p, ' ', rest->n) : NULL;
    const size_t n = blank ? (size_t)(blank - rest->p) : rest->n;
    const struct span word = span_of(rest->p, n);

    assert(n <= rest->n);
    *rest = blank ? span_of(blank + 1, rest->n - n - 1) : span_of(NULL, 0);
    return word;
}

static uint64_t number_of(struct span word)
{
    uint64_t n = 0;

    for (size_t i = 0; i < word.n && n < UINT32_MAX; i++)
        if (word.p[i] >= '0' && word.p[i] <= '9')
            n = n * 10 + (uint64_t)(word.p[i] - '0');
    return n;
}

static void on_ready(struct warm_core *w, struct span rest, struct warm_text *out)
{
    const uint64_t ms = number_of(next_word(&rest));
    const uint64_t kb = number_of(next_word(&rest));
    const uint64_t modules = number_of(next_word(&rest));

    w->phase = WARM_READY;
    w->importing[0] = '\0';
    out->level = WARM_INFO;
    (void)snprintf(out->text, sizeof out->text,
                   "the warm interpreter is ready after %" PRIu64 ".%" PRIu64
                   " s; it holds %" PRIu64 " MB and %" PRIu64 " modules",
                   ms / 1000, ms % 1000 / 100, kb / 1024, modules);
}

static void leave_out(struct warm_core *w, struct span name)
{
    struct text_list *l = &w->modules;

    for (size_t i = 0; i < l->count; i++) {
        if (!span_eq(span_str(l->items[i]), name))
            continue;
        assert(!l->items[l->count]); /* It ends in NULL, which moves, too. */
        mem_free(l->items[i]);
        memmove(&l->items[i], &l->items[i + 1], (l->count - i) * sizeof *l->items);
        l->count--;
        w->chosen -= i < w->chosen;
        return;
    }
}

/* What a script imports and a server cannot would cost each start of it something: of
 * what was learned it is remembered. What we or the user chose is tried again. */
static int forget_server(struct warm_core *w, struct span name, struct text_list *in)
{
    if (w->learning && !is_usual(name) && !has(in, name) && in->count < LEARNED_MAX) {
        if (module_add(in, name))
            return MUSTER_ENOMEM;
        w->changed = true;
    }
    if (in == &w->never && w->learning)
        purge(w);
    leave_out(w, name);
    return 0;
}

static int on_left_out(struct warm_core *w, struct span kind, struct span rest,
                       struct warm_text *out)
{
    const bool fails = span_eq(kind, span_str("fails"));
    const char *how = "--warm: importing %s leaves %s behind, which workers must not "
                      "inherit; it is left out";
    const struct span name = next_word(&rest);
    char module[256], why[512];

    if (fails)
        how = "--warm: the module %s does not import (%s); it is left out";
    else if (span_eq(kind, span_str("needs")))
        how = "--warm: %s imports %s, which must not be imported ahead of this script; "
              "it is left out, too";
    keep_module(module, sizeof module, name);
    keep_module(why, sizeof why, rest);
    out->level = WARM_WARN;
    (void)snprintf(out->text, sizeof out->text, how, module, why);
    if (forget_server(w, name, fails ? &w->broken : &w->never))
        return MUSTER_ENOMEM;
    w->left_out = w->left_out || !fails;
    return 0;
}

/* For what the script sets or reads of its own, torch is a module like any other. */
static int on_differs(struct warm_core *w, struct span name)
{
    if (!w->learning || !warm_is_module(name) || has(&w->never, name) ||
        w->never.count >= LEARNED_MAX)
        return 0;
    if (module_add(&w->never, name))
        return MUSTER_ENOMEM;
    w->changed = true;
    purge(w);
    return 0;
}

/* A worker has imported it, and would have found it if we had. */
static int on_module(struct warm_core *w, struct span name)
{
    if (!w->learning || !warm_is_module(name) || has(&w->modules, name) ||
        has_above(&w->never, name) || has(&w->broken, name) || has(&w->had, name) ||
        w->modules.count + w->had.count >= LEARNED_MAX)
        return 0;
    if (module_add(&w->had, name))
        return MUSTER_ENOMEM;
    w->changed = true;
    return 0;
}

static void on_stale(struct warm_core *w, struct span rest, const char *what,
                     struct warm_text *out)
{
    char detail[512];

    keep_module(detail, sizeof detail, rest);
    w->phase = WARM_IMPORTING;
    out->level = WARM_INFO;
    (void)snprintf(out->text, sizeof out->text,
                   "%s: %s; the warm interpreter begins again", what, detail);
}

int warm_core_line(struct warm_core *w, struct span line, struct warm_text *out)
{
    struct span rest = line;
    const struct span kind = next_word(&rest);
    char why[1000];

    out->level = WARM_QUIET;
    keep_module(why, sizeof why, rest);
    if (span_eq(kind, span_str("importing"))) {
        (void)snprintf(w->importing, sizeof w->importing, "%.200s", why);
    } else if (span_eq(kind, span_str("ready"))) {
        on_ready(w, rest, out);
    } else if (span_eq(kind, span_str("left-out")) ||
               span_eq(kind, span_str("needs")) || span_eq(kind, span_str("fails"))) {
        return on_left_out(w, kind, rest, out);
    } else if (span_eq(kind, span_str("never"))) {
        return warm_is_module(rest) ? forget_server(w, rest, &w->never) : 0;
    } else if (span_eq(kind, span_str("differs"))) {
        return on_differs(w, rest);
    } else if (span_eq(kind, span_str("failed"))) {
        (void)snprintf(w->reason, sizeof w->reason, "%s", why);
    } else if (span_eq(kind, span_str("refused"))) {
        out->level = WARM_WARN;
        (void)snprintf(out->text, sizeof out->text,
                       "--warm: %s; this worker starts the ordinary way", why);
    } else if (span_eq(kind, span_str("stale"))) {
        on_stale(w, rest, "a file that was imported has changed", out);
    } else if (span_eq(kind, span_str("grown"))) {
        on_stale(w, rest, "the warm interpreter has grown (KB)", out);
    } else if (span_eq(kind, span_str("module"))) {
        return on_module(w, rest);
    }
    return 0;
}

void warm_core_slow(const struct warm_core *w, uint64_t ms, struct warm_text *out)
{
    out->level = WARM_WARN;
    (void)snprintf(out->text, sizeof out->text,
                   "--warm: the workers wait for the import of %s, which has taken "
                   "%" PRIu64 " s so far",
                   w->importing[0] ? w->importing : "the first module", ms / 1000);
}

void warm_core_late(struct warm_core *w, uint64_t ms, struct warm_text *out)
{
    w->late = true;
    out->level = WARM_WARN;
    (void)snprintf(out->text, sizeof out->text,
                   "--warm: modules that had to be left out have cost %" PRIu64
                   " s; these workers start the ordinary way, those of later attempts "
                   "warm",
                   ms / 1000);
}

void warm_core_forked(struct warm_core *w)
{
    w->deaths = 0;
}

/* --- the end of a server ---------------------------------------------------------- */

static void describe_modules(const struct warm_core *w, int status, int errnum,
                             char *to, size_t size)
{
    const char *during = w->importing[0] ? " while it imported " : "";

    if (errnum)
        (void)snprintf(to, size, "it could not be started: %s", strerror(errnum));
    else if (w->reason[0])
        (void)snprintf(to, size, "%s", w->reason);
    else if (WIFSIGNALED(status))
        (void)snprintf(to, size, "it was ended by signal %d%s%s", WTERMSIG(status),
                       during, w->importing);
    else if (WEXITSTATUS(status) == 77)
        (void)snprintf(
            to, size, "this Python does not run what PYTHONPATH offers (-E, -I or -S)");
    else
        (void)snprintf(to, size, "it ended with exit code %d%s%s", WEXITSTATUS(status),
                       during, w->importing);
}

/* A SIGKILL from outside says nothing about the modules. A crash or an exception while
 * importing would happen again. */
static bool was_killed(const struct warm_core *w, int status, int errnum)
{
    if (errnum || w->reason[0] || !WIFSIGNALED(status))
        return false;
    const int number = WTERMSIG(status);
    return number == SIGKILL || number == SIGTERM || number == SIGINT ||
           number == SIGHUP;
}

/* A module that was learned and ends the interpreter: the next one does without. */
static bool without_culprit(struct warm_core *w, int errnum)
{
    const struct span name = span_str(w->importing);

    return w->learning && !errnum && !w->reason[0] && name.n > 0 && !is_usual(name) &&
           has(&w->modules, name) && forget_server(w, name, &w->never) == 0;
}

bool warm_core_exited(struct warm_core *w, int status, int errnum,
                      struct warm_text *out)
{
    const bool was_ready = w->phase == WARM_READY, late = w->late;
    char how[1200];

    w->left_out = w->late = false;
    out->level = WARM_QUIET;
    if (late && !errnum) { /* It was told when it was killed. */
        w->reason[0] = w->importing[0] = '\0';
        w->phase = WARM_IMPORTING;
        return true;
    }
    describe_modules(w, status, errnum, how, sizeof how);
    w->deaths += was_ready ? 1 : DEATH_EARLY;
    w->phase =
        (was_ready || was_killed(w, status, errnum) || without_culprit(w, errnum)) &&
                w->deaths < DEATHS_MAX
            ? WARM_IMPORTING
            : WARM_GIVEN_UP;
    (void)snprintf(
        out->text, sizeof out->text,
        w->phase == WARM_IMPORTING
            ? "the warm interpreter is gone (%s); another one takes its place"
            : "--warm: %s; workers start the ordinary way",
        how);
    out->level = WARM_WARN;
    w->reason[0] = w->importing[0] = '\0';
    return w->phase == WARM_IMPORTING;
}

/* --- the hint --------------------------------------------------------------------- */

void warm_hint(uint64_t ms, struct warm_text *out)
{
    out->level = WARM_QUIET;
    if (ms < HINT_MS)
        return;
    out->level = WARM_WARN;
    (void)snprintf(out->text, sizeof out->text,
                   "the workers took %" PRIu64 ".%" PRIu64
                   " s from their start to the process group, most of it to import; "
                   "--warm imports once and forks them in milliseconds",
                   ms / 1000, ms % 1000 / 100);
}
