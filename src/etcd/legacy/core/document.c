/* document.c - see document.h. jansson's default form of text is Python's, and it
 * keeps the order of members. */
#include "etcd/legacy/core/document.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"
#include "base/err.h"

#define MAX_NODES 1000000u

static const char *const statuses[] = {
    [LEGACY_SETUP] = "setup",   [LEGACY_JOINABLE] = "joinable",
    [LEGACY_FROZEN] = "frozen", [LEGACY_FINAL] = "final",
    [LEGACY_CLOSED] = "closed",
};

static int doc_bad(struct muster_error *err, const char *what)
{
    return err_set(err, MUSTER_ESTATE,
                   "the rendezvous document in etcd is not torch's: %s", what);
}

static int read_status(struct legacy_doc *d, struct muster_error *err)
{
    const char *text = json_string_value(json_object_get(d->root, "status"));

    for (size_t i = 0; text && i < ARRAY_LEN(statuses); i++)
        if (strcmp(text, statuses[i]) == 0) {
            d->status = (enum legacy_status)i;
            return 0;
        }
    return doc_bad(err, "status is missing or unknown");
}

/* A field that is there has its form in every state, so that whatever is made of a
 * document that was read can be read again; which must be there, the state says. */
static int read_version(struct legacy_doc *d, struct muster_error *err)
{
    const char *text = json_string_value(json_object_get(d->root, "version"));
    char *end;

    if (!text || !(*text >= '0' && *text <= '9') || strlen(text) > 18)
        return doc_bad(err, "version is missing or not decimal text");
    d->version = strtoull(text, &end, 10);
    return *end == '\0' ? 0 : doc_bad(err, "version is not decimal text");
}

static int read_participants(struct legacy_doc *d, struct muster_error *err)
{
    const json_t *list = json_object_get(d->root, "participants");

    d->participants = json_array_size(list);
    if (!json_is_array(list) || d->participants > MAX_NODES)
        return doc_bad(err, "participants is not a list, or endless");
    return 0;
}

static int read_keep_alives(struct legacy_doc *d, struct muster_error *err)
{
    const json_t *list = json_object_get(d->root, "keep_alives");

    d->keep_alives = json_array_size(list);
    if (!json_is_array(list) || d->keep_alives > d->participants)
        return doc_bad(err, "keep_alives is not a list, or longer than participants");
    for (size_t i = 0; i < d->keep_alives; i++)
        if (!json_is_string(json_array_get(list, i)))
            return doc_bad(err, "keep_alives has something else than paths");
    if (d->status == LEGACY_FROZEN && d->keep_alives == d->participants)
        return doc_bad(err, "it is frozen, yet keep_alives has everybody");
    return 0;
}

static int read_waiting(struct legacy_doc *d, struct muster_error *err)
{
    const json_t *waiting = json_object_get(d->root, "num_workers_waiting");

    d->waiting = json_integer_value(waiting);
    if (!json_is_integer(waiting) || d->waiting < 0 || d->waiting > (int64_t)MAX_NODES)
        return doc_bad(err, "num_workers_waiting is not a number, or endless");
    return 0;
}

#define IN(status) (1u << (status))

/* Setup needs none of them; a run may be closed out of any state, also out of setup. */
static const struct {
    const char *name;
    int (*read)(struct legacy_doc *d, struct muster_error *err);
    unsigned needed_in;
} fields[] = {
    { "version", read_version,
      IN(LEGACY_JOINABLE) | IN(LEGACY_FROZEN) | IN(LEGACY_FINAL) },
    { "participants", read_participants,
      IN(LEGACY_JOINABLE) | IN(LEGACY_FROZEN) | IN(LEGACY_FINAL) },
    { "keep_alives", read_keep_alives, IN(LEGACY_FROZEN) | IN(LEGACY_FINAL) },
    { "num_workers_waiting", read_waiting, IN(LEGACY_FINAL) },
};

int legacy_doc_read(struct legacy_doc *d, struct span text, struct muster_error *err)
{
    json_error_t why;
    int rc;

    *d = (struct legacy_doc){ .root = NULL };
    d->root = json_loadb(text.n ? (const char *)text.p : "", text.n, 0, &why);
    if (!d->root && json_error_code(&why) == json_error_out_of_memory)
        return err_nomem(err);
    if (!json_is_object(d->root)) {
        legacy_doc_fini(d);
        return doc_bad(err, "it is not a JSON object");
    }
    rc = read_status(d, err);
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(fields); i++)
        if (fields[i].needed_in & IN(d->status) ||
            json_object_get(d->root, fields[i].name))
            rc = fields[i].read(d, err);
    if (rc < 0)
        legacy_doc_fini(d);
    return rc;
}

void legacy_doc_fini(struct legacy_doc *d)
{
    if (!d)
        return;
    json_decref(d->root);
    *d = (struct legacy_doc){ .root = NULL };
}

static int doc_set(struct legacy_doc *d, const char *name, json_t *value)
{
    return json_object_set_new(d->root, name, value) < 0 ? MUSTER_ENOMEM : 0;
}

static int set_status(struct legacy_doc *d, enum legacy_status status)
{
    d->status = status;
    return doc_set(d, "status", json_string(statuses[status]));
}

int legacy_doc_new(struct legacy_doc *d, uint64_t version)
{
    char text[24];
    int rc;

    (void)snprintf(text, sizeof text, "%" PRIu64, version);
    *d = (struct legacy_doc){ .root = json_object(), .version = version };
    rc = d->root ? set_status(d, LEGACY_JOINABLE) : MUSTER_ENOMEM;
    if (rc == 0)
        rc = doc_set(d, "version", json_string(text));
    if (rc == 0)
        rc = doc_set(d, "participants", json_array());
    return rc;
}

int legacy_doc_join(struct legacy_doc *d)
{
    json_t *list = json_object_get(d->root, "participants");

    if (json_array_append_new(list, json_integer((json_int_t)d->participants)) < 0)
        return MUSTER_ENOMEM;
    d->participants++;
    return 0;
}

int legacy_doc_freeze(struct legacy_doc *d)
{
    const int rc = set_status(d, LEGACY_FROZEN);

    d->keep_alives = 0;
    return rc < 0 ? rc : doc_set(d, "keep_alives", json_array());
}

int legacy_doc_confirm(struct legacy_doc *d, const char *path)
{
    json_t *list = json_object_get(d->root, "keep_alives");
    int rc;

    assert(d->status == LEGACY_FROZEN && d->keep_alives < d->participants);
    if (json_array_append_new(list, json_string(path)) < 0)
        return MUSTER_ENOMEM;
    if (++d->keep_alives != d->participants)
        return 0;
    rc = set_status(d, LEGACY_FINAL);
    return rc < 0 ? rc : doc_set(d, "num_workers_waiting", json_integer(0));
}

int legacy_doc_wait(struct legacy_doc *d)
{
    assert(d->status == LEGACY_FINAL && d->waiting >= 0);
    if (d->waiting < (int64_t)MAX_NODES)
        d->waiting++;
    return doc_set(d, "num_workers_waiting", json_integer(d->waiting));
}

int legacy_doc_close(struct legacy_doc *d)
{
    return set_status(d, LEGACY_CLOSED);
}

const char *legacy_doc_keep_alive(const struct legacy_doc *d, size_t i)
{
    assert(i < d->keep_alives);
    return json_string_value(
        json_array_get(json_object_get(d->root, "keep_alives"), i));
}

int legacy_doc_print(const struct legacy_doc *d, struct buf *out)
{
    char *text = json_dumps(d->root, JSON_ENSURE_ASCII);
    int rc;

    if (!text)
        return MUSTER_ENOMEM;
    rc = buf_append_str(out, text);
    free(text);
    return rc;
}
