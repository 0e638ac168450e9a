/* bind_rule.h - decides on which addresses a server of a job listens: only on those
 * that the others use. Pure: what the machine and its resolver say is an input. */
#ifndef NET_CORE_BIND_RULE_H
#define NET_CORE_BIND_RULE_H

#include "base/base.h"

enum bind_scope {
    BIND_LOOPBACK, /* nothing outside this machine needs us */
    BIND_FOUND,    /* on the address that the others' name for us resolves to */
    BIND_ALL,      /* on all: we cannot tell which address the others use */
};

/* What is known of the host name or address by which the others find us. */
struct bind_view {
    bool many;     /* several nodes may come, not only this one */
    bool numeric;  /* the host is an address, or localhost: the same for everybody */
    bool loopback; /* it is, or resolves to, a loopback address */
    bool found;    /* it resolves to another address of this machine */
    bool private_name; /* the others may know us by another name than localhost: in a
                          pod, and with the static rendezvous, which defaults to
                          localhost */
};

/* The reason is a constant text that completes "listens on ...: ". */
enum bind_scope bind_rule(const struct bind_view *v, const char **why);

#endif
