/* registry.c - the public functions for rendezvous/registry.h. */
#include "muster/registry.h"

#include "api/foreign.h"
#include "api/need.h"
#include "api/params_int.h"
#include "base/err.h"
#include "base/mem.h"

int muster_registry_new(struct muster_registry **out, struct muster_error *err)
{
    struct muster_registry *r;
    int rc;

    if (need(out, "out", err) < 0)
        return MUSTER_EINVAL;
    r = mem_calloc(1, sizeof *r);
    rc = r ? registry_init(&r->inner, err) : err_nomem(err);
    if (rc < 0) {
        mem_free(r);
        return rc;
    }
    *out = r;
    return 0;
}

static void registry_free_foreign(struct foreign *f)
{
    if (f)
        mem_free(f->name);
    mem_free(f);
}

void muster_registry_free(struct muster_registry *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->count; i++)
        registry_free_foreign(r->foreign[i]);
    mem_free(r->foreign);
    registry_fini(&r->inner);
    mem_free(r);
}

static bool registry_knows(const struct muster_registry *r, const struct foreign *like)
{
    for (size_t i = 0; i < r->count; i++) {
        const struct foreign *f = r->foreign[i];

        if (strcmp(f->name, like->name) == 0 && f->backend == like->backend &&
            f->handler == like->handler && f->ctx == like->ctx)
            return true;
    }
    return false;
}

static int registry_add(struct muster_registry *r, const struct foreign *like,
                        rdzv_create_fn create, struct muster_error *err)
{
    struct foreign **all, *f;
    int rc;

    if (registry_knows(r, like))
        return 0;
    all = mem_realloc_array(r->foreign, r->count + 1, sizeof(struct foreign *));
    if (!all)
        return err_nomem(err);
    r->foreign = all;
    f = mem_calloc(1, sizeof *f);
    if (!f)
        return err_nomem(err);
    *f = *like;
    f->name = mem_strdup(like->name);
    rc = f->name ? registry_register(&r->inner, f->name, create, f, err)
                 : err_nomem(err);
    if (rc < 0) {
        registry_free_foreign(f);
        return rc;
    }
    all[r->count++] = f;
    return 0;
}

/* A NULL name becomes an empty one, which registry_register() refuses with the right
 * error. */
static struct foreign named(const char *name, void *ctx)
{
    return (struct foreign){ .name = (char *)(uintptr_t)(name ? name : ""),
                             .ctx = ctx };
}

int muster_registry_register(struct muster_registry *r, const char *name,
                             const struct muster_backend_ops *ops, void *ctx,
                             struct muster_error *err)
{
    struct foreign f = named(name, ctx);

    if (need(r, "registry", err) < 0 || need(ops, "ops", err) < 0)
        return MUSTER_EINVAL;
    const char *missing = !ops->open        ? "open"
                          : !ops->get_state ? "get_state"
                          : !ops->set_state ? "set_state"
                          : !ops->store     ? "store"
                          : !ops->close     ? "close"
                                            : NULL;
    if (missing)
        return err_set(err, MUSTER_EINVAL,
                       "the rendezvous backend '%s' has no function '%s'", f.name,
                       missing);
    f.backend = ops;
    return registry_add(r, &f, foreign_create, err);
}

int muster_registry_register_handler(struct muster_registry *r, const char *name,
                                     const struct muster_handler_ops *ops, void *ctx,
                                     struct muster_error *err)
{
    struct foreign f = named(name, ctx);
    int rc;

    if (need(r, "registry", err) < 0 || need(ops, "ops", err) < 0)
        return MUSTER_EINVAL;
    rc = f.name[0] ? foreign_handler_check(f.name, ops, err) : 0;
    f.handler = ops;
    return rc < 0 ? rc : registry_add(r, &f, foreign_handler_create, err);
}

int muster_registry_has(const struct muster_registry *r, const char *name)
{
    for (size_t i = 0; r && name && i < r->inner.count; i++) {
        if (strcmp(r->inner.entries[i].name, name) == 0)
            return 1;
    }
    return 0;
}
