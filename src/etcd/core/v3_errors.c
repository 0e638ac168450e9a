/* v3_errors.c - turns errors of etcd's into errors of ours, with a remedy. */
#include "base/err.h"
#include "etcd/core/v3_wire.h"

static bool says(struct span s, const char *word)
{
    return s.p && memmem(s.p, s.n, word, strlen(word)) != NULL;
}

bool etcd3_token_outdated(const struct etcd3_reply *r)
{
    return says(r->message, "revision of auth store is old") || /* 3.4 */
           says(r->message, "revision in header is old");       /* 3.5 */
}

/* The gRPC code decides, except where etcd uses one code for several things. */
static int code_of(const struct etcd3_reply *r)
{
    switch (r->error) {
    case ETCD3_NOT_FOUND:
        return MUSTER_ENOENT;
    case ETCD3_DENIED:
    case ETCD3_UNAUTHENTICATED:
        return MUSTER_EACCES;
    case ETCD3_EXHAUSTED:
        return says(r->message, "too many requests") ? MUSTER_ECONN : MUSTER_EFULL;
    case ETCD3_UNAVAILABLE:
    case ETCD3_DEADLINE:
    case ETCD3_CANCELED: /* We did not cancel it: the member is shutting down. */
        return MUSTER_ECONN;
    case ETCD3_OUT_OF_RANGE:
        return MUSTER_ESTATE;
    case ETCD3_PRECONDITION:
        return says(r->message, "already exists") ? MUSTER_EEXIST : MUSTER_EACCES;
    }
    if (says(r->message, "user name is empty") || says(r->message, "authentication") ||
        etcd3_token_outdated(r))
        return MUSTER_EACCES;
    if (says(r->message, "too large"))
        return MUSTER_EINVAL;
    /* An old gateway has the code "unknown" for a lost leader; a new one has it for a
     * request that was under way when the leader changed or the member stopped. */
    return says(r->message, "leader") || says(r->message, "timed out") ||
                   says(r->message, "proposal dropped") || says(r->message, "stopped")
               ? MUSTER_ECONN
               : MUSTER_EPROTO;
}

static const char *remedy(const struct etcd3_reply *r, int code)
{
    if (says(r->message, "space exceeded"))
        return ". The database is full (NOSPACE alarm): compact and defragment it, "
               "then `etcdctl alarm disarm`, or raise --quota-backend-bytes";
    if (says(r->message, "too large"))
        return ". Raise --max-request-bytes of the servers";
    if (says(r->message, "user name is empty"))
        return ". This cluster asks for a user: give --rdzv-conf user=NAME and the "
               "password in password_file=FILE or MUSTER_ETCD_PASSWORD";
    if (says(r->message, "not enabled"))
        return ". Leave user and password out, or `etcdctl auth enable`";
    if (says(r->message, "invalid user ID or password"))
        return ". Check user and password";
    if (r->error == ETCD3_DENIED)
        return ". Grant the user's role readwrite on the prefix of the keys";
    if (r->error == ETCD3_CANCELED)
        return ". This member is going down";
    if (code == MUSTER_ECONN)
        return ". The cluster has no leader or no quorum just now: see `etcdctl "
               "endpoint status --cluster`";
    return "";
}

int etcd3_error(const struct etcd3_reply *r, struct muster_error *err)
{
    const int code = code_of(r);

    err_set(err, code, "etcd says: %.*s%s", (int)MIN_OF(r->message.n, 300),
            r->message.p ? (const char *)r->message.p : "(nothing)", remedy(r, code));
    return code;
}
