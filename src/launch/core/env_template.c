/* env_template.c - see env_template.h. */
#include "launch/core/env_template.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/nearest.h"
#include "launch/core/framework.h"

#define NAME_SHOWN 100 /* bytes of a text from outside in a message */

enum name {
    NAME_RANK,
    NAME_LOCAL_RANK,
    NAME_NODE_RANK,
    NAME_NNODES,
    NAME_WORLD_SIZE,
    NAME_LOCAL_WORLD_SIZE,
    NAME_MASTER_ADDR,
    NAME_MASTER_PORT,
    NAME_HOSTNAME,
    NAME_RESTART,
    NAME_RUN_ID,
    NAMES_KNOWN, /* to users; framework.c alone has the others */
    NAME_COORDINATOR = NAMES_KNOWN,
    NAME_COORDINATOR_ADDR,
    NAME_COORDINATOR_PORT,
    NAME_CLUSTER,
    NAMES,
};

static const char *const names[NAMES] = {
    "rank",
    "local_rank",
    "node_rank",
    "nnodes",
    "world_size",
    "local_world_size",
    "master_addr",
    "master_port",
    "hostname",
    "restart",
    "run_id",
    "coordinator",
    "coordinator_addr",
    "coordinator_port",
    "cluster",
};

static bool begins_name(char c)
{
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* How many of the bytes are a name; they end at n. */
static size_t name_length(const char *p, size_t n)
{
    size_t i = 0;

    while (i < n && (begins_name(p[i]) || (i > 0 && p[i] >= '0' && p[i] <= '9')))
        i++;
    return i;
}

/* The name of the reference that the text begins with, or an empty span. */
static struct span reference(const char *p)
{
    const size_t n = p[0] == '$' && p[1] == '{' ? name_length(p + 2, strlen(p + 2)) : 0;

    return span_of(p + 2, n > 0 && p[2 + n] == '}' ? n : 0);
}

static enum name name_find(struct span name)
{
    enum name i = 0;

    while (i < NAMES &&
           (strlen(names[i]) != name.n || memcmp(names[i], name.p, name.n) != 0))
        i++;
    return i;
}

int env_template_check(const char *what, const char *text, struct muster_error *err)
{
    for (const char *p = text; *p; p++) {
        const bool literal = strncmp(p, "$${", 3) == 0;
        const struct span name = literal ? span_of(p, 0) : reference(p);
        struct nearest best = { 0 };

        p += literal ? 2 : 0;
        if (name.n == 0 || name_find(name) < NAMES_KNOWN)
            continue;
        for (size_t i = 0; i < NAMES_KNOWN; i++)
            nearest_try(&best, name, names[i]);
        (void)err_set(err, MUSTER_EINVAL, "%.*s: there is no ${%.*s} here", NAME_SHOWN,
                      what, (int)MIN_OF(name.n, (size_t)NAME_SHOWN),
                      (const char *)name.p);
        if (best.word)
            err_add(err, ", did you mean ${%s}?", best.word);
        err_add(err, "\nThere are");
        for (size_t i = 0; i < NAMES_KNOWN; i++)
            err_add(err, " ${%s}", names[i]);
        err_add(err, "; $${ stands for a ${ that is to stay.");
        return MUSTER_EINVAL;
    }
    return 0;
}

static int put_name(struct buf *out, enum name name, const struct launch_config *c,
                    const struct worker_place *p)
{
    switch (name) {
    case NAME_RANK:
        return buf_printf(out, "%" PRId64, p->rank);
    case NAME_LOCAL_RANK: /* as LOCAL_RANK has it */
        return buf_printf(out, "%" PRId64, c->virtual_local_rank ? 0 : p->local_rank);
    case NAME_NODE_RANK:
        return buf_printf(out, "%" PRId64, p->group_rank);
    case NAME_NNODES:
        return buf_printf(out, "%" PRId64, p->group_world_size);
    case NAME_WORLD_SIZE:
        return buf_printf(out, "%" PRId64, p->world_size);
    case NAME_LOCAL_WORLD_SIZE:
        return buf_printf(out, "%" PRId64, c->nproc);
    case NAME_MASTER_ADDR:
        return buf_append_str(out, p->master_addr ? p->master_addr : "");
    case NAME_MASTER_PORT:
        return buf_printf(out, "%" PRId64, p->master_port);
    case NAME_HOSTNAME:
        return buf_append_str(out, p->hostname ? p->hostname : "");
    case NAME_RESTART:
        return buf_printf(out, "%" PRId64, p->restart_count);
    case NAME_RUN_ID:
        return buf_append_str(out, c->rdzv.run_id);
    case NAME_COORDINATOR:
        return framework_put_coordinator(out, p->nodes, true, true);
    case NAME_COORDINATOR_ADDR:
        return framework_put_coordinator(out, p->nodes, true, false);
    case NAME_COORDINATOR_PORT:
        return framework_put_coordinator(out, p->nodes, false, true);
    case NAME_CLUSTER:
        return framework_put_cluster(out, p->nodes);
    case NAMES:
        break;
    }
    return 0;
}

int env_template_expand(struct buf *out, const char *text,
                        const struct launch_config *c, const struct worker_place *p)
{
    int rc = 0;

    for (const char *at = text; rc == 0 && *at;) {
        const size_t plain = strcspn(at, "$");
        const struct span name = reference(at);
        const enum name which = name_find(name);

        if (plain > 0) {
            rc = buf_append(out, at, plain);
            at += plain;
        } else if (strncmp(at, "$${", 3) == 0) {
            rc = buf_append_str(out, "${");
            at += 3;
        } else if (name.n > 0 && which < NAMES) {
            rc = put_name(out, which, c, p);
            at += name.n + 3;
        } else {
            rc = buf_u8(out, '$');
            at++;
        }
    }
    return rc;
}

int env_template_add(struct text_list *l, const char *where, struct span text,
                     struct muster_error *err)
{
    const char *p = (const char *)text.p;
    const size_t n = name_length(p, text.n);
    char what[NAME_SHOWN + 40];
    char *line;
    int rc;

    (void)snprintf(what, sizeof what, "%.32s %.*s", where,
                   (int)MIN_OF(text.n, (size_t)NAME_SHOWN), p);
    if (n == 0 || (n < text.n && p[n] != '=') || memchr(p, '\0', text.n))
        return err_set(err, MUSTER_EINVAL,
                       "%s: this is not the name of a variable\n"
                       "Give NAME=VALUE, or NAME for a variable that is set already; a "
                       "name has letters, digits and underscores.",
                       what);
    line = mem_strndup(p, text.n);
    if (!line)
        return err_nomem(err);
    rc = n < text.n ? env_template_check(what, line + n + 1, err) : 0;
    if (rc == 0 && n < text.n) {
        line[n] = '\0';
        rc = env_put(l, line, line + n + 1) ? err_nomem(err) : 0;
    } else if (rc == 0) {
        rc = text_list_add(l, line, n) ? err_nomem(err) : 0;
    }
    mem_free(line);
    return rc;
}

int env_template_add_file(struct text_list *l, const char *path, struct span text,
                          struct muster_error *err)
{
    const char *at = (const char *)text.p, *end = at + text.n;
    size_t number = 1;
    char where[33];
    int rc = 0;

    for (; rc == 0 && at < end; number++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const char *stop = newline ? newline : end;
        struct span line = span_of(at, (size_t)(stop - at));

        at = stop + (newline != NULL);
        while (line.n > 0 && line.p[line.n - 1] == '\r')
            line.n--;
        if (line.n == 0 || line.p[0] == '#')
            continue;
        (void)snprintf(where, sizeof where, "line %zu:", number);
        rc = env_template_add(l, where, line, err);
        if (rc == MUSTER_EINVAL)
            (void)err_wrap(err, "--env-file=%s", path);
    }
    return rc;
}

int env_template_apply(struct text_list *env, const struct launch_config *c,
                       const struct worker_place *p)
{
    struct buf b;
    int rc = 0;

    buf_init(&b, SIZE_MAX);
    for (size_t i = 0; rc == 0 && i < c->env.count; i++) {
        const char *item = c->env.items[i], *equals = strchr(item, '=');
        char *name = equals ? mem_strndup(item, (size_t)(equals - item)) : NULL;

        if (!equals)
            continue;
        buf_clear(&b);
        rc = name ? env_template_expand(&b, equals + 1, c, p) : MUSTER_ENOMEM;
        if (rc == 0)
            rc = buf_u8(&b, 0);
        if (rc == 0)
            rc = env_put(env, name, (const char *)buf_data(&b));
        mem_free(name);
    }
    buf_fini(&b);
    return rc;
}
