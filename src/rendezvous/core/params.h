/* params.h - what a rendezvous is asked for: torch's RendezvousParameters. Pure memory,
 * one owner; the words of the errors are torch's. */
#ifndef RENDEZVOUS_CORE_PARAMS_H
#define RENDEZVOUS_CORE_PARAMS_H

#include "auth/core/auth.h"
#include "base/base.h"
#include "muster/error.h"

enum rdzv_kind { RDZV_STR, RDZV_INT, RDZV_BOOL };

struct rdzv_option {
    char *key; /* owned */
    enum rdzv_kind kind;
    char *text;     /* owned; RDZV_STR */
    int64_t number; /* RDZV_INT, RDZV_BOOL */
};

struct rdzv_params {
    char *backend, *endpoint, *run_id; /* owned; endpoint and run_id may be "" */
    char *local_addr;                  /* owned, or NULL */
    int64_t min_nodes, max_nodes;
    struct auth *auth;           /* a reference: the job's secret, or NULL */
    struct rdzv_option *options; /* owned; in the order they came */
    size_t count;
};

/* Copies what it is given; endpoint, run_id and local_addr may be NULL. Like torch's
 * constructor, returns MUSTER_EINVAL without a backend, or if min_nodes < 1 or
 * max_nodes < min_nodes. */
int params_init(struct rdzv_params *p, const char *backend, const char *endpoint,
                const char *run_id, int64_t min_nodes, int64_t max_nodes,
                const char *local_addr, struct muster_error *err);
void params_fini(struct rdzv_params *p); /* NULL and zeroed are fine */
int params_copy(struct rdzv_params *to, const struct rdzv_params *from,
                struct muster_error *err);

/* A key that is already set gets the new value. */
int params_set_str(struct rdzv_params *p, const char *key, const char *value,
                   struct muster_error *err);
int params_set_int(struct rdzv_params *p, const char *key, int64_t value,
                   struct muster_error *err);
int params_set_bool(struct rdzv_params *p, const char *key, bool value,
                    struct muster_error *err);

const struct rdzv_option *params_get(const struct rdzv_params *p, const char *key);

/* The option's text; dflt if it is not set or not a text. */
const char *params_str(const struct rdzv_params *p, const char *key, const char *dflt);

/* The option as an integer, by the rules of Python's int(); dflt if it is not set. */
int params_int(const struct rdzv_params *p, const char *key, int64_t dflt, int64_t *out,
               struct muster_error *err);

/* The option as a number, by the rules of Python's float(). */
int params_float(const struct rdzv_params *p, const char *key, double dflt, double *out,
                 struct muster_error *err);

/* 1 or 0; dflt, which may be -1 for "neither", if the option is not set. */
int params_bool(const struct rdzv_params *p, const char *key, int dflt, int *out,
                struct muster_error *err);

/* Reads the string of --rdzv-conf, `<key>=<value>,...`, by torch's rules. Each part
 * becomes an option of p, as text; a repeated key takes its last value. After an error
 * some options may be set already. text may be NULL. */
int conf_parse(struct rdzv_params *p, const char *text, struct muster_error *err);

#endif
