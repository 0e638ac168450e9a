/* faulthandler.c - see faulthandler.h. The text comes from a worker, which may have
 * written anything into that file. */
#include "stacks/core/faulthandler.h"

#include "base/err.h"
#include "process/core/proc_stat.h"

#define HEADER "Stack (most recent call first):\n"

bool faulthandler_whole(struct span text)
{
    return span_after(span_after(text, HEADER), HEADER).p != NULL;
}

/* As py-spy shortens them: without where packages or the standard library are, and
 * without the folder of the script. */
static struct span short_file(struct span path)
{
    static const char *const marks[] = { "-packages/", "/lib/python3" };

    for (size_t i = 0; i < ARRAY_LEN(marks); i++) {
        struct span rest = span_after(path, marks[i]);

        if (i == 1 && rest.p) /* the minor version */
            rest = span_after(rest, "/");
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
    uint64_t n;

    if (!span_starts(line, begin))
        return MUSTER_EEMPTY;
    const struct span path = span_skip(line, sizeof begin - 1);
    for (struct span more = span_after(path, middle); more.p;
         more = span_after(more, middle))
        rest = more;
    const size_t path_n = path.n - rest.n - (sizeof middle - 1);
    if (!rest.p || !span_take_number(&rest, &n) || n > INT32_MAX)
        return MUSTER_EEMPTY;
    const struct span name = span_after(rest, in);
    if (!name.p)
        return MUSTER_EEMPTY;
    f->file = arena_text(a, short_file(span_of(path.p, path_n)));
    f->name = arena_text(a, name);
    f->line = (int64_t)n;
    return f->file && f->name ? 0 : MUSTER_ENOMEM;
}

int faulthandler_parse(struct arena *a, struct stack_process *p, struct span text,
                       struct muster_error *err)
{
    struct span rest = span_after(text, HEADER);
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
