/* http.h - the job's page and its metrics over HTTP (--status-http): libmicrohttpd,
 * loaded when a job asks for it and driven by our loop.
 *
 * GET only: / (the page), /events (the page's live news), /status.json, /metrics,
 * /trace.json, /lines.json?rank=N, /stacks.json, /healthz. Who may see it:
 * core/http_rules.h. */
#ifndef STATUS_HTTP_H
#define STATUS_HTTP_H

#include "status/core/http_rules.h"
#include "status/status.h"

struct status_http;

#define STATUS_KEY_SIZE 65u

/* A key for a job without a secret; "" if the system has no randomness. */
void status_http_random_key(char key[STATUS_KEY_SIZE]);

/* key: 64 hex digits that open the page to others, "" for none; copied. Errors:
 * MUSTER_EINUSE and its kind with the address in the sentence, MUSTER_ENOTSUP. */
int status_http_open(uv_loop_t *loop, struct status *status,
                     const struct http_address *at, const char *key,
                     struct status_http **out, struct muster_error *err);

/* Before the status is closed. NULL is fine. */
void status_http_close(struct status_http *h);

/* The address of the page, with the key if it needs one. Borrowed. */
const char *status_http_url(const struct status_http *h);

#endif
