/* bind_address.h - the address on which a server of a job listens, found out from the
 * name or address by which the other nodes know this one (net/core/bind_rule.h). */
#ifndef NET_BIND_ADDRESS_H
#define NET_BIND_ADDRESS_H

#include <uv.h>

#include "base/base.h"
#include "base/trace.h"
#include "muster/error.h"

/* As listen_opts.bind: listens on 127.0.0.1 and, where there is one, on ::1. */
#define BIND_LOCALHOST "localhost"

struct bind_address {
    char host[1025]; /* in: how the others know us */
    char addr[64];   /* out: numeric, BIND_LOCALHOST, or empty for every address */
    char why[200];   /* out: completes "listening on ...: " */
    bool asked;      /* out: by the user */
    bool many;       /* in: several nodes may come */
    bool own_word;   /* in: localhost may be what this node alone calls itself */
};

struct bind_ask {
    const char *asked; /* the user's word: "all", a numeric address, or NULL */
    const char *host;  /* how the others know us; copied */
    bool many;
    bool own_word; /* as bind_view has it; a pod is recognized */
};

struct bind_lookup;

/* NULL addr: every address. From the loop, or from inside the call where no resolver is
 * needed. Borrowed for the call. */
typedef void (*bind_address_cb)(void *ctx, const struct bind_address *at);

/* Calls back once, at most a second later; *out is NULL if it has done so already. */
void bind_address_find(uv_loop_t *loop, const struct bind_ask *ask, bind_address_cb cb,
                       void *ctx, struct bind_lookup **out);
void bind_address_cancel(struct bind_lookup *l); /* no callback; NULL is fine */

/* One line that says where a server listens, and why. A server that listens on all
 * addresses without having been asked to is worth more than a debugging line. */
void bind_address_log(const struct trace *t, const char *what, const char *where,
                      const struct bind_address *at);

/* IPv4 or IPv6: a loopback address or an interface's. */
bool address_on_this_machine(const struct sockaddr *sa);

/* For listen_opts.bind. */
const char *bind_address_text(const struct bind_address *at);

#endif
