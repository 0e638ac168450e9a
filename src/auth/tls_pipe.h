/* tls_pipe.h - carries bytes between a plain socket and an encrypted one, on a uv loop,
 * until either ends. */
#ifndef AUTH_TLS_PIPE_H
#define AUTH_TLS_PIPE_H

#include <uv.h>

#include "auth/tls.h"

struct tls_pipe;

/* Takes both sockets and tls (which is on secret_fd) over, on success. Closes itself
 * when either side ends or breaks; then, or after tls_pipe_close, closed(ctx) comes
 * (may be NULL) once libuv has let go. Both must be non-blocking. */
int tls_pipe_open(uv_loop_t *loop, int plain_fd, int secret_fd, struct tls *tls,
                  void (*closed)(void *ctx), void *ctx, struct tls_pipe **out,
                  struct muster_error *err);
void tls_pipe_close(struct tls_pipe *p);

/* The plain side is another process, which may ask one thing after the other. */
void tls_pipe_stay_awake(struct tls_pipe *p);

#endif
