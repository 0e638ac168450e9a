/* local_socket.h - the agent's own socket, through which `muster status`, `top` and
 * `stacks` of the same user ask it questions.
 *
 * Each agent listens on an abstract unix socket that is named by user and process, see
 * core/local_name.h. Both sides ask the kernel for the other's user, and refuse to talk
 * to processes of other users. A request is one line of JSON, {"ask": KIND, ...}; the
 * answer is one line, too: {"ok": ...} or {"error": "a sentence"}. Each kind of request
 * has a handler that is registered for it. Opening costs a few system calls and no
 * thread; nothing else happens until a request comes. */
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

/* Handles a request. body is the whole request, borrowed for the call. Exactly one of
 * the answer functions below must be called for it, now or later, on the loop's thread,
 * even if the asker has gone or the socket is closed by then. */
typedef void (*local_handler)(void *ctx, struct local_request *r, const json_t *body);

/* Listens. If this fails the job runs on; it just cannot be asked. */
int local_socket_open(uv_loop_t *loop, struct local_socket **out,
                      struct muster_error *err);

/* kind must outlive the socket. MUSTER_EFULL after 16 kinds; MUSTER_EEXIST. */
int local_socket_register(struct local_socket *s, const char *kind,
                          local_handler handler, void *ctx);

/* No handler is called any more. Requests that wait for an answer may still be
 * answered, to no effect. The memory is freed when the loop has closed the handles.
 * NULL is fine. */
void local_socket_close(struct local_socket *s);

/* Answers {"ok": <json>} and takes over json. If rc is not 0 the buffer could not be
 * filled, and the asker is told that memory ran out. */
void local_request_answer(struct local_request *r, struct buf *json, int rc);
/* The same with a value, of which it takes over a reference; NULL: memory ran out. */
void local_request_answer_json(struct local_request *r, json_t *value);
/* Answers {"error": text}. */
void local_request_refuse(struct local_request *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* --- the asker's side: blocking, with a deadline, without a loop ------------------ */

/* Lists the agents of a user, or of all if uid is NULL, that listen now, in order of
 * their pids. The caller frees *names with mem_free. */
int local_socket_list(const uint32_t *uid, struct local_name **names, size_t *count,
                      struct muster_error *err);

struct local_call {
    struct local_name name;
    json_t *answer;            /* the value of "ok"; owned; NULL: see error */
    struct muster_error error; /* MUSTER_ETIMEDOUT: the agent did not answer */
};

/* Asks all of them at the same time and returns when each has answered or timeout_ms
 * have passed, so that a suspended agent does not delay the answers of the others.
 * Returns an error only if memory runs out; the error of one agent is in its call. */
int local_socket_ask(const json_t *request, struct local_call *calls, size_t count,
                     uint64_t timeout_ms, struct muster_error *err);
void local_calls_fini(struct local_call *calls, size_t count); /* the answers */

#endif
