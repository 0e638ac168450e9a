/* munge_dl.c - see munge_dl.h. The few declarations that we need are repeated here
 * because libmunge's header is seldom installed; its interface has not changed for
 * twenty years. */
#include "auth/munge_dl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "loop/dlopen.h"

#define CIPHER_TYPE     0
#define TIME_TO_LIVE    4
#define SOCKET          8
#define UID_RESTRICTION 9
#define AES_128         4
#define LIVES_S         60
#define EXPIRED         15
#define REWOUND         16
#define UNAUTHORIZED    18
#define SOCKET_ERROR    6

struct munge_ctx;

static struct {
    struct munge_ctx *(*ctx_create)(void);
    void (*ctx_destroy)(struct munge_ctx *);
    int (*ctx_set)(struct munge_ctx *, int option, ...);
    int (*ctx_get)(struct munge_ctx *, int option, ...);
    const char *(*ctx_strerror)(struct munge_ctx *);
    int (*encode)(char **credential, struct munge_ctx *, const void *, int);
    int (*decode)(const char *credential, struct munge_ctx *, void **, int *, uid_t *,
                  gid_t *);
} munge;

static const struct dlopen_symbol symbols[] = {
#define SYMBOL(name)                                                                   \
    {                                                                                  \
        "munge_" #name, &munge.name                                                    \
    }
    SYMBOL(ctx_create),   SYMBOL(ctx_destroy), SYMBOL(ctx_set), SYMBOL(ctx_get),
    SYMBOL(ctx_strerror), SYMBOL(encode),      SYMBOL(decode),
#undef SYMBOL
};

static struct dlopen_library library = {
    .file = "libmunge.so.2",
    .used = "under Slurm, nodes prove who they are with libmunge",
    .remedy = "Install it (Debian: libmunge2), or give the job a secret of its own "
              "(--token-file).",
    .symbols = symbols,
    .count = ARRAY_LEN(symbols),
};

static int munge_load(struct muster_error *err)
{
    return dlopen_load(&library, err);
}

static struct munge_ctx *context(void)
{
    const char *socket = getenv("MUSTER_MUNGE_SOCKET");
    struct munge_ctx *c = munge.ctx_create();

    if (!c)
        return NULL;
    /* Always encrypt, whatever default the site has configured. */
    (void)munge.ctx_set(c, CIPHER_TYPE, AES_128);
    (void)munge.ctx_set(c, TIME_TO_LIVE, LIVES_S);
    (void)munge.ctx_set(c, UID_RESTRICTION, geteuid());
    if (socket)
        (void)munge.ctx_set(c, SOCKET, socket);
    return c;
}

int munge_available(struct muster_error *err)
{
    struct munge_ctx *c;
    const char *path = NULL;
    struct stat st;
    int rc = munge_load(err);

    if (rc < 0)
        return rc;
    c = context();
    if (!c)
        return err_nomem(err);
    if (munge.ctx_get(c, SOCKET, &path) != 0 || !path || stat(path, &st) < 0)
        rc = err_set(err, MUSTER_ENOTSUP, "munged does not run here: no socket at %s",
                     path ? path : "?");
    munge.ctx_destroy(c);
    return rc;
}

static void munge_failed(struct munge_job *j, struct munge_ctx *c, int why)
{
    (void)err_set(&j->err, MUSTER_EACCES, "munge: %s%s",
                  c ? munge.ctx_strerror(c) : "out of memory",
                  why == EXPIRED || why == REWOUND
                      ? "; the clocks of the two machines are apart (check NTP)"
                  : why == UNAUTHORIZED ? "; it is another user's job"
                  : why == SOCKET_ERROR ? "; is munged running on this machine?"
                                        : "");
}

void munge_make(void *job)
{
    struct munge_job *j = job;
    char *text = NULL;
    struct munge_ctx *c;
    int why = 0;

    if (munge_load(&j->err) < 0)
        return;
    c = context();
    if (c)
        why = munge.encode(&text, c, j->payload, MUNGE_PAYLOAD);
    if (!c || why)
        munge_failed(j, c, why);
    else if (strlen(text) > AUTH_CREDENTIAL)
        (void)err_set(&j->err, MUSTER_EFULL,
                      "munge: the credential is too long (%zu bytes)", strlen(text));
    else
        (void)snprintf(j->credential, sizeof j->credential, "%s", text);
    free(text); /* libmunge allocates with malloc. */
    if (c)
        munge.ctx_destroy(c);
}

void munge_take(void *job)
{
    struct munge_job *j = job;
    void *bytes = NULL;
    struct munge_ctx *c;
    int n = 0, why = 0;
    uid_t uid = (uid_t)-1;
    gid_t gid;

    if (munge_load(&j->err) < 0)
        return;
    c = context();
    if (c)
        why = munge.decode(j->credential, c, &bytes, &n, &uid, &gid);
    if (!c || why)
        munge_failed(j, c, why);
    else if (uid != geteuid())
        (void)err_set(&j->err, MUSTER_EACCES,
                      "munge: the store belongs to user %u, this node to %u",
                      (unsigned)uid, (unsigned)geteuid());
    else if (n != (int)MUNGE_PAYLOAD)
        (void)err_set(&j->err, MUSTER_EPROTO,
                      "munge: the credential was not made for this purpose");
    else
        memcpy(j->payload, bytes, MUNGE_PAYLOAD);
    if (bytes)
        explicit_bzero(bytes, (size_t)n);
    free(bytes);
    if (c)
        munge.ctx_destroy(c);
}
