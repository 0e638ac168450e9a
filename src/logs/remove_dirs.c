/* remove_dirs.c - see remove_dirs.h. A few threads of libuv's pool take numbers from
 * one list; all else is the loop's. */
#include "logs/remove_dirs.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"

#define SWEEPERS 4

struct sweep {
    uv_loop_t *loop; /* borrowed */
    int dir;
    uv_mutex_t lock;
    int64_t *numbers; /* owned; under lock, as are the next two */
    size_t count, size;
    uv_work_t work[SWEEPERS];
    bool busy[SWEEPERS];
    uv_timer_t end; /* tells it from the loop */
    void (*cb)(void *ctx);
    void *ctx;
};

static void remove_one(const struct sweep *s, int64_t number)
{
    char name[24];

    (void)snprintf(name, sizeof name, "%" PRId64, number);
    (void)unlinkat(s->dir, name, AT_REMOVEDIR);
}

/* In a thread of the pool. */
static void sweep_work(uv_work_t *w)
{
    struct sweep *s = w->data;

    for (;;) {
        int64_t number = -1;

        uv_mutex_lock(&s->lock);
        if (s->count > 0)
            number = s->numbers[--s->count];
        uv_mutex_unlock(&s->lock);
        if (number < 0)
            return;
        remove_one(s, number);
    }
}

static void remove_dirs_on_closed(uv_handle_t *h)
{
    struct sweep *s = h->data;
    void (*cb)(void *) = s->cb;
    void *ctx = s->ctx;

    (void)close(s->dir);
    uv_mutex_destroy(&s->lock);
    mem_free(s->numbers);
    mem_free(s);
    cb(ctx);
}

static void end_if_done(struct sweep *s)
{
    for (size_t i = 0; i < SWEEPERS; i++)
        if (s->busy[i])
            return;
    if (s->cb && !uv_is_closing((uv_handle_t *)&s->end))
        uv_close((uv_handle_t *)&s->end, remove_dirs_on_closed);
}

static void sweep_on_worked(uv_work_t *w, int status);

/* Another thread, if one is idle; without threads we do it ourselves. */
static void start_thread(struct sweep *s)
{
    bool any = false;

    for (size_t i = 0; i < SWEEPERS; i++) {
        if (!s->busy[i]) {
            s->work[i].data = s;
            s->busy[i] =
                uv_queue_work(s->loop, &s->work[i], sweep_work, sweep_on_worked) == 0;
            if (s->busy[i])
                return;
        }
        any = any || s->busy[i];
    }
    if (!any)
        sweep_work(&(uv_work_t){ .data = s });
}

static void sweep_on_worked(uv_work_t *w, int status)
{
    struct sweep *s = w->data;

    (void)status;
    uv_mutex_lock(&s->lock);
    const bool more = s->count > 0; /* added after it had looked for the last time */
    uv_mutex_unlock(&s->lock);
    s->busy[w - s->work] = false;
    if (more)
        start_thread(s);
    end_if_done(s);
}

int sweep_open(uv_loop_t *loop, const char *dir, struct sweep **out,
               struct muster_error *err)
{
    struct sweep *s = mem_calloc(1, sizeof *s);

    if (!s)
        return err_nomem(err);
    s->loop = loop;
    s->dir = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (s->dir < 0 || uv_mutex_init(&s->lock) != 0) {
        const int errnum = errno;

        if (s->dir >= 0)
            (void)close(s->dir);
        mem_free(s);
        return err_set(err, MUSTER_EIO, "%s: %s", dir, strerror(errnum));
    }
    (void)uv_timer_init(loop, &s->end);
    s->end.data = s;
    *out = s;
    return 0;
}

static bool sweep_add(struct sweep *s, int64_t number)
{
    bool added = false;

    uv_mutex_lock(&s->lock);
    if (s->count == s->size) {
        const size_t size = s->size ? s->size * 2 : 64;
        int64_t *numbers = mem_realloc_array(s->numbers, size, sizeof *numbers);

        if (numbers) {
            s->numbers = numbers;
            s->size = size;
        }
    }
    if (s->count < s->size) {
        s->numbers[s->count++] = number;
        added = true;
    }
    uv_mutex_unlock(&s->lock);
    return added;
}

void sweep_remove(struct sweep *s, int64_t number)
{
    if (sweep_add(s, number))
        start_thread(s);
    else
        remove_one(s, number);
}

void sweep_close(struct sweep *s, void (*cb)(void *ctx), void *ctx)
{
    s->cb = cb;
    s->ctx = ctx;
    end_if_done(s);
}
