/* handshake.h - the two ends of a connection prove to each other that they hold the
 * job's secret, before anything else is said. Pure: nonces and HMAC-SHA256 are inputs.
 *
 *   client                                                            server
 *   OPEN       flags, nonce, run, name                    ------->
 *                  <-------  flags, nonce, proof (, credential)    CHALLENGE
 *   ANSWER     proof, addresses                           ------->
 *
 * Either side may send REFUSED with a reason instead of its next message. There is no
 * message for admission: the server's proof shows that the two hold the same secret, so
 * the client continues right after its ANSWER, in the clear or with TLS, and a join
 * costs only one more round trip than without a secret. A proof is an HMAC over
 * everything that both sides have said so far, with a label for the side. The nonces
 * make a replayed message worthless, the label makes a reflected one worthless, and the
 * flags keep anybody in between from talking the two out of encryption. Messages begin
 * with the protocol's version, so the proofs cover that, too.
 *
 * Under Slurm the client does not have the key at first: the server sends it a random
 * one in a munge credential, which contains both nonces and which only the same user
 * can decode. From there on it is as with a token. */
#ifndef AUTH_CORE_HANDSHAKE_H
#define AUTH_CORE_HANDSHAKE_H

#include "base/base.h"
#include "muster/error.h"

/* On the wire a client's messages are values of QUEUE_PUSH on this key; a server's
 * follow their length, which has 8 bytes. */
#define AUTH_KEY "/\x01muster/auth"

#define AUTH_VERSION    1u
#define AUTH_NONCE      32u
#define AUTH_PROOF      32u
#define AUTH_SECRET     32u
#define AUTH_NAME       200u  /* bytes of a node's name, at most */
#define AUTH_CREDENTIAL 2048u /* bytes of a credential, at most */
#define AUTH_ADDRESSES  64u   /* of a node, at most */
#define AUTH_TEXT       400u  /* of a reason, at most */
#define AUTH_MESSAGE    4096u /* bytes of a message, at most */
#define AUTH_OPEN_MOST  (5u + AUTH_NONCE + AUTH_PROOF + AUTH_NAME) /* of an OPEN */

enum auth_flags { AUTH_ENCRYPT = 1, AUTH_MUNGE = 2 };

enum auth_kind {
    AUTH_OPEN = 1,
    AUTH_CHALLENGE = 2,
    AUTH_ANSWER = 3,
    AUTH_REFUSED = 4,
};

typedef void (*auth_hmac_fn)(const uint8_t *key, size_t key_size, struct span data,
                             uint8_t out[AUTH_PROOF]);

struct auth_message {
    enum auth_kind kind;
    unsigned flags;           /* OPEN, CHALLENGE */
    const uint8_t *nonce;     /* OPEN, CHALLENGE */
    const uint8_t *run;       /* OPEN: auth_run_digest of the run id, or zeros from
                               * a client that only reads and names no run */
    struct span name;         /* OPEN: for the other side's log */
    const uint8_t *proof;     /* CHALLENGE, ANSWER */
    struct span credential;   /* CHALLENGE; empty without munge */
    const uint8_t *addresses; /* ANSWER: 16 bytes each, IPv4 as ::ffff:a.b.c.d */
    size_t address_count;     /* ANSWER */
    struct span text;         /* REFUSED */
};

/* Spans and pointers point into the bytes. MUSTER_EPROTO for anything but one whole
 * message of our version. */
int auth_decode(struct span bytes, struct auth_message *out, struct muster_error *err);

/* Writes at most AUTH_MESSAGE bytes and returns how many. */
size_t auth_encode(const struct auth_message *m, uint8_t out[AUTH_MESSAGE]);

/* What a side knows of its job. */
struct auth_settings {
    auth_hmac_fn hmac;
    const uint8_t *key; /* AUTH_SECRET bytes; NULL on a client that gets it by munge */
    unsigned flags;     /* both sides must have the same */
    bool any_run;       /* server: accepts any run id; client: names none */
    uint8_t run[AUTH_PROOF];
};

/* Derive the job's key from the token, and from a run id what OPEN carries. */
void auth_key_of_token(auth_hmac_fn hmac, struct span token, uint8_t out[AUTH_SECRET]);
void auth_run_digest(auth_hmac_fn hmac, struct span run_id, uint8_t out[AUTH_PROOF]);

/* One side of one handshake. Plain memory: nothing to free. */
struct auth_side {
    bool server;
    enum auth_kind expects;
    uint8_t said[640 + AUTH_CREDENTIAL]; /* OPEN and CHALLENGE without its proof */
    size_t said_size, open_size;
    uint8_t server_proof[AUTH_PROOF];
};

/* The client's first message. */
size_t auth_client_open(struct auth_side *c, const struct auth_settings *s,
                        const uint8_t nonce[AUTH_NONCE], struct span name,
                        uint8_t out[AUTH_MESSAGE]);

/* Checks that an OPEN is for this job, as far as that is possible without a proof.
 * auth_server_open does it, too; this is for callers that must work in between. */
int auth_server_check(const struct auth_settings *s, const struct auth_message *open,
                      uint8_t out[AUTH_MESSAGE], size_t *n, struct muster_error *err);

/* Whether an OPEN comes from a node: clients that only read name no run. */
bool auth_names_run(const struct auth_message *open);

/* Makes the server's answer to OPEN; or returns MUSTER_EPROTO, or MUSTER_EACCES with
 * the reason, and then out has REFUSED. *n is how much there is to send. The credential
 * was made for this OPEN's nonce and the given one, or is empty. */
int auth_server_open(struct auth_side *v, const struct auth_settings *s,
                     const struct auth_message *open, struct span bytes,
                     const uint8_t nonce[AUTH_NONCE], struct span credential,
                     uint8_t out[AUTH_MESSAGE], size_t *n, struct muster_error *err);

/* Checks the flags and the proof of CHALLENGE and makes the client's answer; errors as
 * above, and MUSTER_EACCES if the server sent REFUSED. With munge, settings must have
 * the key from the credential by now. */
int auth_client_answer(struct auth_side *c, const struct auth_settings *s,
                       const struct auth_message *challenge, struct span bytes,
                       const uint8_t *addresses, size_t count,
                       uint8_t out[AUTH_MESSAGE], size_t *n, struct muster_error *err);

/* Checks the client's ANSWER, with errors as above; 0 means that it is admitted. */
int auth_server_finish(struct auth_side *v, const struct auth_settings *s,
                       const struct auth_message *answer, uint8_t out[AUTH_MESSAGE],
                       size_t *n, struct muster_error *err);

/* After ANSWER: derives a key that encrypts this connection alone. */
void auth_session_key(const struct auth_side *e, const struct auth_settings *s,
                      uint8_t out[AUTH_SECRET]);

/* Takes the same time whatever the bytes are. */
bool auth_equal(const uint8_t *a, const uint8_t *b, size_t n);

#endif
