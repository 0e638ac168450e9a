/* faulthandler.c - see faulthandler.h. The text comes from a worker, which may have
 * written anything into that file. */
#include "stacks/core/faulthandler.h"

#include "base/err.h"
#include "process/core/proc_stat.h"

#define HEADER "Stack (most recent call first):\n"

static struct span behind(struct span text, const char *mark)
{
    const size_t n = strlen(mark);
    const uint8_t *at = text.n >= n ? memmem(text.p, text.n, mark, n) : NULL;

    if (!at)
        return span_of(NULL, 0);
    const size_t skip = (size_t)(at - text.p) + n;
    return span_of(text.p + skip, text.n - skip);
}

bool faulthandler_whole(struct span text)
{
    return behind(behind(text, HEADER), HEADER).p != NULL;
}

/* As py-spy shortens them: without where packages or the standard library are, and
 * without the folder of the script. */
static struct span short_file(struct span path)
{
    static const char *const marks[] = { "-packages/", "/lib/python3" };

    for (size_t i = 0; i < ARRAY_LEN(marks); i++) {
        struct span rest = behind(path, marks[i]);

        if (i == 1 && rest.p) /* the minor version */
            rest = behind(rest, "/");
        if (rest.n > 0)
            return rest;
    }
    size_t from = path.n;
    while (from > 0 && path.p[from - 1] != '/')
        from--;
    return span_of(path.p + from, path.n - from);
}

/* `  File "PATH", line N in NAME`: 0; something else: MUSTER_EEMPTY. A path may hold
 * quotes: the last `", line ` counts. */
static int read_frame(struct arena *a, struct stack_frame *f, struct span line)
{
    static const char begin[] = "  File \"", middle[] = "\", line ", in[] = " in ";
    struct span rest = { NULL, 0 };
    size_t at = 0;
    int64_t n = 0;

    if (line.n < sizeof begin - 1 || memcmp(line.p, begin, sizeof begin - 1) != 0)
        return MUSTER_EEMPTY;
    const struct span path =
        span_of(line.p + sizeof begin - 1, line.n - (sizeof begin - 1));
    for (struct span more = behind(path, middle); more.p; more = behind(more, middle))
        rest = more;
    if (!rest.p)
        return MUSTER_EEMPTY;
    for (; at < rest.n && rest.p[at] >= '0' && rest.p[at] <= '9' && n < INT32_MAX / 10;
         at++)
        n = n * 10 + (rest.p[at] - '0');
    const struct span name = behind(span_of(rest.p + at, rest.n - at), in);
    if (!name.p)
        return MUSTER_EEMPTY;
    const size_t path_n = path.n - rest.n - (sizeof middle - 1);
    f->file = arena_text(a, short_file(span_of(path.p, path_n)));
    f->name = arena_text(a, name);
    f->line = n;
    return f->file && f->name ? 0 : MUSTER_ENOMEM;
}

int faulthandler_parse(struct arena *a, struct stack_process *p, struct span text,
                       struct muster_error *err)
{
    struct span rest = behind(text, HEADER);
    struct stack_thread *t = arena_alloc(a, 1, sizeof *t);
    struct stack_frame *frames = arena_alloc(a, STACK_FRAMES_MAX, sizeof *frames);
    size_t count = 0;

    if (!t || !frames)
        return err_nomem(err);
    while (rest.n > 0 && count < STACK_FRAMES_MAX) {
        const int rc = read_frame(a, &frames[count], span_take_line(&rest));

        if (rc == MUSTER_ENOMEM)
            return err_nomem(err);
        if (rc != 0)
            break;
        count++;
    }
    if (count == 0)
        return err_set(err, MUSTER_EEMPTY, "faulthandler printed no frame");
    *t = (struct stack_thread){
        .id = p->pid, .name = "MainThread", .python = frames, .python_count = count
    };
    p->threads = t;
    p->thread_count = 1;
    return 0;
}

bool faulthandler_listens(struct span status, int sig)
{
    return proc_status_signal(status, "SigCgt", sig) &&
           !proc_status_signal(status, "SigBlk", sig);
}
