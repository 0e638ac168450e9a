/* test_retry.c - what becomes of a request after a try: done, elsewhere, after a
 * pause, with another token; and what a person reads when it was in vain. */
#include "etcd_said.h"

#include "base/err.h"
#include "etcd/core/retry.h"

#define WHERE "http://h1:2379"
#define KEY   "/muster/job/state"
#define AT    "etcd at " WHERE ", key " KEY ": "

#define PAGE                                                                           \
    " 0 <html><head><title>Bad gateway</title></head><body>the proxy cannot reach it"  \
    "</body></html>"
#define A_PAGE(status)                                                                 \
    AT "a web page came back (HTTP status " status                                     \
       ": <html><head><title>Bad gateway</title></head><body>the proxy cannot reach "  \
       "it</bo): a proxy or another web server answers here, not etcd. Check host "    \
       "and port, and that no proxy stands between (no_proxy)"
#define NO_LEADER                                                                      \
    "503 0 {\"error\":\"etcdserver: no leader\",\"code\":14,\"message\":\"...\"}"
#define LEADERLESS                                                                     \
    AT "etcd says: etcdserver: no leader. The cluster has no leader or no quorum "     \
       "just "                                                                         \
       "now: see `etcdctl endpoint status --cluster`"
#define NO_SPACE                                                                       \
    "500 0 {\"error\":\"etcdserver: mvcc: database space exceeded\",\"code\":8}"
#define OUTDATED_34                                                                    \
    "400 0 {\"error\":\"etcdserver: revision of auth store is old\",\"code\":3}"
#define OUTDATED_35 "500 0 {\"error\":\"auth: revision in header is old\",\"code\":2}"
#define REFUSED     AT "connection refused"

static const struct row {
    const char *says;
    /* the request so far */
    enum etcd_api api;
    enum etcd3_expect expect;
    bool once, raw, user;
    unsigned reauthed;
    unsigned tries; /* this one counted; 0 stands for 1 */
    int last;       /* code of the try before; 0: there was none */
    /* the try */
    const char *said; /* NULL: nobody answered, ... */
    int status;       /* ... but this */
    bool sent;
    size_t endpoints; /* 0 stands for 1 */
    bool late;        /* no time is left */
    bool nameless;    /* no key: not about one */
    /* what becomes of it */
    enum etcd_verdict verdict;
    int want;
    bool answered, failed;
    uint64_t pause_least, pause_most;
    const char *text; /* NULL: none */
} rows[] = {
    /* answers */
    { "an answer", ETCD_V3, ETCD3_EXPECT_RANGE, .said = "=v3-range", .answered = true },
    { "v2: an answer", ETCD_V2, .said = "=v2-get", .answered = true },
    { "a missing key is an answer of etcd's own", ETCD_V2, .said = "=v2-get-missing",
      .want = MUSTER_ENOENT, .answered = true,
      .text = AT "etcd says: Key not found (/torch), error 100" },
    { "so is a lost compare", ETCD_V2, .once = true, .said = "=v2-swap-lost",
      .want = MUSTER_EEXIST, .answered = true,
      .text = AT "etcd says: Compare failed ([4 != 5]), error 101" },
    { "a lease that is gone", ETCD_V3, .said = "=v3-put-no-lease",
      .want = MUSTER_ENOENT, .answered = true,
      .text = AT "etcd says: etcdserver: requested lease not found" },
    { "raw: a page is not a list of machines", ETCD_V2, .raw = true, .said = "200" PAGE,
      .sent = true, .endpoints = 3, .verdict = ETCD_AGAIN, .want = MUSTER_ENOTSTORE,
      .failed = true, .text = A_PAGE("200") },
    { "raw: nor is what has no URL", ETCD_V2, .raw = true, .said = "200 0 hello, world",
      .sent = true, .want = MUSTER_ENOTSTORE, .failed = true, .pause_least = 50,
      .pause_most = 100,
      .text = AT "the answer is not etcd's (HTTP status 200: hello, world). Check host "
                 "and port" },
    { "raw: this is one", ETCD_V2, .raw = true, .said = "=v2-machines",
      .answered = true },
    { "raw: so is an empty one", ETCD_V2, .raw = true, .said = "200 0 ",
      .answered = true },
    { "raw: but not of another status", ETCD_V2, .raw = true, .said = "=v2-not-enabled",
      .nameless = true, .want = MUSTER_ENOTSUP, .failed = true, .pause_least = 50,
      .pause_most = 100,
      .text = "etcd at " WHERE
              ": this server does not offer etcd's v2 API (HTTP status 404). Start "
              "etcd (3.2 to 3.5) with --enable-v2, or use --rdzv-backend=etcd-v3, "
              "which needs nothing enabled" },
    /* refusals that no other endpoint would take back */
    { "NOSPACE: the remedy is named", ETCD_V3, .said = NO_SPACE, .endpoints = 3,
      .want = MUSTER_EFULL, .answered = true,
      .text = AT "etcd says: etcdserver: mvcc: database space exceeded. The database "
                 "is full (NOSPACE alarm): compact and defragment it, then `etcdctl "
                 "alarm disarm`, or raise --quota-backend-bytes" },
    { "denied", ETCD_V3, .said = "=v3-auth-denied", .user = true, .want = MUSTER_EACCES,
      .answered = true,
      .text = AT "etcd says: etcdserver: permission denied. Grant the user's role "
                 "readwrite on the prefix of the keys" },
    { "no user given", ETCD_V3, .said = "=v3-auth-none", .want = MUSTER_EACCES,
      .answered = true,
      .text = AT "etcd says: etcdserver: user name is empty. This cluster asks for a "
                 "user: give --rdzv-conf user=NAME and the password in "
                 "password_file=FILE or MUSTER_ETCD_PASSWORD" },
    { "v2: no user given", ETCD_V2,
      .said = "401 0 {\"errorCode\":110,\"message\":\"The request requires user "
              "authentication\",\"cause\":\"Insufficient credentials\",\"index\":0}",
      .want = MUSTER_EACCES, .answered = true,
      .text = AT "etcd says: The request requires user authentication (Insufficient "
                 "credentials), error 110. Give a user who may read and write this "
                 "key" },
    { "too large", ETCD_V3, .said = "=v3-too-large", .want = MUSTER_EINVAL,
      .answered = true,
      .text = AT "etcd says: etcdserver: request is too large. Raise "
                 "--max-request-bytes of the servers" },
    /* tokens */
    { "the token has run out: another, and again", ETCD_V3, .user = true,
      .said = "=v3-auth-stale", .verdict = ETCD_REAUTH, .want = MUSTER_EACCES,
      .answered = true, .text = "etcd says: etcdserver: invalid auth token" },
    { "the same, as 3.6 says it", ETCD_V3, .user = true,
      .said = "401 0 {\"code\":16,\"message\":\"etcdserver: invalid auth token\","
              "\"details\":[]}",
      .verdict = ETCD_REAUTH, .want = MUSTER_EACCES, .answered = true,
      .text = "etcd says: etcdserver: invalid auth token" },
    { "a fresh one is not taken either", ETCD_V3, .user = true, .reauthed = 1,
      .said = "=v3-auth-stale", .want = MUSTER_EACCES, .answered = true,
      .text = AT "etcd says: etcdserver: invalid auth token" },
    { "nobody to ask a token for", ETCD_V3, .said = "=v3-auth-stale",
      .want = MUSTER_EACCES, .answered = true,
      .text = AT "etcd says: etcdserver: invalid auth token" },
    { "the request for a token itself", ETCD_V3, ETCD3_EXPECT_TOKEN, .user = true,
      .said = "=v3-auth-stale", .want = MUSTER_EACCES, .answered = true,
      .text = AT "etcd says: etcdserver: invalid auth token" },
    { "users have changed: signed tokens are void", ETCD_V3, .user = true,
      .said = OUTDATED_35, .verdict = ETCD_REAUTH, .want = MUSTER_EACCES,
      .answered = true, .text = "etcd says: auth: revision in header is old" },
    { "and again, in the middle of it", ETCD_V3, .once = true, .user = true,
      .reauthed = 9, .said = OUTDATED_34, .verdict = ETCD_REAUTH, .want = MUSTER_EACCES,
      .answered = true,
      .text = "etcd says: etcdserver: revision of auth store is old" },
    { "but not for ever", ETCD_V3, .user = true, .reauthed = 10, .said = OUTDATED_34,
      .want = MUSTER_EACCES, .answered = true,
      .text = AT "etcd says: etcdserver: revision of auth store is old" },
    { "a wrong password", ETCD_V3, ETCD3_EXPECT_TOKEN, .user = true, .nameless = true,
      .said = "=v3-auth-wrong", .want = MUSTER_EACCES, .answered = true,
      .text = "etcd at " WHERE ": etcd says: etcdserver: authentication failed, "
              "invalid user ID or password. Check user and password" },
    /* nobody there */
    { "one endpoint: after a pause", ETCD_V3, .status = MUSTER_EREFUSED,
      .verdict = ETCD_AGAIN, .want = MUSTER_EREFUSED, .failed = true, .pause_least = 50,
      .pause_most = 100, .text = REFUSED },
    { "three: the next at once", ETCD_V3, .status = MUSTER_EREFUSED, .endpoints = 3,
      .verdict = ETCD_AGAIN, .want = MUSTER_EREFUSED, .failed = true, .text = REFUSED },
    { "... and the third", ETCD_V3, .tries = 2, .last = MUSTER_EREFUSED,
      .status = MUSTER_EREFUSED, .endpoints = 3, .verdict = ETCD_AGAIN,
      .want = MUSTER_EREFUSED, .failed = true, .text = REFUSED },
    { "... then a pause", ETCD_V3, .tries = 3, .last = MUSTER_EREFUSED,
      .status = MUSTER_EREFUSED, .endpoints = 3, .verdict = ETCD_AGAIN,
      .want = MUSTER_EREFUSED, .failed = true, .pause_least = 50, .pause_most = 100,
      .text = REFUSED },
    { "... and longer after the next round", ETCD_V3, .tries = 6,
      .last = MUSTER_EREFUSED, .status = MUSTER_EREFUSED, .endpoints = 3,
      .verdict = ETCD_AGAIN, .want = MUSTER_EREFUSED, .failed = true,
      .pause_least = 100, .pause_most = 200, .text = REFUSED },
    { "no time is left", ETCD_V3, .tries = 4, .status = MUSTER_EREFUSED, .late = true,
      .want = MUSTER_ETIMEDOUT, .failed = true,
      .text = REFUSED " (gave up after 4 tries)" },
    { "cut short by the deadline: the try before says more", ETCD_V3, .tries = 4,
      .last = MUSTER_EUNREACH, .status = MUSTER_ETIMEDOUT, .late = true,
      .want = MUSTER_ETIMEDOUT, .failed = true,
      .text = "the try before (gave up after 4 tries)" },
    { "cut short, and there was none before", ETCD_V3, .status = MUSTER_ETIMEDOUT,
      .late = true, .want = MUSTER_ETIMEDOUT, .failed = true,
      .text = AT "timed out (gave up after 1 tries)" },
    { "no memory: no other endpoint has more", ETCD_V3, .status = MUSTER_ENOMEM,
      .endpoints = 3, .want = MUSTER_ENOMEM, .failed = true,
      .text = AT "out of memory" },
    /* written, or not? */
    { "lost on the way back: not twice", ETCD_V3, .once = true, .sent = true,
      .status = MUSTER_EHANGUP, .endpoints = 3, .want = MUSTER_EHANGUP, .failed = true,
      .text = AT "the peer closed the connection" },
    { "sent, and no answer in time: that is what counts, not the try before", ETCD_V3,
      .once = true, .sent = true, .tries = 2, .last = MUSTER_ENOTSTORE,
      .status = MUSTER_ETIMEDOUT, .endpoints = 3, .want = MUSTER_ETIMEDOUT,
      .failed = true, .text = AT "timed out" },
    { "never left: once more", ETCD_V3, .once = true, .status = MUSTER_EREFUSED,
      .endpoints = 3, .verdict = ETCD_AGAIN, .want = MUSTER_EREFUSED, .failed = true,
      .text = REFUSED },
    { "harmless twice: once more", ETCD_V3, .sent = true, .status = MUSTER_EHANGUP,
      .endpoints = 3, .verdict = ETCD_AGAIN, .want = MUSTER_EHANGUP, .failed = true,
      .text = AT "the peer closed the connection" },
    /* etcd is busy with itself */
    { "no leader: the next one may know of one", ETCD_V3, .said = NO_LEADER,
      .sent = true, .endpoints = 3, .verdict = ETCD_AGAIN, .want = MUSTER_ECONN,
      .failed = true, .text = LEADERLESS },
    { "no leader, and the write may have been taken", ETCD_V3, .once = true,
      .said = NO_LEADER, .sent = true, .endpoints = 3, .want = MUSTER_ECONN,
      .failed = true, .text = LEADERLESS },
    { "no leader for too long", ETCD_V3, .tries = 9, .said = NO_LEADER, .sent = true,
      .endpoints = 3, .late = true, .want = MUSTER_ETIMEDOUT, .failed = true,
      .pause_least = 0, .pause_most = 0,
      .text = LEADERLESS " (gave up after 9 tries)" },
    { "the leader changes under the request", ETCD_V3,
      .said = "500 0 {\"error\":\"raft proposal dropped\",\"code\":2}", .sent = true,
      .endpoints = 3, .verdict = ETCD_AGAIN, .want = MUSTER_ECONN, .failed = true,
      .text = AT "etcd says: raft proposal dropped. The cluster has no leader or no "
                 "quorum just now: see `etcdctl endpoint status --cluster`" },
    { "the member goes down", ETCD_V3,
      .said = "408 0 {\"error\":\"grpc: the client connection is closing\",\"code\":1}",
      .sent = true, .endpoints = 3, .verdict = ETCD_AGAIN, .want = MUSTER_ECONN,
      .failed = true,
      .text = AT "etcd says: grpc: the client connection is closing. This member is "
                 "going down" },
    { "v2: an election", ETCD_V2,
      .said = "500 0 {\"errorCode\":301,\"message\":\"During Leader Election\","
              "\"index\":7}",
      .sent = true, .verdict = ETCD_AGAIN, .want = MUSTER_ECONN, .failed = true,
      .pause_least = 50, .pause_most = 100,
      .text = AT "etcd says: During Leader Election (), error 301" },
    /* somebody else */
    { "a proxy's page while etcd is away", ETCD_V3, .said = "502" PAGE, .sent = true,
      .verdict = ETCD_AGAIN, .want = MUSTER_ECONN, .failed = true, .pause_least = 50,
      .pause_most = 100, .text = A_PAGE("502") },
    { "or its JSON", ETCD_V3, .said = "503 0 {\"message\":\"no upstream\"}",
      .sent = true, .verdict = ETCD_AGAIN, .want = MUSTER_ECONN, .failed = true,
      .pause_least = 50, .pause_most = 100,
      .text = AT "HTTP status 503 without an error text" },
    { "a page instead of etcd: one of three may be wrong", ETCD_V3, .said = "200" PAGE,
      .sent = true, .endpoints = 3, .verdict = ETCD_AGAIN, .want = MUSTER_ENOTSTORE,
      .failed = true, .text = A_PAGE("200") },
    { "another service", ETCD_V3, .said = "200 0 hello", .sent = true,
      .want = MUSTER_ENOTSTORE, .failed = true, .pause_least = 50, .pause_most = 100,
      .text = AT "the answer is not etcd's (HTTP status 200: hello). Check host and "
                 "port" },
    { "no gateway", ETCD_V3, .said = "404 0 404 page not found\n", .sent = true,
      .want = MUSTER_ENOTSUP, .failed = true, .pause_least = 50, .pause_most = 100,
      .text = AT "this server does not offer etcd's v3 API over JSON (HTTP status "
                 "404): it is another service, an etcd older than 3.4, or one that was "
                 "started with --enable-grpc-gateway=false" },
    { "cut off: the next try may be whole", ETCD_V3, .said = "200 0 {\"header\":{\"re",
      .sent = true, .verdict = ETCD_AGAIN, .want = MUSTER_EPROTO, .failed = true,
      .pause_least = 50, .pause_most = 100,
      .text = AT "the answer (HTTP status 200, 14 bytes) is not whole JSON: premature "
                 "end of input near '\"re' at byte 14" },
    { "cut off, after a write that is not to be repeated", ETCD_V3, .once = true,
      .said = "200 0 {\"header\":{\"re", .sent = true, .want = MUSTER_EPROTO,
      .failed = true, .pause_least = 50, .pause_most = 100,
      .text = AT "the answer (HTTP status 200, 14 bytes) is not whole JSON: premature "
                 "end of input near '\"re' at byte 14" },
    { "an empty answer", ETCD_V2, .said = "200 0 ", .sent = true, .verdict = ETCD_AGAIN,
      .want = MUSTER_EPROTO, .failed = true, .pause_least = 50, .pause_most = 100,
      .text = AT "HTTP status 200 with an empty body" },
};

static const char *verdict_name(enum etcd_verdict v)
{
    switch (v) {
    case ETCD_DONE:
        return "DONE";
    case ETCD_AGAIN:
        return "AGAIN";
    case ETCD_REAUTH:
        return "REAUTH";
    }
    return "?";
}

static void check(const struct row *row, const struct etcd_retry *t,
                  enum etcd_verdict verdict, const struct etcd_judged *j)
{
    if (verdict != row->verdict)
        fail_msg("%s: %s, not %s", row->says, verdict_name(verdict),
                 verdict_name(row->verdict));
    code_is(row->says, j->status, row->want);
    number_is(row->says, "answered", j->answered, row->answered);
    number_is(row->says, "failed", j->failed, row->failed);
    number_is(row->says, "reauthed", t->reauthed,
              row->reauthed + (row->verdict == ETCD_REAUTH));
    if (row->text)
        text_is(row->says, j->err.text, row->text);
    if (j->pause_ms < row->pause_least || j->pause_ms > row->pause_most)
        fail_msg("%s: a pause of %llu ms", row->says, (unsigned long long)j->pause_ms);
    /* Who asks again has a reason to tell if it was in vain. */
    if (verdict == ETCD_AGAIN)
        assert_true(t->last.code < 0 && t->last.text[0]);
    if (!row->answered)
        return;
    /* The answer is one of its interface, or raw. */
    number_is(row->says, "answer of v2", j->answer.v2 != NULL,
              row->api == ETCD_V2 && !row->raw);
    number_is(row->says, "answer of v3", j->answer.v3 != NULL, row->api == ETCD_V3);
}

static void judge(const struct row *row, uint64_t seed)
{
    struct etcd_retry t = { .api = row->api,
                            .expect = row->expect,
                            .once = row->once,
                            .raw = row->raw,
                            .user = row->user,
                            .reauthed = row->reauthed,
                            .attempt_ms = 3000,
                            .tries = row->tries ? row->tries : 1 };
    struct said said = { .text = NULL };
    struct muster_error why = { 0 };
    struct etcd_judged j;
    struct rng rng;

    rng_init(&rng, seed);
    if (row->last)
        err_set(&t.last, row->last, "the try before");
    if (row->said)
        said = said_of(row->said);
    else
        err_set(&why, row->status, "%s", muster_code_text(row->status));
    const struct etcd_outcome o = { .status = row->status,
                                    .http = said.http,
                                    .sent = row->sent,
                                    .why = &why,
                                    .endpoints = row->endpoints ? row->endpoints : 1,
                                    .left_ms = row->late ? 0 : 60000,
                                    .where = WHERE,
                                    .key = row->nameless ? NULL : KEY };
    const enum etcd_verdict verdict = etcd_retry_judge(&t, &rng, &o, &j);

    check(row, &t, verdict, &j);
    if (row->raw && row->answered)
        assert_true(span_eq(j.answer.body, said.http.body));
    etcd_judged_fini(&j);
    etcd_judged_fini(&j); /* and once more does no harm */
    said_fini(&said);
}

static void verdicts(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        for (uint64_t seed = 0; seed < 8; seed++)
            judge(&rows[i], seed);
}

/* ---- A request from its first try to its last ---- */

/* At three endpoints: P a web page, D v2 not enabled, R refused, T no answer in time,
 * L no leader. After `done` tries there is nothing more to hope for; 0: there is. */
static void hopes(void **state)
{
    static const struct {
        const char *says, *tries;
        unsigned done;
        int want;
    } sequences[] = {
        { "each is something else for good", "PDP", 3, MUSTER_ENOTSTORE },
        { "one is wrong, and two are away", "RRP", 0, MUSTER_ENOTSTORE },
        { "the wrong one first", "PRR", 0, MUSTER_EREFUSED },
        { "two of them silent: that is no refusal", "PTTPTT", 0, MUSTER_ENOTSTORE },
        { "one without a leader", "PDLPDL", 0, MUSTER_ECONN },
        { "the third comes back as something else", "PDRPDP", 6, MUSTER_ENOTSTORE },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(sequences); i++) {
        struct etcd_retry t = { .api = ETCD_V2, .attempt_ms = 3000 };
        enum etcd_verdict verdict = ETCD_AGAIN;
        struct etcd_judged j;
        struct rng rng;

        rng_init(&rng, 1);
        for (const char *p = sequences[i].tries; *p && verdict == ETCD_AGAIN; p++) {
            const int status = *p == 'R'   ? MUSTER_EREFUSED
                               : *p == 'T' ? MUSTER_ETIMEDOUT
                                           : 0;
            struct muster_error why = { .code = status };
            struct said said =
                said_of(*p == 'P'   ? "200" PAGE
                        : *p == 'D' ? "=v2-not-enabled"
                                    : "500 0 {\"errorCode\":301,\"index\":7}");
            const struct etcd_outcome o = { .status = status,
                                            .http = said.http,
                                            .sent = status != MUSTER_EREFUSED,
                                            .why = &why,
                                            .endpoints = 3,
                                            .left_ms = 60000,
                                            .where = WHERE };

            t.tries++;
            verdict = etcd_retry_judge(&t, &rng, &o, &j);
            etcd_judged_fini(&j);
            said_fini(&said);
        }
        number_is(sequences[i].says, "done after", verdict == ETCD_DONE ? t.tries : 0,
                  sequences[i].done);
        code_is(sequences[i].says, j.status, sequences[i].want);
    }
}

/* Three endpoints, all of them away, two seconds: every endpoint is asked as often as
 * the others, give or take one; no pause is longer than what is left; it ends. */
static void in_turn(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        struct etcd_retry t = { .api = ETCD_V3,
                                .expect = ETCD3_EXPECT_TXN,
                                .attempt_ms = 3000 };
        struct muster_error why = { 0 };
        uint64_t left = 2000, pauses = 0;
        enum etcd_verdict verdict = ETCD_AGAIN;
        struct etcd_judged j;
        struct rng rng;

        rng_init(&rng, seed);
        err_set(&why, MUSTER_EREFUSED, "connection refused");
        while (verdict == ETCD_AGAIN) {
            const struct etcd_outcome o = { .status = MUSTER_EREFUSED,
                                            .why = &why,
                                            .endpoints = 3,
                                            .left_ms = left,
                                            .where = WHERE };

            t.tries++;
            verdict = etcd_retry_judge(&t, &rng, &o, &j);
            assert_true(j.failed); /* so the client goes on to the next */
            assert_true(j.pause_ms <= left);
            assert_true(t.tries % 3 == 0 || j.pause_ms == 0);
            left -= j.pause_ms;
            pauses += j.pause_ms > 0;
            etcd_judged_fini(&j);
        }
        assert_int_equal(left, 0);
        assert_int_equal(j.status, MUSTER_ETIMEDOUT);
        /* 100, 200, 400, 800, 1600 at most, half of each at least; then the deadline.
         */
        assert_in_range(pauses, 5, 7);
        assert_in_range(t.tries, 3 * pauses, 3 * pauses + 1);
        assert_non_null(strstr(j.err.text, "connection refused (gave up after "));
    }
}

static void pauses(void **state)
{
    static const struct {
        unsigned tries;
        uint64_t most;
    } steps[] = { { 0, 50 },    { 1, 100 },          { 2, 200 },  { 3, 400 },
                  { 4, 800 },   { 5, 1600 },         { 6, 2000 }, { 7, 2000 },
                  { 64, 2000 }, { UINT32_MAX, 2000 } };
    struct rng rng;

    (void)state;
    rng_init(&rng, 1);
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        uint64_t least = UINT64_MAX, most = 0;

        for (int k = 0; k < 2000; k++) {
            const uint64_t ms = etcd_pause_ms(&rng, steps[i].tries);

            least = MIN_OF(least, ms);
            most = MAX_OF(most, ms);
        }
        /* Half of it for sure, the other half by chance, and all of that. */
        assert_in_range(least, steps[i].most / 2, steps[i].most / 2 + 10);
        assert_in_range(most, steps[i].most - 10, steps[i].most);
    }
}

/* A node that has to be heard within seconds does not rest for two of them. */
static void short_pauses(void **state)
{
    (void)state;
    for (unsigned tries = 1; tries < 100; tries++) {
        struct etcd_retry t = { .api = ETCD_V3, .attempt_ms = 500, .tries = tries };
        const struct muster_error why = { .code = MUSTER_EREFUSED };
        const struct etcd_outcome o = { .status = MUSTER_EREFUSED,
                                        .why = &why,
                                        .endpoints = 1,
                                        .left_ms = 60000,
                                        .where = WHERE };
        struct etcd_judged j;
        struct rng rng;

        rng_init(&rng, tries);
        assert_int_equal(etcd_retry_judge(&t, &rng, &o, &j), ETCD_AGAIN);
        assert_in_range(j.pause_ms, 50, 500);
        etcd_judged_fini(&j);
    }
}

static void patience(void **state)
{
    static const struct {
        const char *says;
        size_t endpoints;
        unsigned tries;
        bool once;
        uint64_t want;
    } steps[] = {
        { "the first of three", 3, 1, false, 1000 },
        { "the next may answer at once, however often", 3, 50, false, 1000 },
        { "a write, too", 3, 1, true, 1000 },
        { "one alone: its request may be lost", 1, 1, false, 1000 },
        { "or it is slow", 1, 2, false, 2000 },
        { "very slow", 1, 4, false, 8000 },
        { "no end of it", 1, 1000, false, 1024000 },
        { "not to be repeated: as long as it takes", 1, 1, true, UINT64_MAX },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        const struct etcd_retry t = { .once = steps[i].once,
                                      .attempt_ms = 1000,
                                      .tries = steps[i].tries };

        number_is(steps[i].says, "patience",
                  (long long)etcd_retry_patience_ms(&t, steps[i].endpoints),
                  (long long)steps[i].want);
    }
}

/* ---- Memory ---- */

/* An answer that there is no memory for is not an answer, whatever it said. */
static void out_of_memory(void **state)
{
    static const struct {
        enum etcd_api api;
        const char *said;
    } answers[] = { { ETCD_V2, "=v2-list" }, { ETCD_V3, "=v3-create-lost" } };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
        struct said said = said_of(answers[i].said);

        for (struct failing f = failing_first(); failing_next(&f);) {
            struct etcd_retry t = { .api = answers[i].api,
                                    .expect = ETCD3_EXPECT_TXN,
                                    .tries = 1 };
            const struct etcd_outcome o = { .http = said.http,
                                            .sent = true,
                                            .endpoints = 3,
                                            .left_ms = 1000,
                                            .where = WHERE,
                                            .key = KEY };
            struct etcd_judged j;
            struct rng rng;

            rng_init(&rng, 1);
            assert_int_equal(etcd_retry_judge(&t, &rng, &o, &j), ETCD_DONE);
            assert_int_equal(j.status, failing_rc(&f));
            assert_int_equal(j.answered, j.status == 0);
            if (!j.answered)
                text_is("no memory", j.err.text, AT "out of memory");
            etcd_judged_fini(&j);
        }
        said_fini(&said);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verdicts),      cmocka_unit_test(hopes),
        cmocka_unit_test(in_turn),       cmocka_unit_test(pauses),
        cmocka_unit_test(short_pauses),  cmocka_unit_test(patience),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
