/* http_absent.c - takes the place of http.c in builds without libmicrohttpd. */
#include "base/err.h"
#include "status/http.h"

int status_http_open(uv_loop_t *loop, struct status *status,
                     const struct http_address *at, const char *key,
                     struct status_http **out, struct muster_error *err)
{
    (void)loop;
    (void)status;
    (void)at;
    (void)key;
    (void)out;
    return err_set(err, MUSTER_ENOTSUP, "this muster was built without libmicrohttpd");
}

void status_http_close(struct status_http *h)
{
    (void)h;
}

const char *status_http_url(const struct status_http *h)
{
    (void)h;
    return "";
}
