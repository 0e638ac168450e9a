/* requests.h - between the legacy state machine and an etcd client: how its requests
 * are sent, what an answer is to it, and the keys it wants kept alive. The part of
 * etcd/legacy/handler.c that does no I/O, for that driver and for the simulator. */
#ifndef ETCD_LEGACY_CORE_REQUESTS_H
#define ETCD_LEGACY_CORE_REQUESTS_H

#include "etcd/core/kv_operation.h"
#include "etcd/legacy/core/machine.h"

#define LEGACY_HICCUP_MS 500u /* before a wait that broke is taken for over */

/* How a REQUEST is to be sent. */
struct legacy_manner {
    uint64_t timeout_ms;
    uint64_t attempt_ms; /* 0: as the client likes */
    bool once;           /* not repeated if it may have reached a server */
};

struct legacy_manner legacy_manner_of(const struct legacy_effect *e);

/* Makes the REPLY of what came. True: a wait that broke is over, and what it waited for
 * is to be read again, after LEGACY_HICCUP_MS; ev says so. */
bool legacy_reply(struct legacy_event *ev, bool waiting, int status,
                  const struct etcd_answer *answer, const struct muster_error *err);

/* ---- A key that lives as long as we refresh it ---- */

struct legacy_keep {
    struct buf path; /* owned */
    uint64_t ttl_s;
    bool on;
};

void legacy_keep_init(struct legacy_keep *k);
void legacy_keep_fini(struct legacy_keep *k);

/* KEEP: the first refresh is due at once. MUSTER_ENOMEM: not on. */
int legacy_keep_start(struct legacy_keep *k, const struct legacy_effect *e);

int legacy_keep_encode(const struct legacy_keep *k, struct etcd_msg *m);
uint64_t legacy_keep_timeout_ms(const struct legacy_keep *k);

/* When to refresh it again; MONO_NEVER: it is gone, and we stop. */
uint64_t legacy_keep_answer(struct legacy_keep *k, int status);

#endif
