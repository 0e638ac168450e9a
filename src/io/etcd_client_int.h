/* etcd_client_int.h - what etcd_client.c lends to etcd_stream.c. */
#ifndef IO_ETCD_CLIENT_INT_H
#define IO_ETCD_CLIENT_INT_H

#include "io/etcd_client.h"

struct http *etcd_client_http(struct etcd_client *c);
const struct trace *etcd_client_trace(const struct etcd_client *c);

/* The endpoint in use, by number, and its URL. */
size_t etcd_client_current(const struct etcd_client *c);
const char *etcd_client_url(const struct etcd_client *c, size_t at);

/* That endpoint failed: the next one is in use from now on, unless another call has
 * gone on already. */
void etcd_client_failed(struct etcd_client *c, size_t at);

/* The Authorization header's value; NULL if none is needed, or none is there yet. */
const char *etcd_client_authorization(const struct etcd_client *c);
bool etcd_client_needs_token(const struct etcd_client *c);
void etcd_client_forget_token(struct etcd_client *c);

/* A pause before the tries-th repetition: doubling from 50 ms to 2 s, half of it
 * random. */
uint64_t etcd_client_pause(struct etcd_client *c, unsigned tries);

/* Streams hold the client: it waits for them to be gone when it closes. */
void etcd_client_hold(struct etcd_client *c);
void etcd_client_release(struct etcd_client *c);
bool etcd_client_closing(const struct etcd_client *c);

#endif
