/* port_holder.h - which process listens on a port of this machine. */
#ifndef NET_PORT_HOLDER_H
#define NET_PORT_HOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Writes "pid 712 (python3 -m http.server 29500, user 1000)", escaped for a terminal.
 * False if no process listens there, or if it is another user's: only root can see
 * those. Reads /proc of every process, so call it only to explain an error. */
bool port_holder(uint16_t port, char *to, size_t size);

#endif
