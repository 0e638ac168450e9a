/* local_socket.h - the agent's own socket, on which `muster status`, `top` and `stacks`
 * of the same user ask it.
 *
 * Each agent listens on an abstract unix socket that is named by user and process, see
 * core/local_name.h. Both sides ask the kernel for the other's user and speak to nobody
 * else's processes. A request is one line of JSON, {"ask": KIND, ...}; the answer is
 * one line too: {"ok": ...} or {"error": "a sentence"}. Whoever serves a kind registers
 * it. Opening costs a few system calls and no thread; nothing else happens until
 * somebody asks. */
#ifndef STATUS_LOCAL_SOCKET_H
#define STATUS_LOCAL_SOCKET_H

#include <jansson.h>
#include <sys/types.h>
#include <uv.h>

#include "base/buf.h"
#include "muster/error.h"
#include "status/core/local_name.h"

/* --- the agent's side ------------------------------------------------------------- */

struct local_socket;
struct local_request;

/* Somebody asks. body is the whole request, borrowed for the call. The handler, or
 * whoever it hands the request to, calls exactly one of the answer functions below,
 * now or later, on the loop's thread; also when the asker is gone by then, or the
 * socket closed. */
typedef void (*local_handler)(void *ctx, struct local_request *r, const json_t *body);

/* Listens. A job goes on without it: it only cannot be asked then. */
int local_socket_open(uv_loop_t *loop, struct local_socket **out,
                      struct muster_error *err);

/* kind must outlive the socket. MUSTER_EFULL after 16, MUSTER_EEXIST. */
int local_socket_register(struct local_socket *s, const char *kind,
                          local_handler handler, void *ctx);

/* No handler is called any more; requests that wait for an answer may be answered
 * still, or never. The memory goes when the loop has closed the handles. NULL is fine.
 */
void local_socket_close(struct local_socket *s);

/* Answers {"ok": <json>}; takes json over, which may be a buffer that could not be
 * built (rc != 0: the asker is told that there was no memory). */
void local_request_answer(struct local_request *r, struct buf *json, int rc);
/* The same with a value; takes a reference over; NULL: no memory. */
void local_request_answer_json(struct local_request *r, json_t *value);
/* Answers {"error": text}. */
void local_request_refuse(struct local_request *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* --- the asker's side: blocking, with a deadline, no loop needed ---------------------
 */

/* The agents of a user that listen now, by pid; *names is the caller's (mem_free). */
int local_socket_list(uid_t uid, struct local_name **names, size_t *count,
                      struct muster_error *err);
/* The same for all users, for sentences like "it is another user's job". */
int local_socket_list_all(struct local_name **names, size_t *count,
                          struct muster_error *err);

struct local_call {
    struct local_name name;
    json_t *answer;            /* what stood behind "ok"; owned; NULL: see error */
    struct muster_error error; /* MUSTER_ETIMEDOUT: it did not answer (stopped?) */
};

/* Asks all of them at the same time and returns when each has answered or timeout_ms
 * have passed: one that is stopped does not delay the others. Fails only as a whole
 * (no memory); what one agent did wrong is in its call. */
int local_socket_ask(const json_t *request, struct local_call *calls, size_t count,
                     uint64_t timeout_ms, struct muster_error *err);
void local_calls_fini(struct local_call *calls, size_t count); /* the answers */

#endif
