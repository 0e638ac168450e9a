/* local_name.h - the names of the agents' own sockets: muster/UID/PID, with /N behind
 * it if that name is taken. They are abstract unix sockets, which need no directory,
 * leave nothing behind, and are listed in /proc/net/unix. Pure. */
#ifndef STATUS_CORE_LOCAL_NAME_H
#define STATUS_CORE_LOCAL_NAME_H

#include "base/base.h"

#define LOCAL_NAME_MAX   64u
#define LOCAL_NAME_TRIES 8u /* A process may have several agents. */

struct local_name {
    uint32_t uid;
    int32_t pid;
    uint32_t number; /* below LOCAL_NAME_TRIES */
};

/* Writes the name, without the leading NUL byte and with an ending one, and returns its
 * length. */
size_t local_name_print(const struct local_name *n, char out[LOCAL_NAME_MAX]);

/* Parses a name. False unless it is exactly what local_name_print() writes. */
bool local_name_parse(struct span text, struct local_name *out);

/* Parses the name on a line of /proc/net/unix; false if the line is not a listening
 * socket with such a name. The line may hold anything, as every user may bind any
 * abstract name. */
bool local_name_of_line(struct span line, struct local_name *out);

#endif
