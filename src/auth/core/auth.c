/* auth.c - see auth.h. */
#include "auth/core/auth.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/py/text.h"

int auth_new(auth_hmac_fn hmac, struct span token, const char *run_id, unsigned flags,
             const char *from, struct auth **out, struct muster_error *err)
{
    const bool munge = flags & AUTH_MUNGE;
    struct auth *a;

    token = py_strip(token);
    if (!munge && token.n < AUTH_TOKEN_LEAST)
        return err_set(err, MUSTER_EINVAL,
                       "%s: a token of %zu bytes can be guessed; give at least %u "
                       "(`openssl rand -hex 32` makes one)",
                       from, token.n, AUTH_TOKEN_LEAST);
    if (token.n > AUTH_TOKEN_MOST)
        return err_set(err, MUSTER_EINVAL, "%s: a token has at most %u bytes", from,
                       AUTH_TOKEN_MOST);
    a = mem_calloc(1, sizeof *a);
    if (!a)
        return err_nomem(err);
    a->refs = 1;
    a->settings = (struct auth_settings){ .hmac = hmac,
                                          .flags = flags,
                                          .any_run = run_id == NULL };
    auth_run_digest(hmac, span_str(run_id ? run_id : ""), a->settings.run);
    if (!munge) {
        auth_key_of_token(hmac, token, a->key);
        a->settings.key = a->key;
    }
    (void)snprintf(a->from, sizeof a->from, "%s", from);
    *out = a;
    return 0;
}

struct auth *auth_ref(struct auth *a)
{
    if (a)
        (void)__atomic_add_fetch(&a->refs, 1, __ATOMIC_RELAXED);
    return a;
}

void auth_unref(struct auth *a)
{
    if (!a || __atomic_sub_fetch(&a->refs, 1, __ATOMIC_ACQ_REL))
        return;
    explicit_bzero(a->key, sizeof a->key);
    mem_free(a);
}

void auth_set_key(struct auth *a, const uint8_t key[AUTH_SECRET])
{
    memcpy(a->key, key, AUTH_SECRET);
    a->settings.key = a->key;
}
