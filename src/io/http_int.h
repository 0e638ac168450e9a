/* http_int.h - what http.c and http_error.c share. */
#ifndef IO_HTTP_INT_H
#define IO_HTTP_INT_H

#include "io/http.h"
#include "io/late_curl.h"

/* Turns libcurl's verdict on a transfer into one of our codes, and says in err what to
 * do about it. text is libcurl's own description, may be empty. */
int http_error(CURL *easy, CURLcode code, const char *text, const struct http_tls *tls,
               struct muster_error *err);

#endif
