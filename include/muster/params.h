/* params.h - what a rendezvous is asked for: torch's RendezvousParameters.
 *
 * One thread at a time may use a muster_params: make it, fill it in, and pass it to
 * muster_rendezvous_open, which copies what it needs. The rules and the wording of the
 * errors are torch's. */
#ifndef MUSTER_PARAMS_H
#define MUSTER_PARAMS_H

#include <stddef.h>
#include <stdint.h>

#include <muster/error.h>

#ifdef __cplusplus
extern "C" {
#endif

struct muster_params;

/* backend: "c10d", "static", "etcd", "etcd-v2", "etcd-v3", or one that the caller has
 * registered. endpoint: "host[:port]", or a path for c10d with store_type=file; may be
 * NULL or "". local_addr: the name by which the others reach this node; NULL for its
 * full host name. MUSTER_EINVAL if there is no backend, or if min_nodes < 1 or
 * max_nodes < min_nodes. */
MUSTER_API int muster_params_new(const char *backend, const char *endpoint,
                                 const char *run_id, int64_t min_nodes,
                                 int64_t max_nodes, const char *local_addr,
                                 struct muster_params **out, struct muster_error *err);
MUSTER_API void muster_params_free(struct muster_params *p); /* NULL is fine */

/* Set an option of the backend, by the name that --rdzv-conf has for it: join_timeout,
 * last_call_timeout, read_timeout, is_host, ... The last value of a key counts. */
MUSTER_API int muster_params_set(struct muster_params *p, const char *key,
                                 const char *value, struct muster_error *err);
MUSTER_API int muster_params_set_int(struct muster_params *p, const char *key,
                                     int64_t value, struct muster_error *err);
MUSTER_API int muster_params_set_bool(struct muster_params *p, const char *key,
                                      int value, struct muster_error *err);

/* Sets every option of "key1=value1,key2=value2", the form that --rdzv-conf takes. */
MUSTER_API int muster_params_parse(struct muster_params *p, const char *text,
                                   struct muster_error *err);

/* The value of an option; NULL if it is not set, or not a text. Valid until the option
 * is set again. */
MUSTER_API const char *muster_params_get(const struct muster_params *p,
                                         const char *key);

/* Reads numbers as Python's int() does. *out is dflt if the option is not set. */
MUSTER_API int muster_params_get_as_int(const struct muster_params *p, const char *key,
                                        int64_t dflt, int64_t *out,
                                        struct muster_error *err);

/* *out is 1 or 0, or dflt if the option is not set; dflt may be -1 to tell that apart.
 * 1, true, t, yes and y are true, and 0, false, f, no and n are false, in upper or
 * lower case. */
MUSTER_API int muster_params_get_as_bool(const struct muster_params *p, const char *key,
                                         int dflt, int *out, struct muster_error *err);

MUSTER_API const char *muster_params_backend(const struct muster_params *p);
MUSTER_API const char *muster_params_endpoint(const struct muster_params *p);
MUSTER_API const char *muster_params_run_id(const struct muster_params *p);
MUSTER_API const char *muster_params_local_addr(const struct muster_params *p);
MUSTER_API int64_t muster_params_min_nodes(const struct muster_params *p);
MUSTER_API int64_t muster_params_max_nodes(const struct muster_params *p);

/* Parses "host[:port]" by torch's rules. The host is written to the size bytes at host,
 * and the port, or default_port, to *port. MUSTER_EINVAL says what is wrong;
 * MUSTER_EFULL if host is too small. */
MUSTER_API int muster_endpoint_parse(const char *text, int default_port, char *host,
                                     size_t size, int *port, struct muster_error *err);

#ifdef __cplusplus
}
#endif
#endif
