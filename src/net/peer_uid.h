/* peer_uid.h - which user's process is at the other end of a TCP connection, if it is
 * on this machine (in this network namespace). */
#ifndef NET_PEER_UID_H
#define NET_PEER_UID_H

#include <stdbool.h>
#include <sys/types.h>

enum peer_place {
    PEER_HERE,      /* on this machine; *uid is set */
    PEER_ELSEWHERE, /* its socket is not in this network namespace */
    PEER_UNKNOWN,   /* the kernel does not tell, or the peer has closed its socket */
};

enum peer_place peer_uid(int fd, uid_t *uid);

#endif
