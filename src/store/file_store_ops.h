/* file_store_ops.h - the operations of a store on its locked file. */
#ifndef STORE_FILE_STORE_OPS_H
#define STORE_FILE_STORE_OPS_H

#include "store/core/wire.h"
#include "store/locked_file.h"

#define FILE_OP_COUNT_IN 0x100u /* beside the async_store flags: it counts us in */

struct file_answer {
    struct c10d_reply reply; /* spans: into the log, the call, or `bytes` */
    struct buf bytes;        /* owned */
};

void file_answer_init(struct file_answer *a);
void file_answer_fini(struct file_answer *a);

/* MUSTER_ENOTSUP for queues, MUSTER_EINVAL for what callers cannot use. */
int file_op_check(enum c10d_op op, struct muster_error *err);

enum locked_file_mode file_op_mode(enum c10d_op op);

/* Whether a WAIT, or a call with ASYNC_STORE_BLOCK, lacks one of its keys. */
bool file_op_must_wait(const struct locked_file *f, enum c10d_op op, unsigned flags,
                       const struct c10d_request *req);

/* Performs the operation. The file must be locked in file_op_mode(). */
int file_op_perform(struct locked_file *f, const struct c10d_request *req,
                    struct file_answer *out, struct muster_error *err);

/* Count a store that begins to use the file, or has finished with it. They return 0,
 * LOCKED_FILE_BUSY or an error. */
int file_count_in(struct locked_file *f, struct muster_error *err);
int file_count_out(struct locked_file *f, int64_t world_size);

#endif
