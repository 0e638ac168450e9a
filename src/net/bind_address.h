/* bind_address.h - finds the address on which a server of a job listens, from the name
 * or address by which the other nodes know this one (net/core/bind_rule.h). */
#ifndef NET_BIND_ADDRESS_H
#define NET_BIND_ADDRESS_H

#include <uv.h>

#include "base/base.h"
#include "base/log.h"
#include "muster/error.h"

/* As listen_opts.bind: listens on 127.0.0.1 and, where there is one, on ::1. */
#define BIND_LOCALHOST "localhost"

struct bind_address {
    char host[1025];   /* in: how the others know us */
    char addr[64];     /* out: numeric, BIND_LOCALHOST, or empty for every address */
    char why[200];     /* out: completes "listens on ...: " */
    bool asked;        /* out: the user has chosen it */
    bool many;         /* in: several nodes may come */
    bool private_name; /* in: the others may know us by another name */
};

struct bind_ask {
    const char *asked; /* the user's choice: "all", a numeric address, or NULL */
    const char *host;  /* how the others know us; copied */
    bool many;
    bool private_name; /* as in bind_view; it is also set in a Kubernetes pod */
};

struct bind_lookup;

/* Comes from the loop, or from inside bind_address_find() if no resolver is needed.
 * `at` is borrowed until the callback returns. */
typedef void (*bind_address_cb)(void *ctx, const struct bind_address *at);

/* Calls back once, at most a second later; *out is NULL if it has done so already. */
void bind_address_find(uv_loop_t *loop, const struct bind_ask *ask, bind_address_cb cb,
                       void *ctx, struct bind_lookup **out);
void bind_address_cancel(struct bind_lookup *l); /* no callback; NULL is fine */

/* Logs where a server listens, and why. If it listens on all addresses without having
 * been asked to, this is a warning. */
void bind_address_log(const struct log *t, const char *what, const char *where,
                      const struct bind_address *at);

/* True for loopback addresses and those of an interface, IPv4 or IPv6. */
bool address_on_this_machine(const struct sockaddr *sa);

/* The address for listen_opts.bind: NULL for every address. */
const char *bind_address_text(const struct bind_address *at);

#endif
