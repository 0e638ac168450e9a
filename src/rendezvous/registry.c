/* registry.c - see registry.h. */
#include "rendezvous/registry.h"
#include "rendezvous/core/conf_table.h"

#include "auth/secret.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/nearest.h"
#include "rendezvous/handler_base.h"
#include "rendezvous/state_backend.h"

/* The backends that can keep the state of a dynamic handler. */
static const struct state_backend {
    const char *name;
    int (*make)(uv_loop_t *loop, const struct rdzv_params *params,
                const struct log *log, struct rdzv_backend **out,
                struct muster_error *err);
} state_backends[] = {
    { "c10d", backend_c10d_new },
    { "etcd-v2", backend_etcd2_new },
    { "etcd-v3", backend_etcd3_new },
};

static int create_dynamic(void *ctx, uv_loop_t *loop, const struct rdzv_params *params,
                          const struct log *log, struct rdzv_handler **out,
                          struct muster_error *err)
{
    const struct state_backend *at = ctx;
    struct rdzv_backend *b;
    const int rc = at->make(loop, params, log, &b, err);

    return rc < 0 ? rc : rdzv_dynamic_create(loop, params, log, b, out, err);
}

static struct registry_entry *find(const struct registry *r, const char *name)
{
    for (size_t i = 0; i < r->count; i++) {
        if (strcmp(r->entries[i].name, name) == 0)
            return &r->entries[i];
    }
    return NULL;
}

int registry_register(struct registry *r, const char *name, rdzv_create_fn create,
                      void *ctx, struct muster_error *err)
{
    struct registry_entry *e;

    if (!name || !*name)
        return err_set(err, MUSTER_EINVAL,
                       "The rendezvous backend name must be a non-empty string.");
    e = find(r, name);
    if (e && e->create == create && e->ctx == ctx)
        return 0;
    if (e)
        return err_set(
            err, MUSTER_EEXIST,
            "The rendezvous backend '%s' cannot be registered with '%p' as it "
            "is already registered with '%p'.",
            name, ctx, e->ctx);
    e = mem_realloc_array(r->entries, r->count + 1, sizeof *e);
    if (!e)
        return err_nomem(err);
    r->entries = e;
    e += r->count;
    e->name = mem_strdup(name);
    if (!e->name)
        return err_nomem(err);
    e->create = create;
    e->ctx = ctx;
    r->count++;
    return 0;
}

int registry_init(struct registry *r, struct muster_error *err)
{
    int rc;

    *r = (struct registry){ 0 };
    rc = registry_register(r, "etcd", rdzv_etcd_create, NULL, err);
    if (rc == 0)
        rc = registry_register(r, "static", rdzv_static_create, NULL, err);
    for (size_t i = 0; i < ARRAY_LEN(state_backends) && rc == 0; i++)
        rc = registry_register(r, state_backends[i].name, create_dynamic,
                               (void *)(uintptr_t)&state_backends[i], err);
    if (rc < 0)
        registry_fini(r);
    return rc;
}

void registry_fini(struct registry *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->count; i++)
        mem_free(r->entries[i].name);
    mem_free(r->entries);
    *r = (struct registry){ 0 };
}

static void ignore(void *ctx)
{
    (void)ctx;
}

/* Loads the job's secret. Without one *out is NULL. */
static int load_secret(const struct rdzv_params *params, struct auth **out,
                       struct muster_error *err)
{
    struct secret_opts opts = { .token_file = conf_text(params, CONF_TOKEN_FILE),
                                .run_id = params->run_id };
    int optional = 0, encrypt = 0;
    int rc = conf_bool(params, CONF_TOKEN_OPTIONAL, &optional, err);

    if (rc == 0)
        rc = conf_bool(params, CONF_ENCRYPT, &encrypt, err);
    if (rc == 0)
        rc = conf_bool(params, CONF_MUNGE, &opts.munge, err);
    opts.optional = optional;
    opts.encrypt = encrypt;
    return rc < 0 ? rc : secret_load(&opts, out, err);
}

/* Makes the handler, with the job's secret if there is one. Even where the state of a
 * run is not in a store of ours (etcd), the workers' store is. */
static int create(const struct registry_entry *e, uv_loop_t *loop,
                  const struct rdzv_params *params, const struct log *log,
                  struct rdzv_handler **out, struct muster_error *err)
{
    struct rdzv_params with = { 0 };
    struct auth *auth = NULL;
    int rc = load_secret(params, &auth, err);

    if (rc < 0)
        return rc;
    if (!auth)
        return e->create(e->ctx, loop, params, log, out, err);
    rc = params_copy(&with, params, err);
    if (rc == 0) {
        with.auth = auth; /* The copy owns the reference now. */
        rc = e->create(e->ctx, loop, &with, log, out, err);
        if (rc == 0)
            handler_secure(*out, auth, log);
        params_fini(&with);
    } else {
        auth_unref(auth);
    }
    return rc;
}

int rdzv_backend_create(uv_loop_t *loop, const struct rdzv_params *params,
                        struct rdzv_backend **out, struct muster_error *err)
{
    const struct state_backend *at = NULL;
    struct rdzv_params with = { 0 };
    struct auth *auth = NULL;
    int rc;

    for (size_t i = 0; i < ARRAY_LEN(state_backends); i++) {
        if (strcmp(state_backends[i].name, params->backend) == 0)
            at = &state_backends[i];
    }
    if (!at)
        return err_set(err, MUSTER_EINVAL,
                       "the rendezvous backend '%s' keeps no state of its own; c10d, "
                       "etcd-v2 and etcd-v3 do",
                       params->backend);
    rc = load_secret(params, &auth, err);
    if (rc == 0)
        rc = params_copy(&with, params, err);
    if (rc < 0) {
        auth_unref(auth);
        return rc;
    }
    with.auth = auth; /* The copy owns the reference now. */
    rc = at->make(loop, &with, NULL, out, err);
    params_fini(&with);
    return rc;
}

static int refuse_unknown(const struct registry *r, const char *name,
                          struct muster_error *err)
{
    struct nearest meant = { 0 };

    (void)err_set(err, MUSTER_ENOENT,
                  "The rendezvous backend '%s' is not registered.\n", name);
    for (size_t i = 0; i < r->count; i++)
        nearest_try(&meant, span_str(name), r->entries[i].name);
    if (meant.word)
        err_add(err, "Did you mean %s? ", meant.word);
    err_add(err, "muster knows static, c10d, etcd, etcd-v2 and etcd-v3.");
    return MUSTER_ENOENT;
}

int registry_create(const struct registry *r, uv_loop_t *loop,
                    const struct rdzv_params *params, const struct log *log,
                    struct rdzv_handler **out, struct muster_error *err)
{
    const struct registry_entry *e = find(r, params->backend);
    struct rdzv_handler *h = NULL;
    int rc;

    if (!e)
        return refuse_unknown(r, params->backend, err);
    rc = create(e, loop, params, log, &h, err);
    if (rc < 0)
        return rc;
    if (strcmp(h->ops->backend(h), params->backend) != 0) {
        rc = err_set(err, MUSTER_EINVAL,
                     "The rendezvous backend '%s' does not match the requested backend "
                     "'%s'.",
                     h->ops->backend(h), params->backend);
        h->ops->destroy(h, ignore, NULL);
        return rc;
    }
    *out = h;
    return 0;
}

int rdzv_handler_create(uv_loop_t *loop, const struct rdzv_params *params,
                        const struct log *log, struct rdzv_handler **out,
                        struct muster_error *err)
{
    struct registry r;
    int rc = registry_init(&r, err);

    if (rc == 0)
        rc = registry_create(&r, loop, params, log, out, err);
    registry_fini(&r);
    return rc;
}
