/* http.h - the job's page and its metrics over HTTP (--status-http): libmicrohttpd,
 * loaded when a job asks for it and driven by our loop.
 *
 * It answers GET and HEAD: / (the page), /events (live updates for the page),
 * /status.json, /metrics, /trace.json, /lines.json?rank=N, /stacks.json, /healthz.
 * core/http_rules.h says who may see them. */
#ifndef STATUS_HTTP_H
#define STATUS_HTTP_H

#include "status/core/http_rules.h"
#include "status/status.h"

struct status_http;

#define STATUS_KEY_SIZE 65u

/* Makes a key for a job without a secret; "" if the system gives no random bytes. */
void status_http_random_key(char key[STATUS_KEY_SIZE]);

/* key: 64 hex digits that give other people access to the page, or "" for none; copied.
 * Errors: MUSTER_ENOTSUP, or MUSTER_EINUSE and other errors of listening, with the
 * address in the text. */
int status_http_open(uv_loop_t *loop, struct status *status,
                     const struct http_address *at, const char *key,
                     struct status_http **out, struct muster_error *err);

/* Must be called before the status is closed. NULL is fine. */
void status_http_close(struct status_http *h);

/* The address of the page, with the key if it needs one. Borrowed. */
const char *status_http_url(const struct status_http *h);

#endif
