/* conf_table.h - the keys of --rdzv-conf, each declared once: its allowed values, its
 * default, the backends that read it, and its text in the manual.
 *
 * Backends read their settings only by conf_int() and the like, so a key that is not in
 * the table cannot be read, and one that is in the table is documented. Pure. */
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
    int64_t initial, low, high; /* of INT and SECONDS; BOOL has initial alone */
    const char *text;           /* the default of TEXT and WORD; may be NULL */
    const char *words;          /* of WORD: "tcp|file"; of BOOL: the word for -1 */
    bool exact;                 /* of WORD: in lower case and without spaces only */
    const char *refusal; /* the error for a value that is not allowed, with {} for it;
                            NULL: a default sentence */
    const char *shown;   /* the default as the manual shows it; NULL: initial or text */
    const char *help;    /* NULL: another row of this name has the text */
};

extern const struct conf_key conf_keys[CONF_COUNT];

/* The given value, else the default. MUSTER_EINVAL, in torch's words where torch has an
 * error, for a value that the row does not allow. The row's kind must fit: INT, SECONDS
 * or FLOAT, BOOL. */
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

/* The bit of a built-in backend; 0 if it is not built in. */
unsigned conf_backend(const char *name);

/* Appends "c10d, etcd-v2", or "all". The buffer remembers a failure. */
void conf_backends_text(struct buf *out, unsigned backends);
void conf_default_text(struct buf *out, const struct conf_key *k);

/* The key that was most likely meant by `key`; NULL if the key is known, or no known
 * key is similar. */
const char *conf_meant(const char *key);

#endif
