/* params.h - what a rendezvous is asked for: torch's RendezvousParameters.
 *
 * One owner, no threads: make it, fill it in, hand it to muster_rendezvous_open, which
 * copies what it needs. The rules and the words of the errors are torch's. */
#ifndef MUSTER_PARAMS_H
#define MUSTER_PARAMS_H

#include <stddef.h>
#include <stdint.h>

#include <muster/error.h>

#ifdef __cplusplus
extern "C" {
#endif

struct muster_params;

/* backend: "c10d", "static", "etcd", "etcd-v2", "etcd-v3", or one of a registry's own.
 * endpoint: "host[:port]"; the path for c10d with store_type=file; may be NULL or "".
 * local_addr: what this node calls itself; NULL for its full host name.
 * MUSTER_EINVAL: no backend, min_nodes < 1 or max_nodes < min_nodes. */
MUSTER_API int muster_params_new(const char *backend, const char *endpoint,
                                 const char *run_id, int64_t min_nodes,
                                 int64_t max_nodes, const char *local_addr,
                                 struct muster_params **out, struct muster_error *err);
MUSTER_API void muster_params_free(struct muster_params *p); /* NULL is fine */

/* Options of the backend, by the names that --rdzv-conf knows: join_timeout,
 * last_call_timeout, read_timeout, is_host, ... The last value of a key counts. */
MUSTER_API int muster_params_set(struct muster_params *p, const char *key,
                                 const char *value, struct muster_error *err);
MUSTER_API int muster_params_set_int(struct muster_params *p, const char *key,
                                     int64_t value, struct muster_error *err);
MUSTER_API int muster_params_set_bool(struct muster_params *p, const char *key,
                                      int value, struct muster_error *err);

/* All of "key1=value1,key2=value2", as --rdzv-conf takes it. */
MUSTER_API int muster_params_parse(struct muster_params *p, const char *text,
                                   struct muster_error *err);

/* NULL if there is no such option, or it is not a text. Valid until it is set anew. */
MUSTER_API const char *muster_params_get(const struct muster_params *p,
                                         const char *key);

/* Numbers as Python's int() reads them; *out is dflt if there is no such option. */
MUSTER_API int muster_params_get_as_int(const struct muster_params *p, const char *key,
                                        int64_t dflt, int64_t *out,
                                        struct muster_error *err);

/* *out is 1 or 0, or dflt, which may be -1 for "not given". Texts, in any case: 1,
 * true, t, yes, y; 0, false, f, no, n. */
MUSTER_API int muster_params_get_as_bool(const struct muster_params *p, const char *key,
                                         int dflt, int *out, struct muster_error *err);

MUSTER_API const char *muster_params_backend(const struct muster_params *p);
MUSTER_API const char *muster_params_endpoint(const struct muster_params *p);
MUSTER_API const char *muster_params_run_id(const struct muster_params *p);
MUSTER_API const char *muster_params_local_addr(const struct muster_params *p);
MUSTER_API int64_t muster_params_min_nodes(const struct muster_params *p);
MUSTER_API int64_t muster_params_max_nodes(const struct muster_params *p);

/* "host[:port]" by torch's rules: the host goes to the size bytes at host, the port, or
 * default_port, to *port. MUSTER_EINVAL says what is wrong; MUSTER_EFULL: no room. */
MUSTER_API int muster_endpoint_parse(const char *text, int default_port, char *host,
                                     size_t size, int *port, struct muster_error *err);

#ifdef __cplusplus
}
#endif
#endif
