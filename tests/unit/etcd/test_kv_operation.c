/* test_kv_operation.c - one operation on a key: what is asked for, v2 and v3 alike,
 * what each answer means, and when to ask once more. */
#include "etcd_said.h"

#define KEY "/torch/elastic/rendezvous/job"

struct row_ask {
    enum etcd_api api;
    enum kv_operation_kind kind;
    const char *path, *value;
    enum etcd_cond cond;
    uint64_t token, ttl_s, revision;
    int64_t lease;
    const char *change_key;
    bool unique, directory;
};

static int make(struct kv_operation *a, const struct row_ask *row)
{
    const char *path = row->path ? row->path : KEY;
    const struct etcd_put put = {
        .path = span_str(path),
        .value = span_str(row->value ? row->value : ""),
        .cond = row->cond,
        .token = row->token,
        .ttl_s = row->ttl_s,
        .lease = row->lease,
        .change_key =
            row->change_key ? span_str(row->change_key) : (struct span){ NULL, 0 },
        .unique = row->unique,
    };
    const int rc = row->kind == KV_OPERATION_PUT
                       ? kv_operation_init_put(a, row->api, &put)
                       : kv_operation_init(a, row->api, row->kind, span_str(path));

    if (rc < 0)
        return rc;
    a->revision = row->revision;
    a->directory = row->directory;
    return 0;
}

/* ---- What is asked ---- */

#define TXN "POST /v3/kv/txn "

/* base64: /k L2s=, v dg==, /b L2I=, /d/ L2Qv, /d0 L2Qw */
static const struct {
    const char *says;
    struct row_ask ask;
    const char *want;
    bool once;
} requests[] = {
    { "v2: a read asks the leader",
      { ETCD_V2, KV_OPERATION_GET, "/k" },
      "GET /v2/keys/k?quorum=true" },
    { "v2: so does a listing",
      { ETCD_V2, KV_OPERATION_LIST, "/d/" },
      "GET /v2/keys/d/?quorum=true" },
    { "v2: a plain write may be repeated",
      { ETCD_V2, KV_OPERATION_PUT, "/k", "v" },
      "PUT /v2/keys/k value=v" },
    { "v2: an empty value is a value",
      { ETCD_V2, KV_OPERATION_PUT, "/k", "" },
      "PUT /v2/keys/k value=" },
    { "v2: if absent; nobody could tell whose it is",
      { ETCD_V2, KV_OPERATION_PUT, "/k", "v", ETCD_IF_ABSENT, .ttl_s = 7200 },
      "PUT /v2/keys/k value=v&ttl=7200&prevExist=false",
      true },
    { "v2: if unchanged; the value is ours alone",
      { ETCD_V2, KV_OPERATION_PUT, "/k", "v", ETCD_IF_TOKEN, 7, .unique = true },
      "PUT /v2/keys/k value=v&prevIndex=7" },
    { "v2: a key", { ETCD_V2, KV_OPERATION_DELETE, "/k" }, "DELETE /v2/keys/k" },
    { "v2: all below it",
      { ETCD_V2, KV_OPERATION_DELETE, "/d", .directory = true },
      "DELETE /v2/keys/d?dir=true&recursive=true" },
    { "v2: a wait begins behind what was seen",
      { ETCD_V2, KV_OPERATION_WAIT, "/k", .revision = 41 },
      "GET /v2/keys/k?wait=true&waitIndex=42",
      true },
    { "v2: of a directory, for all below it",
      { ETCD_V2, KV_OPERATION_WAIT, "/d/", .revision = 41 },
      "GET /v2/keys/d/?wait=true&waitIndex=42&recursive=true",
      true },
    { "v3: a read",
      { ETCD_V3, KV_OPERATION_GET, "/k" },
      "POST /v3/kv/range {\"key\":\"L2s=\"}" },
    { "v3: a listing ends behind the last key below it",
      { ETCD_V3, KV_OPERATION_LIST, "/d/" },
      "POST /v3/kv/range {\"key\":\"L2Qv\",\"range_end\":\"L2Qw\"}" },
    { "v3: a plain write compares nothing",
      { ETCD_V3, KV_OPERATION_PUT, "/k", "v" },
      TXN "{\"compare\":[],\"success\":[{\"request_put\":{\"key\":\"L2s=\",\"value\":"
          "\"dg==\"}}],\"failure\":[{\"request_range\":{\"key\":\"L2s=\"}}]}" },
    { "v3: if absent, under a lease, with the change_key under the same",
      { ETCD_V3, KV_OPERATION_PUT, "/k", "v", ETCD_IF_ABSENT, .token = 9, .lease = 5,
        .change_key = "/b", .unique = true },
      TXN "{\"compare\":[{\"key\":\"L2s=\",\"target\":\"CREATE\",\"result\":\"EQUAL\","
          "\"create_revision\":\"0\"}],\"success\":[{\"request_put\":{\"key\":\"L2s=\","
          "\"value\":\"dg==\",\"lease\":\"5\"}},{\"request_put\":{\"key\":\"L2I=\","
          "\"value\":\"\",\"lease\":\"5\"}}],\"failure\":[{\"request_range\":{\"key\":"
          "\"L2s=\"}}]}" },
    { "v3: if unchanged; nobody could tell whose it is",
      { ETCD_V3, KV_OPERATION_PUT, "/k", "v", ETCD_IF_TOKEN, 7 },
      TXN "{\"compare\":[{\"key\":\"L2s=\",\"target\":\"MOD\",\"result\":\"EQUAL\","
          "\"mod_revision\":\"7\"}],\"success\":[{\"request_put\":{\"key\":\"L2s=\","
          "\"value\":\"dg==\"}}],\"failure\":[{\"request_range\":{\"key\":\"L2s=\"}}]}",
      true },
    { "v3: a key",
      { ETCD_V3, KV_OPERATION_DELETE, "/k" },
      TXN "{\"compare\":[],\"success\":[{\"request_delete_range\":{\"key\":\"L2s=\"}}],"
          "\"failure\":[]}" },
    { "v3: all below it",
      { ETCD_V3, KV_OPERATION_DELETE, "/d/", .directory = true },
      TXN "{\"compare\":[],\"success\":[{\"request_delete_range\":{\"key\":\"L2Qv\","
          "\"range_end\":\"L2Qw\"}}],\"failure\":[]}" },
};

static void asks(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(requests); i++) {
        const char *says = requests[i].says;
        const enum kv_operation_kind kind = requests[i].ask.kind;
        struct kv_operation a;
        struct etcd_msg m;

        etcd_msg_init(&m);
        assert_int_equal(make(&a, &requests[i].ask), 0);
        assert_int_equal(kv_operation_encode(&a, &m), 0);
        msg_is(says, &m, requests[i].want);
        number_is(says, "once", kv_operation_once(&a), requests[i].once);
        number_is(says, "what is expected", kv_operation_expect(&a),
                  kind == KV_OPERATION_GET || kind == KV_OPERATION_LIST
                      ? ETCD3_EXPECT_RANGE
                      : ETCD3_EXPECT_TXN);
        etcd_msg_fini(&m);
        kv_operation_fini(&a);
    }
}

/* v3 waits by a stream: to ask for one by a request is our own mistake. */
static void no_wait_by_v3(void **state)
{
    struct kv_operation a;
    struct etcd_msg m;

    (void)state;
    etcd_msg_init(&m);
    assert_int_equal(kv_operation_init(&a, ETCD_V3, KV_OPERATION_WAIT, span_str("/k")),
                     0);
    assert_int_equal(kv_operation_encode(&a, &m), MUSTER_EBUG);
    etcd_msg_fini(&m);
    kv_operation_fini(&a);
    kv_operation_fini(&a); /* finished already, */
    kv_operation_fini(NULL);
}

/* ---- What an answer means ---- */

#define LOST2  "412 9 {\"errorCode\":101,\"message\":\"Compare failed\",\"index\":9}"
#define GONE2  "404 9 {\"errorCode\":100,\"message\":\"Key not found\",\"index\":9}"
#define CLEAR2 "400 9 {\"errorCode\":401,\"message\":\"cleared\",\"index\":9}"
#define NODE2(index, value, modified)                                                  \
    "200 " index " {\"node\":{\"key\":\"" KEY "\",\"value\":\"" value                  \
    "\",\"modifiedIndex\":" modified "}}"
#define LOST3(kvs)                                                                     \
    "200 0 {\"header\":{\"revision\":\"9\"},\"responses\":[{\"response_range\":{" kvs  \
    "}}]}"
#define WON3                                                                           \
    "200 0 {\"header\":{\"revision\":\"9\"},\"succeeded\":true,"                       \
    "\"responses\":[{\"response_put\":{}}]}"

/* An answer, or the code of nobody having answered; and what is asked after it. */
struct step {
    const char *said;
    int status;
};

static const struct row {
    const char *says;
    struct row_ask ask;
    struct step steps[2]; /* a second one: the first must ask once more */
    const char *again;    /* ... and this */
    int status;
    bool present;
    const char *value;
    uint64_t token, revision;
    bool more; /* not over yet: the same is asked again */
} rows[] = {
    /* v2, get */
    { "a key is there",
      { ETCD_V2 },
      { { "=v2-get" } },
      .present = true,
      .value = "gASV=",
      .token = 4,
      .revision = 4 },
    { "a missing key is not a failure",
      { ETCD_V2 },
      { { "=v2-get-missing" } },
      .revision = 3 },
    { "nobody answered",
      { ETCD_V2 },
      { { NULL, MUSTER_ECONN } },
      .status = MUSTER_ECONN },
    { "not found, but by nobody",
      { ETCD_V2 },
      { { NULL, MUSTER_ENOENT } },
      .status = MUSTER_ENOENT },
    { "no right to it",
      { ETCD_V2 },
      { { "401 9 {\"errorCode\":110,\"message\":\"The request requires user "
          "authentication\",\"index\":9}" } },
      .status = MUSTER_EACCES },
    /* v2, put */
    { "created",
      { ETCD_V2, KV_OPERATION_PUT, .value = "gASV=", .cond = ETCD_IF_ABSENT },
      { { "=v2-create" } },
      .present = true,
      .value = "gASV=",
      .token = 4,
      .revision = 4 },
    { "swapped",
      { ETCD_V2, KV_OPERATION_PUT, .value = "gASW", .cond = ETCD_IF_TOKEN },
      { { "=v2-swap" } },
      .present = true,
      .value = "gASW",
      .token = 5,
      .revision = 5 },
    { "an index from before the write",
      { ETCD_V2, KV_OPERATION_PUT, .value = "x" },
      { { NODE2("6", "x", "8") } },
      .present = true,
      .value = "x",
      .token = 8,
      .revision = 8 },
    { "created by another: what it holds is read",
      { ETCD_V2, KV_OPERATION_PUT, .value = "ours", .cond = ETCD_IF_ABSENT,
        .unique = true },
      { { "=v2-create-again" }, { "=v2-get" } },
      "GET /v2/keys" KEY "?quorum=true",
      MUSTER_EEXIST,
      true,
      "gASV=",
      4,
      4 },
    { "a compare lost: what is there is read",
      { ETCD_V2, KV_OPERATION_PUT, .value = "ours", .cond = ETCD_IF_TOKEN, .token = 4,
        .unique = true },
      { { "=v2-swap-lost" }, { NODE2("9", "theirs", "5") } },
      "GET /v2/keys" KEY "?quorum=true",
      MUSTER_EEXIST,
      true,
      "theirs",
      5,
      9 },
    { "lost to itself: the first answer got lost",
      { ETCD_V2, KV_OPERATION_PUT, .value = "ours", .cond = ETCD_IF_TOKEN, .token = 4,
        .unique = true },
      { { LOST2 }, { NODE2("9", "ours", "5") } },
      "GET /v2/keys" KEY "?quorum=true",
      0,
      true,
      "ours",
      5,
      9 },
    { "the same value, but anybody may write that",
      { ETCD_V2, KV_OPERATION_PUT, .value = "1", .cond = ETCD_IF_TOKEN, .token = 4 },
      { { LOST2 }, { NODE2("9", "1", "5") } },
      "GET /v2/keys" KEY "?quorum=true",
      MUSTER_EEXIST,
      true,
      "1",
      5,
      9 },
    { "lost, and gone before it was read",
      { ETCD_V2, KV_OPERATION_PUT, .value = "ours", .cond = ETCD_IF_TOKEN, .token = 4,
        .unique = true },
      { { LOST2 }, { GONE2 } },
      "GET /v2/keys" KEY "?quorum=true",
      MUSTER_EEXIST,
      .revision = 9 },
    { "lost, and nobody says to whom",
      { ETCD_V2, KV_OPERATION_PUT, .value = "ours", .cond = ETCD_IF_TOKEN, .token = 4,
        .unique = true },
      { { LOST2 }, { NULL, MUSTER_ETIMEDOUT } },
      "GET /v2/keys" KEY "?quorum=true",
      MUSTER_ETIMEDOUT },
    { "expired meanwhile: lost, and nothing is there",
      { ETCD_V2, KV_OPERATION_PUT, .value = "ours", .cond = ETCD_IF_TOKEN, .token = 4 },
      { { GONE2 } },
      .status = MUSTER_EEXIST,
      .revision = 9 },
    { "not found where nothing was compared",
      { ETCD_V2, KV_OPERATION_PUT, .value = "ours" },
      { { GONE2 } },
      .status = MUSTER_ENOENT },
    { "a write whose answer got lost",
      { ETCD_V2, KV_OPERATION_PUT, .value = "ours", .cond = ETCD_IF_TOKEN },
      { { NULL, MUSTER_EHANGUP } },
      .status = MUSTER_EHANGUP },
    { "a directory is in the way",
      { ETCD_V2, KV_OPERATION_PUT, .value = "x" },
      { { "=v2-not-a-file" } },
      .status = MUSTER_EPROTO },
    /* v2, delete and wait */
    { "deleted",
      { ETCD_V2, KV_OPERATION_DELETE },
      { { "=v2-delete" } },
      .present = true,
      .revision = 6 },
    { "gone already", { ETCD_V2, KV_OPERATION_DELETE }, { { GONE2 } }, .revision = 9 },
    { "not deleted",
      { ETCD_V2, KV_OPERATION_DELETE },
      { { NULL, MUSTER_EREFUSED } },
      .status = MUSTER_EREFUSED },
    { "an event comes",
      { ETCD_V2, KV_OPERATION_WAIT },
      { { NODE2("40", "x", "42") } },
      .revision = 42 },
    { "history is gone: read again",
      { ETCD_V2, KV_OPERATION_WAIT },
      { { "=v2-watch-cleared" } },
      .revision = 1106 },
    { "so it is by the server's own index",
      { ETCD_V2, KV_OPERATION_WAIT },
      { { CLEAR2 } },
      .revision = 9 },
    { "a long poll ends without an event",
      { ETCD_V2, KV_OPERATION_WAIT },
      { { NULL, MUSTER_ETIMEDOUT } },
      .status = MUSTER_ETIMEDOUT,
      .more = true },
    { "a long poll breaks",
      { ETCD_V2, KV_OPERATION_WAIT },
      { { NULL, MUSTER_EHANGUP } },
      .status = MUSTER_EHANGUP,
      .more = true },
    { "a wait that nobody takes",
      { ETCD_V2, KV_OPERATION_WAIT },
      { { NULL, MUSTER_EREFUSED } },
      .status = MUSTER_EREFUSED },
    /* v3 */
    { "v3: a key is there",
      { ETCD_V3 },
      { { "=v3-range" } },
      .present = true,
      .value = "one",
      .token = 2,
      .revision = 2 },
    { "v3: a missing key is not a failure",
      { ETCD_V3 },
      { { "=v3-range-missing" } },
      .revision = 1 },
    { "v3: nobody answered",
      { ETCD_V3 },
      { { NULL, MUSTER_ECONN } },
      .status = MUSTER_ECONN },
    { "v3: denied", { ETCD_V3 }, { { "=v3-auth-denied" } }, .status = MUSTER_EACCES },
    { "v3: created",
      { ETCD_V3, KV_OPERATION_PUT, .value = "one", .cond = ETCD_IF_ABSENT },
      { { "=v3-create" } },
      .present = true,
      .value = "one",
      .token = 2,
      .revision = 2 },
    { "v3: created by another: the answer says what it holds",
      { ETCD_V3, KV_OPERATION_PUT, .value = "ours", .cond = ETCD_IF_ABSENT,
        .unique = true },
      { { "=v3-create-lost" } },
      NULL,
      MUSTER_EEXIST,
      true,
      "one",
      2,
      2 },
    { "v3: lost to itself: the first answer got lost",
      { ETCD_V3, KV_OPERATION_PUT, .value = "one", .cond = ETCD_IF_ABSENT,
        .unique = true },
      { { "=v3-create-lost" } },
      NULL,
      0,
      true,
      "one",
      2,
      2 },
    { "v3: the same value, but anybody may write that",
      { ETCD_V3, KV_OPERATION_PUT, .value = "one", .cond = ETCD_IF_ABSENT },
      { { "=v3-create-lost" } },
      NULL,
      MUSTER_EEXIST,
      true,
      "one",
      2,
      2 },
    { "v3: won, with a newer revision than was compared",
      { ETCD_V3, KV_OPERATION_PUT, .value = "ours", .cond = ETCD_IF_TOKEN, .token = 4 },
      { { WON3 } },
      .present = true,
      .value = "ours",
      .token = 9,
      .revision = 9 },
    { "v3: expired meanwhile: lost, and nothing is there",
      { ETCD_V3, KV_OPERATION_PUT, .value = "ours", .cond = ETCD_IF_TOKEN, .token = 4,
        .unique = true },
      { { LOST3("") } },
      .status = MUSTER_EEXIST,
      .revision = 9 },
    { "v3: an empty value of ours is not what is missing",
      { ETCD_V3, KV_OPERATION_PUT, .value = "", .cond = ETCD_IF_TOKEN, .token = 4,
        .unique = true },
      { { LOST3("") } },
      .status = MUSTER_EEXIST,
      .revision = 9 },
    { "v3: our lease is gone",
      { ETCD_V3, KV_OPERATION_PUT, .value = "x", .lease = 77 },
      { { "=v3-put-no-lease" } },
      .status = MUSTER_ENOENT },
    { "v3: too large",
      { ETCD_V3, KV_OPERATION_PUT, .value = "x" },
      { { "=v3-too-large" } },
      .status = MUSTER_EINVAL },
    { "v3: deleted",
      { ETCD_V3, KV_OPERATION_DELETE },
      { { "200 0 {\"header\":{\"revision\":\"9\"},\"succeeded\":true,\"responses\":[{"
          "\"response_delete_range\":{\"deleted\":\"2\"}}]}" } },
      .present = true,
      .revision = 9 },
    { "v3: gone already",
      { ETCD_V3, KV_OPERATION_DELETE },
      { { "=v3-delete" } },
      .revision = 4 },
    { "v3: an answer of no responses",
      { ETCD_V3, KV_OPERATION_DELETE },
      { { "200 0 {\"header\":{\"revision\":\"9\"}}" } },
      .revision = 9 },
};

/* As etcd/core/retry.c makes them: the replies stay with the caller. */
struct told {
    struct said said;
    struct etcd2_reply v2;
    struct etcd3_reply v3;
    struct etcd_answer answer;
};

static const struct etcd_answer *tell(struct told *t, const struct kv_operation *a,
                                      const struct step *step, int *status)
{
    *t = (struct told){ .v2 = { .error = 0 } };
    *status = step->status;
    if (!step->said)
        return NULL;
    t->said = said_of(step->said);
    if (a->api == ETCD_V2) {
        assert_int_equal(etcd2_decode(&t->said.http, &t->v2, NULL), 0);
        *status = t->v2.error ? etcd2_error(&t->v2, NULL) : 0;
        t->answer.v2 = &t->v2;
    } else {
        const enum etcd3_expect expect = kv_operation_expect(a);

        assert_int_equal(etcd3_decode(&t->said.http, expect, &t->v3, NULL), 0);
        *status = t->v3.error ? etcd3_error(&t->v3, NULL) : 0;
        t->answer.v3 = &t->v3;
    }
    return &t->answer;
}

static void told_fini(struct told *t)
{
    etcd2_reply_fini(&t->v2);
    etcd3_reply_fini(&t->v3);
    said_fini(&t->said);
}

static void asks_again(const struct row *row, struct kv_operation *a)
{
    struct told t;
    struct etcd_held held;
    struct etcd_msg m;
    int status;
    const struct etcd_answer *answer = tell(&t, a, &row->steps[0], &status);

    number_is(row->says, "done at once", kv_operation_answer(a, &status, answer, &held),
              0);
    told_fini(&t);
    etcd_msg_init(&m);
    assert_int_equal(kv_operation_encode(a, &m), 0);
    msg_is(row->says, &m, row->again);
    etcd_msg_fini(&m);
}

static void answers(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const struct row *row = &rows[i];
        struct etcd_held held;
        struct kv_operation a;
        struct told t;
        int status;

        assert_int_equal(make(&a, &row->ask), 0);
        if (row->again)
            asks_again(row, &a);
        const struct etcd_answer *answer =
            tell(&t, &a, &row->steps[row->again != NULL], &status);
        const bool done = kv_operation_answer(&a, &status, answer, &held);

        number_is(row->says, "done", done, !row->more);
        code_is(row->says, status, row->status);
        number_is(row->says, "present", held.present, row->present);
        span_is(row->says, "value", held.value, row->value);
        number_is(row->says, "token", (long long)held.token, (long long)row->token);
        number_is(row->says, "revision", (long long)held.revision,
                  (long long)row->revision);
        assert_null(held.items);
        told_fini(&t);
        kv_operation_fini(&a);
    }
}

/* ---- Listings ---- */

/* The same three keys by both interfaces, and one that is not below the directory: a
 * server that answers that is not to lead us out of our own buffer. */
#define LIST2                                                                          \
    "200 9 {\"node\":{\"key\":\"/d\",\"dir\":true,\"nodes\":["                         \
    "{\"key\":\"/d/a\",\"value\":\"1\",\"modifiedIndex\":3},"                          \
    "{\"key\":\"/d/sub\",\"dir\":true,\"modifiedIndex\":4},"                           \
    "{\"key\":\"/d/\",\"value\":\"itself\",\"modifiedIndex\":4},"                      \
    "{\"key\":\"/\",\"value\":\"short\",\"modifiedIndex\":4},"                         \
    "{\"key\":\"/elsewhere\",\"value\":\"2\",\"modifiedIndex\":5},"                    \
    "{\"key\":\"/d/b\",\"modifiedIndex\":6}]}}"
#define LIST3                                                                          \
    "200 0 {\"header\":{\"revision\":\"9\"},\"kvs\":["                                 \
    "{\"key\":\"L2QvYQ==\",\"value\":\"MQ==\",\"mod_revision\":\"3\"},"                \
    "{\"key\":\"L2Qv\",\"value\":\"MQ==\",\"mod_revision\":\"4\"},"                    \
    "{\"key\":\"\",\"value\":\"MQ==\",\"mod_revision\":\"4\"},"                        \
    "{\"key\":\"L2Vsc2V3aGVyZQ==\",\"mod_revision\":\"5\"},"                           \
    "{\"key\":\"L2QvYg==\",\"mod_revision\":\"6\"}],\"count\":\"5\"}"

static void listings(void **state)
{
    static const struct {
        const char *says;
        enum etcd_api api;
        struct step step;
        int status;
        bool present;
        size_t count;
        uint64_t revision;
    } lists[] = {
        { "v2: children", ETCD_V2, { LIST2 }, 0, true, 2, 9 },
        { "v2: none", ETCD_V2, { "200 9 {\"node\":{\"dir\":true}}" }, 0, true, 0, 9 },
        { "v2: no directory", ETCD_V2, { GONE2 }, 0, false, 0, 9 },
        { "v2: nobody", ETCD_V2, { NULL, MUSTER_ECONN }, MUSTER_ECONN, false, 0, 0 },
        { "v3: keys", ETCD_V3, { LIST3 }, 0, true, 2, 9 },
        { "v3: none", ETCD_V3, { "=v3-range-missing" }, 0, false, 0, 1 },
        { "v3: nobody", ETCD_V3, { NULL, MUSTER_ECONN }, MUSTER_ECONN, false, 0, 0 },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        const char *says = lists[i].says;
        struct etcd_held held;
        struct kv_operation a;
        struct told t;
        int status;

        assert_int_equal(
            kv_operation_init(&a, lists[i].api, KV_OPERATION_LIST, span_str("/d/")), 0);
        const struct etcd_answer *answer = tell(&t, &a, &lists[i].step, &status);
        assert_true(kv_operation_answer(&a, &status, answer, &held));
        code_is(says, status, lists[i].status);
        number_is(says, "present", held.present, lists[i].present);
        number_is(says, "revision", (long long)held.revision,
                  (long long)lists[i].revision);
        number_is(says, "count", (long long)held.count, (long long)lists[i].count);
        if (held.count) {
            span_is(says, "first key", held.items[0].key, "a");
            span_is(says, "first value", held.items[0].value, "1");
            number_is(says, "first token", (long long)held.items[0].token, 3);
            span_is(says, "second key", held.items[1].key, "b");
            span_is(says, "second value", held.items[1].value, "");
            number_is(says, "second token", (long long)held.items[1].token, 6);
        }
        told_fini(&t);
        kv_operation_fini(&a);
    }
}

/* ---- Memory ---- */

static void out_of_memory(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(requests); i++) {
        for (struct failing f = failing_first(); failing_next(&f);) {
            struct kv_operation a;
            struct etcd_msg m;
            int rc = make(&a, &requests[i].ask);

            etcd_msg_init(&m);
            assert_int_equal(rc, failing_rc(&f));
            if (rc == 0) {
                rc = kv_operation_encode(&a, &m);
                assert_int_equal(rc, failing_rc(&f));
                kv_operation_fini(&a);
            } else {
                assert_null(a.path.p); /* nothing to finish */
            }
            etcd_msg_fini(&m);
        }
    }
}

/* A listing that there is no memory for is not an empty one, and may be asked for
 * again. */
static void no_memory_for_a_listing(void **state)
{
    static const struct step steps[] = { [ETCD_V2] = { LIST2 }, [ETCD_V3] = { LIST3 } };

    (void)state;
    for (enum etcd_api api = ETCD_V2; api <= ETCD_V3; api++) {
        struct etcd_held held;
        struct kv_operation a;
        struct told t;
        int status;

        assert_int_equal(kv_operation_init(&a, api, KV_OPERATION_LIST, span_str("/d/")),
                         0);
        const struct etcd_answer *answer = tell(&t, &a, &steps[api], &status);
        for (struct failing f = failing_first(); failing_next(&f);) {
            status = 0;
            assert_true(kv_operation_answer(&a, &status, answer, &held));
            code_is("a listing", status, f.nth == 1 ? MUSTER_ENOMEM : 0);
            number_is("a listing", "count", (long long)held.count, f.nth == 1 ? 0 : 2);
        }
        told_fini(&t);
        kv_operation_fini(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(asks),          cmocka_unit_test(no_wait_by_v3),
        cmocka_unit_test(answers),       cmocka_unit_test(listings),
        cmocka_unit_test(out_of_memory), cmocka_unit_test(no_memory_for_a_listing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
