/* listen.h - a listening TCP socket on the address asked for, and addresses as text. */
#ifndef NET_LISTEN_H
#define NET_LISTEN_H

#include <sys/socket.h>

#include "base/base.h"
#include "muster/error.h"
#include "net/resolve.h"

struct listen_opts {
    const char *bind; /* numeric address; "localhost": 127.0.0.1; NULL: every address,
                         IPv6 and IPv4 */
    uint16_t port;    /* 0: any free one */
    int fd;           /* an already bound or listening socket to take over, or -1 */
    int backlog;      /* 0: the system's maximum */
};

/* Sets *fd to a non-blocking, close-on-exec listening socket whose connections have
 * TCP_NODELAY and keep-alive. Errors: MUSTER_EINUSE, EACCES, EINVAL, EIO; a socket that
 * the caller gave is then still the caller's. */
int listen_open(const struct listen_opts *o, int *fd, struct muster_error *err);

/* The peer's address in the form of address_text() in resolve.h. */
void address_of_peer(int fd, char out[ADDRESS_TEXT]);
uint16_t address_port(const struct sockaddr_storage *a);

/* A port for worker 0 to bind: it is free now, and most likely still free by then. */
int listen_free_port(uint16_t *port, struct muster_error *err);

#endif
