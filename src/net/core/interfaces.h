/* interfaces.h - which interface of this machine has an address, or is meant by --net.
 * Pure: the interfaces are an input (net/read_interfaces.h reads the real ones).
 *
 * Addresses are 16 bytes; IPv4 is ::ffff:a.b.c.d, so that both forms compare equal. */
#ifndef NET_CORE_INTERFACES_H
#define NET_CORE_INTERFACES_H

#include <sys/socket.h>

#include "base/base.h"
#include "muster/error.h"

#define INTERFACE_NAME 16 /* as IF_NAMESIZE */

/* One address of an interface; an interface with several has an entry for each. */
struct interface {
    char name[INTERFACE_NAME];
    uint8_t ip[16];
    unsigned bits; /* of its network, of 128 */
    bool up;
};

struct interfaces {
    struct interface *items; /* owned by whoever made it */
    size_t count;
};

/* False for a family other than IPv4 and IPv6. */
bool ip_of_sockaddr(const struct sockaddr *sa, uint8_t ip[16]);

/* A numeric address, with or without a zone ("fe80::1%eth0"). */
bool ip_of_text(const char *text, uint8_t ip[16]);

/* "10.0.0.1", "fd77::1". */
#define IP_TEXT 46 /* as INET6_ADDRSTRLEN */
void ip_text(const uint8_t ip[16], char out[IP_TEXT]);

bool ip_is_loopback(const uint8_t ip[16]);

/* The entry with the address, or NULL. */
const struct interface *interface_with(const struct interfaces *all,
                                       const uint8_t ip[16]);

/* What --net means: the name of an interface, an address of one, or a network
 * (10.1.0.0/16) that one has an address in. MUSTER_EINVAL with the list of what there
 * is if it means none of them, or one that is down. */
int interface_chosen(const struct interfaces *all, const char *net,
                     const struct interface **out, struct muster_error *err);

#endif
