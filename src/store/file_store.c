/* file_store.c - a store in a file; see async_store.h, store/core/filelog.h for the
 * format of the file, and locked_file.h for its lock. First come the operations on the
 * locked file, whose records are those that torch's FileStore writes, so that both can
 * use one file; then the driver.
 *
 * Calls are served in order, each under the file's lock; one that has to wait for keys
 * goes into a list of its own. The kernel does not report when a lock becomes free, so
 * the lock is polled, and nothing else: inotify reports changes of the file. Where
 * other machines may write it, we also check it now and then. */
#include <assert.h>
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "loop/clock.h"
#include "loop/defer.h"
#include "loop/handle_set.h"
#include "store/call.h"
#include "store/core/decimal.h"
#include "store/core/wire_keys.h"
#include "store/locked_file.h"

#define LOCK_FIRST_MS   1 /* mostly a lock is held for microseconds */
#define LOCK_MOST_MS    10
#define CHECK_LOCAL_MS  1000 /* in case inotify missed something */
#define CHECK_REMOTE_MS 20   /* torch: 10 */
#define CLOSE_MS        5000 /* for the lock, to count ourselves out */

#define FILE_OP_COUNT_IN 0x100u /* beside the async_store flags: it counts us in */

/* ---- operations on the locked file ---- */

struct file_answer {
    struct c10d_reply reply; /* spans: into the log, the call, or `bytes` */
    struct buf bytes;        /* owned */
};

static void file_answer_init(struct file_answer *a)
{
    a->reply = (struct c10d_reply){ 0 };
    buf_init(&a->bytes, SIZE_MAX);
}

static enum locked_file_mode file_op_mode(enum c10d_op op)
{
    switch ((int)op) {
    case C10D_SET:
    case C10D_ADD:
    case C10D_COMPARE_SET:
    case C10D_APPEND:
    case C10D_MULTI_SET:
        return LOCKED_FILE_WRITE;
    case C10D_DELETE_KEY:
        return LOCKED_FILE_CHANGE;
    default:
        return LOCKED_FILE_READ;
    }
}

static bool has_all(const struct locked_file *f, struct c10d_list keys)
{
    struct span key;

    while (c10d_list_next(&keys, &key))
        if (!filelog_get(&f->log, key, NULL))
            return false;
    return true;
}

/* Whether a WAIT, or a call with ASYNC_STORE_BLOCK, lacks one of its keys. */
static bool file_op_must_wait(const struct locked_file *f, enum c10d_op op,
                              unsigned flags, const struct c10d_request *req)
{
    if (op == C10D_WAIT || (op == C10D_MULTI_GET && (flags & ASYNC_STORE_BLOCK)))
        return !has_all(f, req->list);
    return op == C10D_GET && (flags & ASYNC_STORE_BLOCK) &&
           !filelog_get(&f->log, req->key, NULL);
}

static int write_record(struct locked_file *f, struct span key, struct span value,
                        struct buf *scratch, struct muster_error *err)
{
    int rc = filelog_record(scratch, key, value);

    if (rc == MUSTER_EINVAL)
        return err_set(err, rc, "file://%s: keys and values must be shorter than 4 GiB",
                       f->path);
    if (rc < 0)
        return err_nomem(err);
    return locked_file_append(f, buf_span(scratch), err);
}

static int file_add(struct locked_file *f, const struct c10d_request *req,
                    struct file_answer *out, struct muster_error *err)
{
    uint8_t text[DECIMAL_MAX];
    struct span old;
    int64_t number = 0;

    if (filelog_get(&f->log, req->key, &old) && old.n && !decimal_parse(old, &number))
        return err_set(err, MUSTER_EINVAL,
                       "file://%s: the value of the key is not a number", f->path);
    out->reply.number = decimal_add(number, req->number);
    return write_record(f, req->key,
                        span_of(text, decimal_format(out->reply.number, text)),
                        &out->bytes, err);
}

static int file_compare_set(struct locked_file *f, const struct c10d_request *req,
                            struct file_answer *out, struct muster_error *err)
{
    struct span old = { NULL, 0 };
    const bool there = filelog_get(&f->log, req->key, &old);
    int rc;

    if (!span_eq(old, req->expected)) {
        out->reply.value = there ? old : req->expected; /* Torch answers so, too. */
        return 0;
    }
    rc = write_record(f, req->key, req->value, &out->bytes, err);
    out->reply.value = req->value;
    return rc;
}

static int file_append(struct locked_file *f, const struct c10d_request *req,
                       struct file_answer *out, struct muster_error *err)
{
    struct span old = { NULL, 0 };
    struct buf joined;
    int rc;

    (void)filelog_get(&f->log, req->key, &old);
    buf_init(&joined, SIZE_MAX);
    if (buf_append_span(&joined, old) < 0 || buf_append_span(&joined, req->value) < 0)
        rc = err_nomem(err);
    else
        rc = write_record(f, req->key, buf_span(&joined), &out->bytes, err);
    buf_fini(&joined);
    return rc;
}

/* Like torch, always writes the record; unlike torch, answers if the key existed. */
static int delete_key(struct locked_file *f, const struct c10d_request *req,
                      struct file_answer *out, struct muster_error *err)
{
    struct buf key;
    int rc;

    out->reply.number = filelog_get(&f->log, req->key, NULL);
    buf_init(&key, SIZE_MAX);
    if (buf_append_str(&key, "-") < 0 || buf_append_span(&key, req->key) < 0)
        rc = err_nomem(err);
    else
        rc = write_record(f, buf_span(&key), span_of(NULL, 0), &out->bytes, err);
    buf_fini(&key);
    return rc;
}

static int multi_set(struct locked_file *f, const struct c10d_request *req,
                     struct file_answer *out, struct muster_error *err)
{
    struct c10d_list list = req->list;
    struct span key, value;
    int rc = 0;

    while (rc == 0 && c10d_list_next(&list, &key) && c10d_list_next(&list, &value))
        rc = filelog_record(&out->bytes, key, value);
    if (rc < 0)
        return err_set(err, rc, "file://%s: %s", f->path, muster_code_text(rc));
    return locked_file_append(f, buf_span(&out->bytes), err);
}

static int multi_get(struct locked_file *f, const struct c10d_request *req,
                     struct file_answer *out, struct muster_error *err)
{
    struct c10d_list list = req->list;
    struct span key;

    while (c10d_list_next(&list, &key)) {
        struct span value = { NULL, 0 };

        (void)filelog_get(&f->log, key, &value);
        if (c10d_list_add(&out->bytes, value) < 0)
            return err_nomem(err);
    }
    out->reply.list = (struct c10d_list){ buf_span(&out->bytes), list.count };
    return 0;
}

/* Leaves out the file's own counters, which are not users' keys. */
static int list_keys(struct locked_file *f, struct file_answer *out,
                     struct muster_error *err)
{
    struct span key;
    size_t count = 0;

    for (size_t i = 0; filelog_next(&f->log, &i, &key);) {
        if (key.n == 0 || key.p[0] != '/')
            continue;
        if (c10d_list_add(&out->bytes, span_of(key.p + 1, key.n - 1)) < 0)
            return err_nomem(err);
        count++;
    }
    out->reply.list = (struct c10d_list){ buf_span(&out->bytes), count };
    return 0;
}

/* Performs the operation. The file must be locked in file_op_mode(). */
static int file_op_perform(struct locked_file *f, const struct c10d_request *req,
                           struct file_answer *out, struct muster_error *err)
{
    out->reply.op = req->op;
    switch ((int)req->op) {
    case C10D_SET:
        return write_record(f, req->key, req->value, &out->bytes, err);
    case C10D_COMPARE_SET:
        return file_compare_set(f, req, out, err);
    case C10D_GET:
        (void)filelog_get(&f->log, req->key, &out->reply.value);
        return 0;
    case C10D_ADD:
        return file_add(f, req, out, err);
    case C10D_CHECK:
        out->reply.number = !has_all(f, req->list);
        return 0;
    case C10D_WAIT:
        return 0;
    case C10D_GETNUMKEYS:
        out->reply.number = (int64_t)filelog_count(&f->log);
        return 0;
    case C10D_DELETE_KEY:
        return delete_key(f, req, out, err);
    case C10D_APPEND:
        return file_append(f, req, out, err);
    case C10D_MULTI_GET:
        return multi_get(f, req, out, err);
    case C10D_MULTI_SET:
        return multi_set(f, req, out, err);
    case C10D_LIST_KEYS:
        return list_keys(f, out, err);
    default: /* file_call() has refused it. */
        return MUSTER_EBUG;
    }
}

/* Counts a store that begins to use the file: 0, LOCKED_FILE_BUSY or an error. */
static int file_count_in(struct locked_file *f, struct muster_error *err)
{
    const struct c10d_request req = { .op = C10D_ADD,
                                      .key = span_str(FILELOG_REFCOUNT),
                                      .number = 1 };
    struct file_answer answer;
    int rc = locked_file_lock(f, LOCKED_FILE_WRITE, err);

    if (rc != 0)
        return rc;
    file_answer_init(&answer);
    rc = file_add(f, &req, &answer, err);
    buf_fini(&answer.bytes);
    locked_file_unlock(f);
    return rc;
}

/* Likewise one that has finished with it. Changes the counters in torch's order, but
 * under one lock: nobody can see the state between the two and remove the file twice.
 * If the file is gone, there is nothing to do. */
static int file_count_out(struct locked_file *f, int64_t world_size)
{
    struct c10d_request req = { .op = C10D_ADD,
                                .key = span_str(FILELOG_CLEANUP),
                                .number = 1 };
    struct file_answer finished, users;
    int rc = locked_file_lock(f, LOCKED_FILE_CHANGE, NULL);

    if (rc != 0)
        return rc;
    file_answer_init(&finished);
    file_answer_init(&users);
    rc = file_add(f, &req, &finished, NULL);
    req.key = span_str(FILELOG_REFCOUNT);
    req.number = -1;
    if (rc == 0)
        rc = file_add(f, &req, &users, NULL);
    if (rc == 0 && users.reply.number == 0 && world_size >= 0 &&
        finished.reply.number >= world_size)
        locked_file_remove(f);
    buf_fini(&finished.bytes);
    buf_fini(&users.bytes);
    locked_file_unlock(f);
    return rc;
}

/* ---- the driver ---- */

struct file_store {
    struct async_store base; /* first */
    struct locked_file file;
    char *name; /* owned */
    int64_t world_size;
    bool counted; /* our refcount is in the file */
    struct call_list queued, waiting;
    bool changed;      /* the file may have changed: check the calls that wait */
    uint64_t retry_ms; /* when to ask for the lock again; MONO_NEVER */
    uint64_t check_ms; /* when to check the calls that wait; MONO_NEVER */
    uint64_t lock_pause_ms;
    struct muster_error
        last_error; /* why the file cannot be read, for calls that wait */
    struct defer next_run;
    uv_timer_t timer;
    uv_fs_event_t watch;
    bool watching;
    bool closing;
    uint64_t close_by_ms;
    struct handle_set handles;
};

static void file_run_now(struct file_store *f);

static void file_run(void *ctx)
{
    file_run_now(ctx);
}

static void file_on_time(uv_timer_t *timer)
{
    file_run_now(timer->data);
}

static void file_store_on_change(uv_fs_event_t *watch, const char *name, int events,
                                 int status)
{
    struct file_store *f = watch->data;

    (void)name;
    (void)events;
    (void)status;
    f->changed = true;
    defer_call(&f->next_run);
}

/* inotify watches a file, not a name, and the name may stand for another file by now.
 * So the watch is renewed before each check, and sees every change after it. */
static void file_watch(struct file_store *f)
{
    bool seen = false;

    if (f->watching)
        (void)uv_fs_event_stop(&f->watch);
    f->watching =
        uv_fs_event_start(&f->watch, file_store_on_change, f->file.path, 0) == 0;
    seen = f->watching && !locked_file_is_remote(&f->file);
    f->check_ms = clock_mono_ms() + (seen ? CHECK_LOCAL_MS : CHECK_REMOTE_MS);
}

static void file_unwatch(struct file_store *f)
{
    if (f->watching)
        (void)uv_fs_event_stop(&f->watch);
    f->watching = false;
    f->check_ms = MONO_NEVER;
}

static void lock_later(struct file_store *f)
{
    f->retry_ms = clock_mono_ms() + f->lock_pause_ms;
    f->lock_pause_ms = MIN_OF(f->lock_pause_ms * 2, (uint64_t)LOCK_MOST_MS);
}

static void got_lock(struct file_store *f)
{
    f->retry_ms = MONO_NEVER;
    f->lock_pause_ms = LOCK_FIRST_MS;
}

static void fail_and_unlock(struct file_store *f, struct call *call,
                            const struct muster_error *err)
{
    locked_file_unlock(&f->file);
    call_fail(call, err);
}

/* Serves the first call in the queue. False if it has to wait for the lock. */
static bool file_serve_first(struct file_store *f)
{
    struct call *call = f->queued.first;
    struct file_answer answer;
    struct muster_error err;
    const int locked = locked_file_lock(&f->file, file_op_mode(call->op), &err);

    if (locked == LOCKED_FILE_BUSY) {
        lock_later(f);
        return false;
    }
    (void)call_list_take(&f->queued);
    got_lock(f);
    if (locked == MUSTER_ENOENT && file_op_mode(call->op) != LOCKED_FILE_WRITE) {
        f->last_error = err;
        call_list_add(&f->waiting, call); /* Like torch, wait for the file to appear. */
        f->changed = f->changed || !f->watching;
        return true;
    }
    if (locked < 0) {
        call_fail(call, &err);
        return true;
    }
    if (file_op_must_wait(&f->file, call->op, call->flags, &call->copy.req)) {
        locked_file_unlock(&f->file);
        call_list_add(&f->waiting, call);
        f->changed = f->changed || !f->watching;
        return true;
    }
    file_answer_init(&answer);
    if (file_op_perform(&f->file, &call->copy.req, &answer, &err) < 0) {
        fail_and_unlock(f, call, &err);
    } else {
        locked_file_unlock(&f->file);
        f->counted = f->counted || (call->flags & FILE_OP_COUNT_IN);
        call_succeed(call, &answer.reply);
    }
    buf_fini(&answer.bytes);
    return true;
}

static bool is_ready(const struct call *call, const void *arg)
{
    const struct file_store *f = arg;

    return !file_op_must_wait(&f->file, call->op, call->flags, &call->copy.req);
}

/* Puts the waiting calls whose keys exist by now back into the queue. */
static void file_check_waiting(struct file_store *f)
{
    struct muster_error err;
    int rc;

    file_watch(f); /* This comes first, so that no change is missed. */
    rc = locked_file_lock(&f->file, LOCKED_FILE_READ, &err);
    if (rc == LOCKED_FILE_BUSY) {
        f->changed = true; /* The check is still to be done. */
        lock_later(f);
        return;
    }
    f->changed = false;
    got_lock(f);
    f->last_error = rc < 0 ? err : (struct muster_error){ 0 };
    if (rc == 0) {
        locked_file_unlock(&f->file);
        call_list_move(&f->waiting, &f->queued, is_ready, f);
    } else if (rc != MUSTER_ENOENT) {
        struct call_list all = f->waiting;
        struct call *call;

        f->waiting = (struct call_list){ NULL, NULL };
        while ((call = call_list_take(&all)))
            call_fail(call, &err);
    }
}

static void file_time_out(struct file_store *f)
{
    const uint64_t now = clock_mono_ms();
    struct call_list late = { NULL, NULL };
    struct call *call;

    call_list_move(&f->queued, &late, call_is_due, &now);
    while ((call = call_list_take(&late)))
        call_time_out(call, "another process holds the file's lock");
    call_list_move(&f->waiting, &late, call_is_due, &now);
    while ((call = call_list_take(&late)))
        call_time_out(call, f->last_error.text);
}

static void file_arm(struct file_store *f)
{
    uint64_t due =
        MIN_OF(call_list_first_due(&f->queued), call_list_first_due(&f->waiting));

    due = MIN_OF(due, f->retry_ms);
    due = MIN_OF(due, f->check_ms);
    clock_arm(&f->timer, file_on_time, due);
}

static void file_store_count_out(struct file_store *f);

static void file_run_now(struct file_store *f)
{
    if (f->closing) {
        file_store_count_out(f);
        return;
    }
    do {
        while (!f->closing && f->queued.first && file_serve_first(f))
            ;
        if (f->waiting.first &&
            (f->changed || clock_mono_ms() >= f->check_ms || f->check_ms == MONO_NEVER))
            file_check_waiting(f);
        /* file_check_waiting() may have put calls back, and those are served now. */
    } while (!f->closing && f->queued.first && f->retry_ms == MONO_NEVER);
    if (f->closing)
        return;
    file_time_out(f);
    if (!f->waiting.first)
        file_unwatch(f);
    if (!f->queued.first && !(f->waiting.first && f->changed))
        got_lock(f); /* Nobody needs it any more. */
    file_arm(f);
}

/* ---- open and close ---- */

static int file_call(struct async_store *s, const struct c10d_request *req,
                     unsigned flags, uint64_t timeout_ms, async_store_cb cb, void *ctx,
                     struct muster_error *err)
{
    struct file_store *f = (struct file_store *)s;
    struct call *call;
    int rc;

    if (req->op == C10D_QUEUE_PUSH || req->op == C10D_QUEUE_POP ||
        req->op == C10D_QUEUE_LEN)
        return err_set(
            err, MUSTER_ENOTSUP,
            "queue support is not implemented by file stores: use a TCP store");
    rc = call_new(sizeof *call, s, req, flags & ASYNC_STORE_RAW ? "" : "/", &call, err);
    if (rc < 0)
        return rc;
    call_begin(call, flags, timeout_ms, cb, ctx);
    call_list_add(&f->queued, call);
    defer_call(&f->next_run);
    return 0;
}

static void file_on_closed(void *ctx)
{
    struct file_store *f = ctx;
    struct muster_error err;
    struct call *call;

    (void)err_set(&err, MUSTER_ECANCELED, "%s: the store was closed", f->name);
    while ((call = call_list_take(&f->queued)) || (call = call_list_take(&f->waiting)))
        call_fail(call, &err);
    async_store_closed(&f->base);
    locked_file_fini(&f->file);
    mem_free(f->name);
    mem_free(f);
}

static void close_handles(struct file_store *f)
{
    handle_set_begin(&f->handles, file_on_closed, f);
    handle_set_close(&f->handles, &f->next_run.idle);
    handle_set_close(&f->handles, &f->timer);
    handle_set_close(&f->handles, &f->watch);
    handle_set_end(&f->handles);
}

/* Takes itself off the file's count, and removes the file if it is the last user. If
 * the lock is not free in time, it gives up, and the file stays. */
static void file_store_count_out(struct file_store *f)
{
    if (f->counted && file_count_out(&f->file, f->world_size) == LOCKED_FILE_BUSY &&
        clock_mono_ms() < f->close_by_ms) {
        lock_later(f);
        uv_update_time(f->base.loop);
        (void)uv_timer_start(&f->timer, file_on_time, f->lock_pause_ms, 0);
        return;
    }
    if (f->handles.open == 0)
        close_handles(f);
}

static void file_close(struct async_store *s)
{
    struct file_store *f = (struct file_store *)s;

    assert(!f->closing);
    f->closing = true;
    f->close_by_ms = clock_mono_ms() + CLOSE_MS;
    file_unwatch(f);
    defer_call(&f->next_run); /* We may be inside a callback of ours. */
}

static int file_clone(struct async_store *s, struct async_store **out,
                      struct muster_error *err)
{
    struct file_store *f = (struct file_store *)s;

    return store_file_open(s->loop, f->file.path, f->world_size, out, err);
}

static const struct async_store_ops file_store_ops = {
    .kind = "file",
    .call = file_call,
    .clone = file_clone,
    .close = file_close,
};

/* Does it at once, so that the caller learns of an impossible path, or later if
 * somebody else has the lock. */
static int file_store_count_in(struct file_store *f, struct muster_error *err)
{
    const struct c10d_request add = { .op = C10D_ADD,
                                      .key = span_str(FILELOG_REFCOUNT),
                                      .number = 1 };
    struct call *call;
    int rc = call_new(sizeof *call, &f->base, &add, "", &call, err);

    if (rc < 0)
        return rc;
    call_begin(call, FILE_OP_COUNT_IN, MONO_NEVER, NULL, NULL);
    rc = file_count_in(&f->file, err);
    if (rc == LOCKED_FILE_BUSY) {
        call_list_add(&f->queued, call);
        defer_call(&f->next_run);
        return 0;
    }
    f->counted = rc == 0;
    call_free(call);
    return rc;
}

int store_file_open(uv_loop_t *loop, const char *path, int64_t world_size,
                    struct async_store **out, struct muster_error *err)
{
    struct file_store *f = mem_calloc(1, sizeof *f);
    uint64_t seed = uv_hrtime();
    int rc;

    if (!f)
        return err_nomem(err);
    (void)uv_random(NULL, NULL, &seed, sizeof seed, 0, NULL);
    f->world_size = world_size;
    f->retry_ms = f->check_ms = MONO_NEVER;
    f->lock_pause_ms = LOCK_FIRST_MS;
    f->name = mem_printf("file://%s", path);
    f->base = (struct async_store){ &file_store_ops, loop, f->name };
    rc = locked_file_init(&f->file, path, seed, err);
    if (!f->name)
        rc = err_nomem(err);
    defer_init(&f->next_run, loop, file_run, f);
    (void)uv_timer_init(loop, &f->timer);
    (void)uv_fs_event_init(loop, &f->watch);
    f->timer.data = f->watch.data = f;
    if (rc == 0)
        rc = file_store_count_in(f, err);
    if (rc < 0) {
        f->closing = true;
        close_handles(f);
        return rc;
    }
    *out = &f->base;
    return 0;
}
