/* test_watch_stream.c - a watch across streams: where each begins, what a line means,
 * and that nothing is left out in between without a word. */
#include "etcd_said.h"

#include "etcd/core/watch_stream.h"

#define KEY     "/muster/job/bell"
#define KEY_B64 "L211c3Rlci9qb2IvYmVsbA=="

/* Lines of a stream, as etcd writes them. */
#define LINE(revision, rest)                                                           \
    "{\"result\":{\"header\":{\"revision\":\"" revision "\"}" rest "}}"
#define CREATED(revision)  LINE(revision, ",\"created\":true")
#define EVENT(mod)         "{\"kv\":{\"key\":\"" KEY_B64 "\",\"mod_revision\":\"" mod "\"}}"
#define EVENTS(rev, which) LINE(rev, ",\"events\":[" which "]")
#define COMPACTED          LINE("0", ",\"canceled\":true,\"compact_revision\":\"30\"")
#define CANCELED           LINE("12", ",\"canceled\":true")
#define STALE                                                                          \
    "{\"error\":{\"grpc_code\":16,\"http_code\":401,\"message\":\"etcdserver: "        \
    "invalid "                                                                         \
    "auth token\"}}"

static const char *next_name(enum etcd_stream_next n)
{
    switch (n) {
    case ETCD_STREAM_ON:
        return "ON";
    case ETCD_STREAM_REOPEN:
        return "REOPEN";
    case ETCD_STREAM_FAILED:
        return "FAILED";
    }
    return "?";
}

static void next_is(const char *says, enum etcd_stream_next got,
                    enum etcd_stream_next want)
{
    if (got != want)
        fail_msg("%s: %s, not %s", says, next_name(got), next_name(want));
}

/* ---- A line ---- */

static const struct row {
    const char *says;
    int64_t from; /* where the stream began */
    bool fresh;   /* no line was seen yet */
    const char *line;
    enum etcd_stream_next want;
    int64_t next; /* where another one would begin */
    bool created, events, missed, token;
    int64_t went_back;
    int code;
    const char *text;
    unsigned behind; /* streams before this one */
} rows[] = {
    /* It begins. */
    { "created, from now on: the next change counts", 0, true, CREATED("7"), .next = 8,
      .created = true },
    { "created where we were", 8, true, CREATED("7"), .next = 8, .created = true },
    { "created, with events to come that we have not seen", 5, true, CREATED("7"),
      .next = 5, .created = true },
    { "a member that does not know yet what we saw", 42, true, CREATED("7"),
      ETCD_STREAM_FAILED, 42, .code = MUSTER_EHANGUP,
      .text = "this member has yet to catch up" },
    { "behind by one revision only", 9, true, CREATED("7"), ETCD_STREAM_FAILED, 9,
      .code = MUSTER_EHANGUP, .text = "this member has yet to catch up", .behind = 3 },
    { "restored from a backup: what we saw has not happened", 42, true, CREATED("7"),
      ETCD_STREAM_REOPEN, 8, .created = true, .missed = true, .went_back = 41,
      .behind = 4 },
    { "by one revision only", 9, true, CREATED("7"), ETCD_STREAM_REOPEN, 8,
      .created = true, .missed = true, .went_back = 8, .behind = 4 },
    /* Events. */
    { "an event", 8, false, EVENTS("12", EVENT("12")), .next = 13, .created = true,
      .events = true },
    { "several, and later ones of other keys", 8, false,
      EVENTS("20", EVENT("9") "," EVENT("12")), .next = 13, .created = true,
      .events = true },
    { "one that we know already", 8, false, EVENTS("20", EVENT("3")), .next = 8,
      .created = true, .events = true },
    { "a sign of life without events", 8, false, LINE("20", ""), .next = 8,
      .created = true },
    /* It ends. */
    { "history is compacted: from what is left, and read again", 8, false, COMPACTED,
      ETCD_STREAM_REOPEN, 30, .created = true, .missed = true },
    { "canceled: from where we were, elsewhere", 8, false, CANCELED, ETCD_STREAM_FAILED,
      8, .created = true, .code = MUSTER_EHANGUP, .text = "the watch was canceled" },
    { "an error in the stream", 8, false,
      "{\"error\":{\"grpc_code\":14,\"message\":\"etcdserver: no leader\"}}",
      ETCD_STREAM_FAILED, 8, .created = true, .code = MUSTER_ECONN,
      .text = "etcd says: etcdserver: no leader. The cluster has no leader or no "
              "quorum just now: see `etcdctl endpoint status --cluster`" },
    { "the token has run out", 8, true, STALE, ETCD_STREAM_FAILED, 8, .token = true,
      .code = MUSTER_EACCES, .text = "etcd says: etcdserver: invalid auth token" },
    { "as 3.6 says it", 8, true,
      "{\"error\":{\"code\":16,\"message\":\"etcdserver: invalid auth token\","
      "\"details\":[]}}",
      ETCD_STREAM_FAILED, 8, .token = true, .code = MUSTER_EACCES,
      .text = "etcd says: etcdserver: invalid auth token" },
    { "users have changed: signed tokens are void", 8, true,
      "{\"error\":{\"grpc_code\":2,\"message\":\"auth: revision in header is old\"}}",
      ETCD_STREAM_FAILED, 8, .token = true, .code = MUSTER_EACCES,
      .text = "etcd says: auth: revision in header is old" },
    { "as a watch is told of it", 8, true,
      LINE("12", ",\"created\":true,\"canceled\":true,\"cancel_reason\":\"rpc error: "
                 "code = InvalidArgument desc = etcdserver: revision of auth store is "
                 "old\""),
      ETCD_STREAM_FAILED, 8, .token = true, .code = MUSTER_EACCES,
      .text =
          "etcd says: rpc error: code = InvalidArgument desc = etcdserver: revision "
          "of auth store is old" },
    /* Nonsense. */
    { "a line cut short", 8, false, "{\"result\":{\"header\":{\"rev",
      ETCD_STREAM_FAILED, 8, .created = true, .code = MUSTER_EPROTO,
      .text = "the answer (HTTP status 200, 25 bytes) is not whole JSON: premature "
              "end of input near '\"rev' at byte 25" },
    { "a proxy's page", 8, true, "<html>sign in</html>", ETCD_STREAM_FAILED, 8,
      .code = MUSTER_ENOTSTORE,
      .text = "a web page came back (HTTP status 200: <html>sign in</html>): a proxy "
              "or another web server answers here, not etcd. Check host and port, and "
              "that no proxy stands between (no_proxy)" },
    { "an event of no kind", 8, false, EVENTS("12", "{\"type\":\"X\",\"kv\":{}}"),
      ETCD_STREAM_FAILED, 8, .created = true, .code = MUSTER_EPROTO,
      .text = "an event of the watch has an unknown kind" },
    { "no header", 8, true, "{\"result\":{\"created\":true}}", ETCD_STREAM_FAILED, 8,
      .code = MUSTER_EPROTO, .text = "the answer has no header" },
};

static struct etcd_stream begin(int64_t from)
{
    struct etcd_stream s;

    assert_int_equal(
        etcd_stream_init(&s, span_str(KEY), (struct span){ NULL, 0 }, false, from), 0);
    return s;
}

static void lines(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const struct row *row = &rows[i];
        struct etcd_stream s = begin(row->from);
        struct etcd_stream_news news;

        s.created = !row->fresh;
        s.tries = 3;
        s.behind = row->behind;
        next_is(row->says, etcd_stream_line(&s, span_str(row->line), &news), row->want);
        number_is(row->says, "next", s.next, row->next);
        number_is(row->says, "created", s.created, row->created);
        number_is(row->says, "events", news.events, row->events);
        number_is(row->says, "missed", news.missed, row->missed);
        number_is(row->says, "token", news.token, row->token);
        number_is(row->says, "went_back", news.went_back, row->went_back);
        code_is(row->says, news.err.code, row->code);
        text_is(row->says, news.err.text, row->text ? row->text : "");
        /* A stream ends the pauses before the next one, and nothing else does. */
        number_is(row->says, "tries", s.tries, row->fresh && row->created ? 0 : 3);
        etcd3_reply_fini(&news.reply);
        etcd_stream_fini(&s);
    }
}

/* ---- Refused: as real servers say it ---- */

/* They call such a watch "created" in the same line. Who believes that waits on a
 * stream that will never say a word. */
static void refusals(void **state)
{
#define GRANT ". Grant the user's role readwrite on the prefix of the keys"
#define DENIED                                                                         \
    "etcd says: rpc error: code = PermissionDenied desc = etcdserver: permission "     \
    "denied" GRANT
    static const struct {
        const char *said, *text;
        bool token;
    } answers[] = {
        { "=3.4/v3-watch-denied", DENIED, true },
        { "=3.4/v3-watch-none",
          "etcd says: rpc error: code = InvalidArgument desc = etcdserver: user name "
          "is empty. This cluster asks for a user: give --rdzv-conf user=NAME and the "
          "password in password_file=FILE or MUSTER_ETCD_PASSWORD",
          false },
        { "=3.4/v3-watch-stale",
          "etcd says: rpc error: code = Unauthenticated desc = etcdserver: invalid "
          "auth token",
          true },
        { "=3.5/v3-watch-denied", DENIED, true },
        { "=3.5/v3-watch-none", DENIED, true },
        { "=3.5/v3-watch-stale", DENIED, true }, /* so it may always be the token */
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
        struct said said = said_of(answers[i].said);
        struct etcd_stream s = begin(3);
        struct etcd_stream_news news;

        s.tries = 3;
        next_is(answers[i].said, etcd_stream_line(&s, said.http.body, &news),
                ETCD_STREAM_FAILED);
        code_is(answers[i].said, news.err.code, MUSTER_EACCES);
        text_is(answers[i].said, news.err.text, answers[i].text);
        number_is(answers[i].said, "token", news.token, answers[i].token);
        number_is(answers[i].said, "next", s.next, 3);
        number_is(answers[i].said, "tries", s.tries, 3);
        assert_false(s.created);
        assert_false(news.events || news.missed);
        etcd3_reply_fini(&news.reply);
        etcd_stream_fini(&s);
        said_fini(&said);
    }
}

/* ---- The end of a stream, and an answer that is none ---- */

static void ends(void **state)
{
    static const struct {
        const char *says, *said;
        bool token;
        int code;
        const char *text;
    } answers[] = {
        { "it ended", "200 0 ", false, MUSTER_EHANGUP, "the stream ended" },
        { "in the middle of a line", "200 0 {\"result\":{\"hea", false, MUSTER_EHANGUP,
          "the stream ended" },
        { "no gateway", "404 0 404 page not found\n", false, MUSTER_ENOTSUP,
          "this server does not offer etcd's v3 API over JSON (HTTP status 404): it is "
          "another service, an etcd older than 3.4, or one that was started with "
          "--enable-grpc-gateway=false" },
        { "a proxy's page", "503 0 <html>away</html>", false, MUSTER_ENOTSTORE,
          "a web page came back (HTTP status 503: <html>away</html>): a proxy or "
          "another web server answers here, not etcd. Check host and port, and that "
          "no proxy stands between (no_proxy)" },
        { "the token has run out", "=v3-auth-stale", true, MUSTER_EACCES,
          "etcd says: etcdserver: invalid auth token" },
        { "a status without a reason", "500 0 {}", false, MUSTER_EPROTO,
          "HTTP status 500 without an error text" },
        { "a header and no stream", "202 0 {\"header\":{}}", false, MUSTER_EHANGUP,
          "the stream ended" },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
        struct said said = said_of(answers[i].said);
        struct etcd_stream_news news;

        next_is(answers[i].says, etcd_stream_ended(&said.http, &news),
                ETCD_STREAM_FAILED);
        code_is(answers[i].says, news.err.code, answers[i].code);
        text_is(answers[i].says, news.err.text, answers[i].text);
        number_is(answers[i].says, "token", news.token, answers[i].token);
        assert_false(news.events || news.missed || news.went_back);
        etcd3_reply_fini(&news.reply);
        said_fini(&said);
    }
}

/* ---- One watch, stream after stream ---- */

/* What each line of a story does, and with what request the next stream begins. */
static void taken_up_again(void **state)
{
#define WATCH "POST /v3/watch {\"create_request\":{\"key\":\"" KEY_B64 "\""
    static const struct {
        const char *says, *line; /* NULL: the stream breaks */
        const char *request;     /* of the stream after it; NULL: this one goes on */
        size_t events;
        bool missed;
    } story[] = {
        { "broken before it began: from now on, still", NULL, WATCH "}}" },
        { "begun", CREATED("7"), NULL },
        { "an event", EVENTS("9", EVENT("9")), NULL, 1 },
        { "broken", NULL, WATCH ",\"start_revision\":\"10\"}}" },
        { "broken again", NULL, WATCH ",\"start_revision\":\"10\"}}" },
        { "begun, two changes later", CREATED("11"), NULL },
        { "which come now", EVENTS("11", EVENT("10") "," EVENT("11")), NULL, 2 },
        { "canceled by a member that goes down", CANCELED,
          WATCH ",\"start_revision\":\"12\"}}" },
        { "begun too late", CREATED("40"), NULL },
        { "for history was compacted", COMPACTED, WATCH ",\"start_revision\":\"30\"}}",
          .missed = true },
        { "begun", CREATED("40"), NULL },
        { "the rest of it", EVENTS("40", EVENT("30") "," EVENT("35")), NULL, 2 },
        { "broken: the cluster is restored", NULL,
          WATCH ",\"start_revision\":\"36\"}}" },
        { "to what this member says is long ago", CREATED("5"),
          WATCH ",\"start_revision\":\"36\"}}" },
        { "which other members say, too", CREATED("5"),
          WATCH ",\"start_revision\":\"36\"}}" },
        { "which other members say, too", CREATED("5"),
          WATCH ",\"start_revision\":\"36\"}}" },
        { "which other members say, too", CREATED("5"),
          WATCH ",\"start_revision\":\"36\"}}" },
        { "to a revision that is long ago", CREATED("5"),
          WATCH ",\"start_revision\":\"6\"}}", .missed = true },
        { "begun", CREATED("5"), NULL },
        { "and counting from there", EVENTS("6", EVENT("6")), NULL, 1 },
        { "broken", NULL, WATCH ",\"start_revision\":\"7\"}}" },
    };
    struct etcd_stream s = begin(0);
    struct etcd_msg m;

    (void)state;
    etcd_msg_init(&m);
    assert_int_equal(etcd_stream_encode(&s, &m), 0);
    msg_is("the first", &m, WATCH "}}");
    etcd_msg_fini(&m);
    for (size_t i = 0; i < ARRAY_LEN(story); i++) {
        enum etcd_stream_next next = ETCD_STREAM_FAILED;

        if (story[i].line) {
            struct etcd_stream_news news;

            next = etcd_stream_line(&s, span_str(story[i].line), &news);
            number_is(story[i].says, "events",
                      news.events ? (long long)news.reply.event_count : 0,
                      (long long)story[i].events);
            number_is(story[i].says, "missed", news.missed, story[i].missed);
            etcd3_reply_fini(&news.reply);
        }
        number_is(story[i].says, "over", next != ETCD_STREAM_ON,
                  story[i].request != NULL);
        if (!story[i].request)
            continue;
        etcd_msg_init(&m);
        assert_int_equal(etcd_stream_encode(&s, &m), 0);
        msg_is(story[i].says, &m, story[i].request);
        assert_false(s.created);
        etcd_msg_fini(&m);
    }
    etcd_stream_fini(&s);
}

/* A recording, from the first line to the last. */
static void recordings(void **state)
{
    static const struct {
        const char *said;
        int64_t from, next;
        size_t events;
        bool missed;
    } streams[] = {
        { "=3.4/v3-watch", 2, 5, 3, false },
        { "=3.5/v3-watch", 2, 5, 3, false },
        { "=3.4/v3-watch-compacted", 2, 4, 0, true },
        { "=3.5/v3-watch-compacted", 2, 4, 0, true },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(streams); i++) {
        struct said said = said_of(streams[i].said);
        struct span in = said.http.body, line;
        struct etcd_stream s = begin(streams[i].from);
        size_t events = 0, seen = 0;
        bool missed = false;

        while (etcd3_next_line(in, &seen, &line)) {
            struct etcd_stream_news news;

            (void)etcd_stream_line(&s, line, &news);
            text_is(streams[i].said, news.err.text, "");
            events += news.reply.event_count;
            missed |= news.missed;
            etcd3_reply_fini(&news.reply);
            in = span_of(in.p + line.n + 1, in.n - line.n - 1);
        }
        number_is(streams[i].said, "events", (long long)events,
                  (long long)streams[i].events);
        number_is(streams[i].said, "missed", missed, streams[i].missed);
        number_is(streams[i].said, "next", s.next, streams[i].next);
        etcd_stream_fini(&s);
        said_fini(&said);
    }
}

/* Ends only, of all keys below one. */
static void ranges(void **state)
{
    struct etcd_stream s;
    struct etcd_msg m;

    (void)state;
    etcd_msg_init(&m);
    assert_int_equal(etcd_stream_init(&s, span_str("/d/"), span_str("/d0"), true, 4),
                     0);
    assert_int_equal(etcd_stream_encode(&s, &m), 0);
    msg_is("a range", &m,
           "POST /v3/watch {\"create_request\":{\"key\":\"L2Qv\",\"range_end\":\"L2Qw\""
           ",\"filters\":[\"NOPUT\"],\"start_revision\":\"4\"}}");
    etcd_msg_fini(&m);
    etcd_stream_fini(&s);
    etcd_stream_fini(&s);
}

/* ---- Memory ---- */

/* An event that there is no memory for is not taken for seen: the next stream begins
 * with it. */
static void out_of_memory(void **state)
{
    (void)state;
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct etcd_stream s;
        struct etcd_stream_news news;
        struct etcd_msg m;
        int rc =
            etcd_stream_init(&s, span_str(KEY), span_str("/muster/job/belm"), false, 8);

        assert_int_equal(rc, failing_rc(&f));
        if (rc < 0) {
            assert_true(!s.key.p && !s.end.p);
            continue;
        }
        etcd_msg_init(&m);
        rc = etcd_stream_encode(&s, &m);
        assert_int_equal(rc, failing_rc(&f));
        etcd_msg_fini(&m);
        if (etcd_stream_line(&s, span_str(EVENTS("12", EVENT("12"))), &news) ==
            ETCD_STREAM_ON) {
            assert_int_equal(failing_rc(&f), 0);
            assert_int_equal(s.next, 13);
        } else {
            assert_int_equal(news.err.code, MUSTER_ENOMEM);
            assert_int_equal(s.next, 8);
            assert_false(news.events);
        }
        etcd3_reply_fini(&news.reply);
        etcd_stream_fini(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines),         cmocka_unit_test(refusals),
        cmocka_unit_test(ends),          cmocka_unit_test(taken_up_again),
        cmocka_unit_test(recordings),    cmocka_unit_test(ranges),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
