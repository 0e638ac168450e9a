/* tls_pipe.h - carries bytes between a plain socket and an encrypted one, on a uv loop,
 * until either ends. */
#ifndef AUTH_TLS_PIPE_H
#define AUTH_TLS_PIPE_H

#include <uv.h>

#include "auth/tls.h"

/* On success takes over both sockets, which must be non-blocking, and tls, which is on
 * encrypted_fd. Closes itself when either side ends or breaks. */
int tls_pipe_open(uv_loop_t *loop, int plain_fd, int encrypted_fd, struct tls *tls,
                  struct muster_error *err);

#endif
