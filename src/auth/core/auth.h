/* auth.h - the secret of a job, shared by its servers and clients. It is plain memory
 * with a count of its owners; nothing here reads files or makes random keys. */
#ifndef AUTH_CORE_AUTH_H
#define AUTH_CORE_AUTH_H

#include "auth/core/handshake.h"

#define AUTH_TOKEN_LEAST 16u /* bytes; a shorter one can be guessed */
#define AUTH_TOKEN_MOST  4096u

struct auth {
    unsigned refs;
    struct auth_settings settings; /* key points to `key`, once there is one */
    uint8_t key[AUTH_SECRET];
    bool optional;            /* torchrun's nodes are admitted without a proof */
    char name[AUTH_NAME + 1]; /* who we are, for the other side's log */
    uint8_t addresses[AUTH_ADDRESSES][16]; /* of this machine, as of addresses_ms */
    size_t address_count;
    uint64_t addresses_ms;
    char from[300]; /* where the secret comes from, for messages: "token file /x" */
};

/* White space around the token does not count. MUSTER_EINVAL if it is too short or
 * long. A NULL run_id stands for any run. */
int auth_new(auth_hmac_fn hmac, struct span token, const char *run_id, unsigned flags,
             const char *from, struct auth **out, struct muster_error *err);

struct auth *auth_ref(struct auth *a); /* NULL is fine, for both */
void auth_unref(struct auth *a);       /* the last one wipes the key */

/* Sets a key that came by munge, or a random one that will be handed out by munge. */
void auth_set_key(struct auth *a, const uint8_t key[AUTH_SECRET]);

#endif
