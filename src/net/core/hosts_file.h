/* hosts_file.h - this machine's full name, if its hosts file is enough to tell it.
 *
 * Asking the system's resolver takes a thread, since it may block, and a millisecond,
 * although in most cases it only reads these two files. */
#ifndef NET_CORE_HOSTS_FILE_H
#define NET_CORE_HOSTS_FILE_H

#include "base/base.h"

/* What Python's socket.getfqdn() makes of the host name `name`, given the texts of
 * nsswitch.conf and hosts. False, with out untouched, unless the result is certain: the
 * hosts file comes first, and has the name exactly once. */
bool hosts_fqdn(struct span nsswitch, struct span hosts, const char *name, char *out,
                size_t size);

#endif
