/* tls.h - TLS 1.3 over a connected, non-blocking socket, with a key that both sides
 * already have, instead of certificates. The handshake happens in the first reads. The
 * descriptor stays the caller's. */
#ifndef AUTH_TLS_H
#define AUTH_TLS_H

#include <sys/types.h>

#include "auth/core/handshake.h"
#include "muster/error.h"

struct tls;

int tls_new(bool server, int fd, const uint8_t psk[AUTH_SECRET], struct tls **out,
            struct muster_error *err);
void tls_end(struct tls *t); /* NULL is fine. (libssl has a tls_free of its own.) */

/* Like recv: how many bytes were read, 0 at the end of the stream, or -1 with errno
 * (EAGAIN: nothing yet; EPROTO: the peer has another key or broke the protocol). */
ssize_t tls_read(struct tls *t, void *to, size_t size);

/* Returns how many of the bytes were taken; 0 if the socket is full, -1 if the
 * connection is broken. Bytes that were taken may still wait for tls_flush. */
ssize_t tls_write(struct tls *t, const void *from, size_t size);

/* Passes in bytes of the peer that the caller read from the socket before the first
 * tls_read. 0 or MUSTER_ENOMEM. */
int tls_feed(struct tls *t, const void *bytes, size_t size);

/* Whether another read may return bytes at once. */
bool tls_buffered(struct tls *t);

/* Whether bytes wait here that have already been read from the socket: a caller must
 * read them before it waits for the socket. */
bool tls_pending(struct tls *t);

/* Sends what waits. 1: nothing waits any more; 0: something still does; -1: the
 * connection is broken. */
int tls_flush(struct tls *t);

#endif
