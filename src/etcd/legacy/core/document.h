/* document.h - the JSON document of the legacy etcd rendezvous: read, change, print.
 * What is printed has Python's separators and torch's order of fields. */
#ifndef ETCD_LEGACY_CORE_DOCUMENT_H
#define ETCD_LEGACY_CORE_DOCUMENT_H

#include <jansson.h>

#include "base/buf.h"
#include "muster/error.h"

enum legacy_status {
    LEGACY_SETUP,
    LEGACY_JOINABLE,
    LEGACY_FROZEN,
    LEGACY_FINAL,
    LEGACY_CLOSED,
};

struct legacy_doc {
    json_t *root; /* owned */
    enum legacy_status status;
    uint64_t version; /* 0: none (setup) */
    size_t participants, keep_alives;
    int64_t waiting;
};

/* MUSTER_ESTATE with the reason if text is not such a document. */
int legacy_doc_read(struct legacy_doc *d, struct span text, struct muster_error *err);
void legacy_doc_fini(struct legacy_doc *d);

/* A joinable document of nobody. */
int legacy_doc_new(struct legacy_doc *d, uint64_t version);

/* All return 0 or MUSTER_ENOMEM; the document is then of no use any more. */
int legacy_doc_join(struct legacy_doc *d);   /* the next rank */
int legacy_doc_freeze(struct legacy_doc *d); /* with nobody confirmed */
int legacy_doc_confirm(struct legacy_doc *d, const char *path); /* final by the last */
int legacy_doc_wait(struct legacy_doc *d);                      /* one more waits */
int legacy_doc_close(struct legacy_doc *d);

const char *legacy_doc_keep_alive(const struct legacy_doc *d, size_t i); /* its path */

int legacy_doc_print(const struct legacy_doc *d, struct buf *out);

#endif
