/* file_store_ops.c - the operations of a store on its locked file; see
 * file_store_ops.h.
 *
 * The records are those that torch's FileStore writes, so both can use one file. */
#include "store/file_store_ops.h"

#include "base/err.h"
#include "store/async_store.h"
#include "store/core/decimal.h"
#include "store/core/wire_keys.h"

void file_answer_init(struct file_answer *a)
{
    a->reply = (struct c10d_reply){ 0 };
    buf_init(&a->bytes, SIZE_MAX);
}

void file_answer_fini(struct file_answer *a)
{
    buf_fini(&a->bytes);
}

int file_op_check(enum c10d_op op, struct muster_error *err)
{
    switch ((int)op) {
    case C10D_QUEUE_PUSH:
    case C10D_QUEUE_POP:
    case C10D_QUEUE_LEN:
        return err_set(
            err, MUSTER_ENOTSUP,
            "queue support is not implemented by file stores: use a TCP store");
    case C10D_VALIDATE:
    case C10D_PING:
    case C10D_CANCEL_WAIT:
    case C10D_BARRIER:
        return err_set(err, MUSTER_EINVAL,
                       "%s is internal: callers of a store cannot use it",
                       c10d_op_name(op));
    default:
        return 0;
    }
}

enum locked_file_mode file_op_mode(enum c10d_op op)
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

bool file_op_must_wait(const struct locked_file *f, enum c10d_op op, unsigned flags,
                       const struct c10d_request *req)
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

int file_op_perform(struct locked_file *f, const struct c10d_request *req,
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
    default:
        return file_op_check(req->op, err);
    }
}

int file_count_in(struct locked_file *f, struct muster_error *err)
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
    file_answer_fini(&answer);
    locked_file_unlock(f);
    return rc;
}

/* Changes the counters in torch's order, but under one lock: nobody can see the state
 * between the two and remove the file twice. If the file is gone, there is nothing to
 * do. */
int file_count_out(struct locked_file *f, int64_t world_size)
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
    file_answer_fini(&finished);
    file_answer_fini(&users);
    locked_file_unlock(f);
    return rc;
}
