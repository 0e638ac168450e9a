/* retry.c - see retry.h. */
#include "etcd/core/retry.h"

#include <assert.h>

#include "base/err.h"

#define OUTDATED_MOST 10u /* A token costs the server a slow hash of the password. */

uint64_t etcd_pause_ms(struct rng *rng, unsigned tries)
{
    const uint64_t ms = MIN_OF(50ull << MIN_OF(tries, 6u), 2000ull);

    return ms / 2 + rng_below(rng, ms / 2 + 1);
}

uint64_t etcd_retry_patience_ms(const struct etcd_retry *t, size_t endpoints)
{
    if (endpoints > 1)
        return t->attempt_ms;
    return t->once ? UINT64_MAX : t->attempt_ms << MIN_OF(t->tries - 1, 10u);
}

void etcd_judged_fini(struct etcd_judged *j)
{
    etcd2_reply_fini(&j->v2);
    etcd3_reply_fini(&j->v3);
}

static bool for_good(int code)
{
    return code == MUSTER_EACCES || code == MUSTER_EINVAL || code == MUSTER_ENOTSUP ||
           code == MUSTER_ENOTSTORE;
}

/* Another try is hopeless if every endpoint has refused for good. An endpoint that only
 * cannot be reached at present may still accept the request. */
static bool hopeless(const struct etcd_retry *t, size_t endpoints)
{
    return t->last.code == MUSTER_ENOMEM || t->refused >= endpoints;
}

static void retry_remember(struct etcd_retry *t, const struct etcd_outcome *o,
                           const struct muster_error *err)
{
    assert(err->code < 0);
    t->refused = for_good(err->code) ? t->refused + 1 : 0;
    /* A try that our deadline cut short says less than the one before it. But if it may
     * have brought a request to a server that must not be repeated, that counts. */
    if (err->code != MUSTER_ETIMEDOUT || !t->last.code || (o->sent && t->once))
        t->last = *err;
}

/* The try failed: decides whether to try the next endpoint, at once or after a pause,
 * or to give up. */
static enum etcd_verdict retry_fail(struct etcd_retry *t, struct rng *rng,
                                    const struct etcd_outcome *o, bool sent,
                                    struct etcd_judged *out)
{
    const unsigned n = (unsigned)o->endpoints;

    assert(n > 0 && t->last.code < 0);
    out->failed = true;
    out->err = t->last;
    out->status = t->last.code;
    /* The other endpoints are tried at once; a pause comes after all have failed. */
    out->pause_ms = t->tries % n == 0 ? etcd_pause_ms(rng, t->tries / n) : 0;
    out->pause_ms = MIN_OF(MIN_OF(out->pause_ms, t->attempt_ms), o->left_ms);
    if (hopeless(t, o->endpoints) || (sent && t->once))
        return ETCD_DONE;
    if (o->left_ms > 0)
        return ETCD_AGAIN;
    err_add(&out->err, " (gave up after %u tries)", t->tries);
    if (out->status != MUSTER_ENOMEM)
        out->status = MUSTER_ETIMEDOUT;
    return ETCD_DONE;
}

static void retry_wrap(const struct etcd_outcome *o, struct muster_error *err)
{
    err_wrap(err, o->key ? "etcd at %s, key %s" : "etcd at %s", o->where, o->key);
}

static int decode_raw(const struct etcd_http *http, struct etcd_judged *out)
{
    const int rc = etcd2_check_machines(http, &out->err);

    out->answered = rc == 0;
    out->answer.body = http->body;
    return rc;
}

static int retry_decode(struct etcd_retry *t, const struct etcd_http *http,
                        struct etcd_judged *out)
{
    if (t->raw && http->status == 200)
        return decode_raw(http, out);

    int rc = t->api == ETCD_V2 ? etcd2_decode(http, &out->v2, &out->err)
                               : etcd3_decode(http, t->expect, &out->v3, &out->err);

    /* A gateway in between answers with a 5xx page while the server is unreachable. */
    if (rc < 0 && http->status >= 500)
        out->err.code = MUSTER_ECONN;
    if (rc < 0)
        return rc;
    out->answered = true;
    if (t->api == ETCD_V2) {
        out->answer.v2 = &out->v2;
        out->status = out->v2.error ? etcd2_error(&out->v2, &out->err) : 0;
    } else {
        out->answer.v3 = &out->v3;
        out->status = out->v3.error ? etcd3_error(&out->v3, &out->err) : 0;
    }
    return 0;
}

/* How many tokens a request may ask for after this refusal: one if ours has expired or
 * the server has restarted; several if tokens become invalid one after the other
 * because somebody is changing users and roles. */
static unsigned fresh_tokens(const struct etcd_retry *t, const struct etcd3_reply *r)
{
    if (!r->error || !t->user || t->expect == ETCD3_EXPECT_TOKEN)
        return 0;
    if (etcd3_token_outdated(r))
        return OUTDATED_MOST;
    return r->error == ETCD3_UNAUTHENTICATED ? 1 : 0;
}

enum etcd_verdict etcd_retry_judge(struct etcd_retry *t, struct rng *rng,
                                   const struct etcd_outcome *o,
                                   struct etcd_judged *out)
{
    int rc = o->status;

    assert(o->status <= 0 && (o->status == 0 || o->why));
    *out = (struct etcd_judged){ .status = 0 };
    if (rc < 0)
        out->err = *o->why;
    else
        rc = retry_decode(t, &o->http, out);
    if (rc < 0) {
        retry_wrap(o, &out->err);
        retry_remember(t, o, &out->err);
        return retry_fail(t, rng, o, o->sent, out);
    }
    if (out->status == 0)
        return ETCD_DONE;
    if (t->reauthed < fresh_tokens(t, &out->v3)) {
        t->reauthed++;
        return ETCD_REAUTH;
    }
    retry_wrap(o, &out->err);
    if (out->status != MUSTER_ECONN)
        return ETCD_DONE;
    retry_remember(t, o,
                   &out->err); /* etcd itself says that another try may succeed. */
    out->answered = false;
    return retry_fail(t, rng, o, true, out);
}
