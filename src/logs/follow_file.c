/* follow_file.c - see follow_int.h. */
#include "logs/follow_int.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"

#define TURN       (1u << 20) /* read from one file before others get their turn */
#define CHUNKS_MAX (TURN / TAIL_CHUNK)
/* An unfinished line is shown after this, as torch's poll does. */
#define PARTIAL_MS 100

int tail_file_new(const struct tail_spec *spec, struct console *console,
                  struct tail_file **out, struct muster_error *err)
{
    struct tail_file *f = mem_calloc(1, sizeof *f);
    int rc = 0;

    if (!f)
        return err_nomem(err);
    f->fd = open(spec->path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0)
        rc = err_set(err, MUSTER_EIO, "%s: %s", spec->path, strerror(errno));
    f->name = mem_strdup(spec->name);
    f->prefix = mem_strndup((const char *)spec->prefix.p, spec->prefix.n);
    if (rc == 0 && (!f->name || !f->prefix))
        rc = err_nomem(err);
    if (rc != 0) {
        tail_file_free(f);
        return rc;
    }
    f->copy_fd = spec->copy_fd;
    f->console = console;
    tee_init(&f->tee, span_of(f->prefix, spec->prefix.n), spec->needles,
             spec->needle_count);
    *out = f;
    return 0;
}

void tail_file_free(struct tail_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    tee_fini(&f->tee);
    mem_free(f->name);
    mem_free(f->prefix);
    mem_free(f);
}

static void tail_file_give_up(struct tail_common *s, struct tail_file *f, int errnum)
{
    if (f->given_up)
        return;
    f->given_up = true;
    s->opts.on_error(s->opts.ctx, f->name, errnum);
}

/* Like torchrun, whose console and filter file have a reader each, go on for the one
 * while the other is gone. */
static void see_who_is_left(struct tail_common *s, struct tail_file *f)
{
    const int broken = f->console->broken;

    if (!broken)
        return;
    if (!f->notified)
        s->opts.on_error(s->opts.ctx, f->name, broken);
    f->notified = true;
    if (f->copy_fd < 0)
        f->given_up = true;
}

static void write_copy(struct tail_common *s, struct tail_file *f)
{
    while (buf_len(&s->copy) > 0 && f->copy_fd >= 0) {
        const ssize_t n = write(f->copy_fd, buf_data(&s->copy), buf_len(&s->copy));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            f->copy_fd = -1;
            s->opts.on_error(s->opts.ctx, f->name, errno);
            break;
        }
        buf_consume(&s->copy, (size_t)n);
    }
    buf_clear(&s->copy);
}

bool tail_file_read(struct tail_common *s, struct tail_file *f, bool *any)
{
    struct console *c = f->console;

    for (unsigned i = 0; i < CHUNKS_MAX; i++) {
        see_who_is_left(s, f);
        if (f->given_up)
            return false;
        if (console_full(c)) {
            console_flush(c); /* It may have room by now, or break: that empties it. */
            if (console_full(c))
                return true;
        }
        const ssize_t n = read(f->fd, s->chunk, TAIL_CHUNK);
        if (n == 0)
            return false;
        if (n < 0) {
            tail_file_give_up(s, f, errno);
            return false;
        }
        if (tee_feed(&f->tee, span_of(s->chunk, (size_t)n), &c->out, &s->copy) != 0)
            tail_file_give_up(s, f, ENOMEM);
        write_copy(s, f);
        if (f->tee.fresh) /* A line that grows and grows is shown in time, too. */
            f->partial_since = 0;
        *any = true;
    }
    return !f->given_up;
}

uint64_t tail_file_settle(struct tail_common *s, struct tail_file *f, bool now)
{
    const uint64_t time = uv_now(s->opts.loop);

    if (!tee_holds(&f->tee) || f->given_up)
        return 0;
    if (f->partial_since == 0)
        f->partial_since = MAX_OF(time, 1);
    if (!now && time < f->partial_since + PARTIAL_MS)
        return f->partial_since + PARTIAL_MS - time;
    tee_flush(&f->tee, &f->console->out, &s->copy);
    write_copy(s, f);
    f->partial_since = 0;
    return 0;
}
