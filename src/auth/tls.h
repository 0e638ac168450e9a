/* tls.h - TLS 1.3 over a connected, non-blocking socket, with a key that both sides
 * have already: no certificates. The handshake happens on the way of the first read.
 * The descriptor stays the caller's. */
#ifndef AUTH_TLS_H
#define AUTH_TLS_H

#include <sys/types.h>

#include "auth/core/handshake.h"
#include "muster/error.h"

struct tls;

int tls_new(bool server, int fd, const uint8_t psk[AUTH_SECRET], struct tls **out,
            struct muster_error *err);
void tls_end(struct tls *t); /* NULL is fine. (libssl has a tls_free of its own.) */

/* As recv: what there is, 0 at the end of the stream, or -1 with errno (EAGAIN: later;
 * EPROTO: the peer has another key, or talks nonsense). */
ssize_t tls_read(struct tls *t, void *to, size_t size);

/* How many of the bytes were taken; 0 if the socket is full, -1 if it is broken. Taken
 * bytes may still wait for tls_flush. */
ssize_t tls_write(struct tls *t, const void *from, size_t size);

/* Bytes of the peer's that were read from the socket already, before the first read. */
int tls_feed(struct tls *t, const void *bytes, size_t size);

/* Whether another read may find something at once. */
bool tls_buffered(struct tls *t);

/* Whether bytes wait here that have been taken off the socket: a caller must read them
 * before it waits for the socket. */
bool tls_pending(struct tls *t);

/* Sends what waits: 1 if nothing waits any more, 0 if something does, -1: broken. */
int tls_flush(struct tls *t);

#endif
