/* conf_table.h - the keys of --rdzv-conf, each declared once: what it may be, what it
 * is if nobody gives it, which backends read it, and what the manual says of it.
 *
 * Backends read their settings by conf_int() and its like and by nothing else, so a key
 * that is not in the table cannot be read, and one that is cannot go undocumented.
 * Pure. */
#ifndef RENDEZVOUS_CORE_CONF_TABLE_H
#define RENDEZVOUS_CORE_CONF_TABLE_H

#include "base/buf.h"
#include "rendezvous/core/params.h"

enum conf_id {
    CONF_JOIN_TIMEOUT,
    CONF_LAST_CALL_TIMEOUT,
    CONF_LAST_CALL,
    CONF_CLOSE_TIMEOUT,
    CONF_KEEP_ALIVE_INTERVAL,
    CONF_KEEP_ALIVE_MAX_ATTEMPT,
    CONF_HEARTBEAT_TIMEOUT,
    CONF_READ_TIMEOUT,
    CONF_CAS_BACKOFF,
    CONF_STORE_TYPE,
    CONF_BIND,
    CONF_TOKEN_FILE,
    CONF_TOKEN_OPTIONAL,
    CONF_ENCRYPT,
    CONF_MUNGE,
    CONF_IS_HOST,
    CONF_HOSTED,
    CONF_LOSS_GRACE,
    CONF_NODE_ORDER,
    CONF_RANK,
    CONF_TIMEOUT,
    CONF_PROTOCOL,
    CONF_LEGACY_PROTOCOL,
    CONF_CA_CERT,
    CONF_SSL_CERT,
    CONF_SSL_CERT_KEY,
    CONF_LEGACY_CACERT,
    CONF_LEGACY_CERT,
    CONF_LEGACY_KEY,
    CONF_LEGACY_PREFIX,
    CONF_LEGACY_LAST_CALL_TIMEOUT,
    CONF_PREFIX,
    CONF_LEASE_TTL,
    CONF_PEER_PORT,
    CONF_USER,
    CONF_PASSWORD_FILE,
    CONF_PASSWORD,
    CONF_COUNT
};

enum conf_kind {
    CONF_TEXT,
    CONF_WORD,    /* one of `words`, in any case and with spaces around it */
    CONF_INT,     /* Python's int(), from low to high */
    CONF_SECONDS, /* likewise, and positive */
    CONF_FLOAT,   /* Python's float(), finite and not negative */
    CONF_BOOL,    /* torch's words for true and false; -1 stands for neither */
};

/* Bits of conf_key.backends. */
#define CONF_C10D    1u
#define CONF_STATIC  2u
#define CONF_ETCD    4u
#define CONF_ETCD_V2 8u
#define CONF_ETCD_V3 16u
#define CONF_DYNAMIC (CONF_C10D | CONF_ETCD_V2 | CONF_ETCD_V3)
#define CONF_ALL     (CONF_DYNAMIC | CONF_STATIC | CONF_ETCD)

struct conf_key {
    const char *name;
    unsigned backends;
    enum conf_kind kind;
    int64_t initial, low, high; /* of INT, SECONDS; initial of BOOL */
    const char *text;           /* of TEXT, WORD: the default; may be NULL */
    const char *words;          /* of WORD: "tcp|file"; of BOOL: what means -1 */
    bool exact;                 /* of WORD: as it is, in lower case */
    const char *refusal; /* of a value out of bounds, {} being the value; NULL: ours */
    const char *shown;   /* the default in the manual; NULL: initial or text */
    const char *help;    /* NULL: another row of this name has it */
};

extern const struct conf_key conf_keys[CONF_COUNT];

/* The value that is given, else the default. MUSTER_EINVAL, in torch's words where it
 * has any, for a value that the row does not allow. The row's kind must fit: INT,
 * SECONDS or FLOAT, BOOL. */
int conf_int(const struct rdzv_params *p, enum conf_id id, int64_t *out,
             struct muster_error *err);
int conf_ms(const struct rdzv_params *p, enum conf_id id, uint64_t *out,
            struct muster_error *err); /* SECONDS and FLOAT, in milliseconds */
int conf_bool(const struct rdzv_params *p, enum conf_id id, int *out,
              struct muster_error *err);
/* The index of the word. */
int conf_word(const struct rdzv_params *p, enum conf_id id, size_t *out,
              struct muster_error *err);
const char *conf_text(const struct rdzv_params *p, enum conf_id id); /* borrowed */

bool conf_given(const struct rdzv_params *p, enum conf_id id);

/* The bit of a built-in backend; 0: it is not one. */
unsigned conf_backend(const char *name);

/* "c10d, etcd-v2", or "all". The buffer remembers a failure. */
void conf_backends_text(struct buf *out, unsigned backends);
void conf_default_text(struct buf *out, const struct conf_key *k);

/* The key that was most likely meant by one that no backend reads; NULL: the key is
 * known, or nothing is near it. */
const char *conf_meant(const char *key);

#endif
