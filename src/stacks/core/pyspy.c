/* pyspy.c - see pyspy.h. py-spy is a program of somebody else's: whatever it prints is
 * taken as far as it makes sense. */
#include "stacks/core/pyspy.h"

#include <jansson.h>

#include "base/err.h"
#include "base/py/json.h"

static const char *copy_text(struct arena *a, const json_t *value, const char *none)
{
    const char *text = json_string_value(value);

    return text && *text ? arena_text(a, span_str(text)) : none;
}

static bool read_frame(struct arena *a, struct stack_frame *f, const json_t *from)
{
    const json_t *file = json_object_get(from, "short_filename");
    const json_t *line = json_object_get(from, "line");

    if (!json_is_string(file))
        file = json_object_get(from, "filename");
    f->name = copy_text(a, json_object_get(from, "name"), "?");
    f->file = copy_text(a, file, "?");
    f->line = json_is_integer(line) ? json_integer_value(line) : 0;
    if (f->line < 0 || f->line > INT32_MAX)
        f->line = 0;
    return f->name && f->file;
}

static bool read_thread(struct arena *a, struct stack_thread *t, const json_t *from)
{
    const json_t *frames = json_object_get(from, "frames");
    const size_t count = MIN_OF(json_array_size(frames), (size_t)STACK_FRAMES_MAX);
    const json_t *id = json_object_get(from, "os_thread_id");

    *t = (struct stack_thread){
        .id = json_is_integer(id) ? json_integer_value(id) : 0,
        .name = copy_text(a, json_object_get(from, "thread_name"), ""),
        .gil = json_is_true(json_object_get(from, "owns_gil")),
        .python = arena_alloc(a, count, sizeof *t->python),
        .python_count = count,
    };
    bool good = t->name && t->python;
    for (size_t i = 0; good && i < count; i++)
        good = read_frame(a, &t->python[i], json_array_get(frames, i));
    return good;
}

/* The thread that has the process's own number, else the one that Python calls so, else
 * the last: py-spy begins with the newest. */
static size_t main_thread(const json_t *list, int64_t pid)
{
    const size_t count = json_array_size(list);
    size_t named = count - 1;

    for (size_t i = 0; i < count; i++) {
        const json_t *one = json_array_get(list, i);
        const json_t *id = json_object_get(one, "os_thread_id");
        const char *name = json_string_value(json_object_get(one, "thread_name"));

        if (json_is_integer(id) && json_integer_value(id) == pid)
            return i;
        if (name && strcmp(name, "MainThread") == 0)
            named = i;
    }
    return named;
}

static int read_threads(struct arena *a, struct stack_process *p, const json_t *list)
{
    const size_t all = json_array_size(list);
    const size_t count = MIN_OF(all, (size_t)STACK_THREADS_MAX);
    const size_t first = main_thread(list, p->pid);
    struct stack_thread *t = arena_alloc(a, count, sizeof *t);
    size_t n = 0;

    if (!t || !read_thread(a, &t[n++], json_array_get(list, first)))
        return MUSTER_ENOMEM;
    for (size_t i = 0; i < all && n < count; i++)
        if (i != first && !read_thread(a, &t[n++], json_array_get(list, i)))
            return MUSTER_ENOMEM;
    if (t[0].id == 0)
        t[0].id = p->pid;
    p->threads = t;
    p->thread_count = n;
    return 0;
}

int pyspy_parse(struct arena *a, struct stack_process *p, struct span json,
                struct muster_error *err)
{
    json_t *root = NULL;
    int rc = json_from_python(&root, json, err);

    if (rc == MUSTER_ENOMEM)
        return rc;
    if (rc != 0 || !json_is_array(root))
        rc = err_set(err, MUSTER_EPROTO, "py-spy printed something other than threads");
    else if (json_array_size(root) == 0)
        rc = err_set(err, MUSTER_EEMPTY, "py-spy found no thread in this process");
    else if (read_threads(a, p, root) != 0)
        rc = err_nomem(err);
    json_decref(root);
    return rc;
}
