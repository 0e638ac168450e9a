/* port_holder.h - which process listens on a port of this machine. */
#ifndef NET_PORT_HOLDER_H
#define NET_PORT_HOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* "pid 712 (python3 -m http.server 29500, user 1000)", harmless for a terminal. False:
 * nobody listens there, or we may not see who: only root sees other users' sockets.
 * Reads /proc of every process: for errors only. */
bool port_holder(uint16_t port, char *to, size_t size);

#endif
