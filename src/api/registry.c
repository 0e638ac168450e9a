/* registry.c - the public face of io/registry.h. */
#include "muster/registry.h"

#include "api/backend_foreign.h"
#include "api/params_int.h"
#include "base/err.h"
#include "base/mem.h"

int muster_registry_new(struct muster_registry **out, struct muster_error *err)
{
    struct muster_registry *r = mem_calloc(1, sizeof *r);
    int rc = r ? registry_init(&r->inner, err) : err_nomem(err);

    if (rc < 0) {
        mem_free(r);
        return rc;
    }
    *out = r;
    return 0;
}

static void foreign_free(struct foreign *f)
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
        foreign_free(r->foreign[i]);
    mem_free(r->foreign);
    registry_fini(&r->inner);
    mem_free(r);
}

static bool same(const struct muster_registry *r, const char *name,
                 const struct muster_backend_ops *ops, void *ctx)
{
    for (size_t i = 0; i < r->count; i++) {
        const struct foreign *f = r->foreign[i];

        if (strcmp(f->name, name) == 0 && f->ops == ops && f->ctx == ctx)
            return true;
    }
    return false;
}

int muster_registry_register(struct muster_registry *r, const char *name,
                             const struct muster_backend_ops *ops, void *ctx,
                             struct muster_error *err)
{
    struct foreign **all, *f;
    int rc;

    if (name && same(r, name, ops, ctx))
        return 0;
    all = mem_realloc_array(r->foreign, r->count + 1, sizeof(struct foreign *));
    if (!all)
        return err_nomem(err);
    r->foreign = all;
    f = mem_calloc(1, sizeof *f);
    if (!f)
        return err_nomem(err);
    *f = (struct foreign){ mem_strdup(name ? name : ""), ops, ctx };
    rc = f->name ? registry_register(&r->inner, name, foreign_create, f, err)
                 : err_nomem(err);
    if (rc < 0) {
        foreign_free(f);
        return rc;
    }
    all[r->count++] = f;
    return 0;
}

int muster_registry_has(const struct muster_registry *r, const char *name)
{
    for (size_t i = 0; i < r->inner.count; i++) {
        if (strcmp(r->inner.entries[i].name, name) == 0)
            return 1;
    }
    return 0;
}
