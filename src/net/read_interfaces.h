/* read_interfaces.h - the interfaces of this machine (net/core/interfaces.h). */
#ifndef NET_READ_INTERFACES_H
#define NET_READ_INTERFACES_H

#include "net/core/interfaces.h"

/* Empty if the system does not say. The caller frees it. */
void interfaces_read(struct interfaces *out);
void interfaces_free(struct interfaces *all);

/* True, and the name of the interface unless `name` is NULL, if this machine has the
 * address. Loopback addresses that no interface lists (127.0.1.1) are not found. */
bool interface_here(const struct sockaddr *sa, char name[INTERFACE_NAME]);

#endif
