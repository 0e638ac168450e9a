/* bind_rule.h - on which addresses a server of a job listens: on those that the others
 * use, and on no more. Pure: what the machine and its resolver say comes in. */
#ifndef NET_CORE_BIND_RULE_H
#define NET_CORE_BIND_RULE_H

#include "base/base.h"

enum bind_scope {
    BIND_LOOPBACK, /* nobody outside of this machine needs us */
    BIND_FOUND,    /* on the address of ours that the others' name for us leads to */
    BIND_ALL,      /* on all: the others come by an address that we cannot tell */
};

/* What is known of the host by whose name or address the others find us. */
struct bind_view {
    bool many;     /* several nodes may come, else this one alone */
    bool numeric;  /* the host is an address, or localhost: the same for everybody */
    bool loopback; /* it is, or leads to, a loopback address */
    bool found;    /* it leads to another address of this machine */
    bool own_word; /* localhost may be what this node alone calls itself: in a pod,
                      and with the static rendezvous, whose default it is */
};

/* The reason is a constant text that completes "listening on ...: ". */
enum bind_scope bind_rule(const struct bind_view *v, const char **why);

#endif
