/* bind_rule.c - see bind_rule.h. */
#include "net/core/bind_rule.h"

enum bind_scope bind_rule(const struct bind_view *v, const char **why)
{
    if (v->found) {
        *why = "it is the address by which the other nodes find this one";
        return BIND_FOUND;
    }
    if (v->loopback && !v->many) {
        *why = "the job has one node";
        return BIND_LOOPBACK;
    }
    if (v->loopback && v->numeric && !v->private_name) {
        *why = "all of the job's nodes are on this machine";
        return BIND_LOOPBACK;
    }
    if (v->loopback && v->numeric) {
        *why = "this node was given localhost, but the others know it by another "
               "address";
        return BIND_ALL;
    }
    /* Debian's /etc/hosts has 127.0.1.1 for the machine's own name, and other machines
     * get a real address for it from their name service. */
    *why = v->loopback ? "this machine's name resolves to a loopback address here, but "
                         "to another address elsewhere"
                       : "the address that the other nodes use is not one of this "
                         "machine's (NAT, or a service in front of it)";
    return BIND_ALL;
}
