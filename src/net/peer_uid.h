/* peer_uid.h - which user of this machine is at the other end of a TCP connection over
 * loopback: the kernel knows (sock_diag), as it does for unix sockets. */
#ifndef NET_PEER_UID_H
#define NET_PEER_UID_H

#include <sys/types.h>

#include "muster/error.h"

/* One question to the kernel, some 20 us. MUSTER_ENOTSUP: the peer is on another
 * machine; MUSTER_EIO: the kernel does not tell (no sock_diag, or the peer is gone). */
int peer_uid(int fd, uid_t *uid, struct muster_error *err);

#endif
