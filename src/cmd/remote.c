/* remote.c - `muster status HOST:PORT` and `muster stacks HOST:PORT`: asks a store
 * about itself and about the jobs that use it.
 *
 * The store says whether it wants a proof of the job's secret, and after the proof it
 * lists its runs. For each run we attach to the session as an observer, which hears the
 * entries and can ask questions, but is not a node of the job. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "auth/secret.h"
#include "base/err.h"
#include "base/mem.h"
#include "cmd/ask.h"
#include "loop/clock.h"
#include "rendezvous/core/endpoint.h"
#include "stacks/service.h"
#include "status/status.h"
#include "store/client.h"
#include "store/core/reserved.h"

#define CONNECT_MS 3000u
#define SYNC_MS    2000u
#define ANSWER_MS  500u
#define RUNS_MOST  16u

/* What is found out about one run. */
struct inquiry {
    uv_loop_t loop;
    uv_timer_t limit;
    struct session *session;
    const char *run_id, *endpoint;
    struct store_status store;
    struct answer *answer;       /* borrowed: where the status goes */
    struct stack_sample *stacks; /* likewise the stacks; NULL: ask for the status */
    uint64_t wait_ms;            /* how long a node may take to read its stacks */
    bool asked;                  /* the question about stacks has ended */
};

/* Takes a status that is put together here, as if an agent had sent it: what it is made
 * of may then go. */
static void take_input(struct answer *a, const struct job_input *in)
{
    struct buf b;

    buf_init(&b, SIZE_MAX);
    job_input_encode(&b, in);
    if (buf_error(&b) == 0)
        (void)answer_take(a, buf_span(&b), NULL);
    buf_fini(&b);
}

static void inquiry_finish(struct inquiry *l, const struct session_answer *answers,
                           size_t count)
{
    const struct record *record = session_record(l->session);
    const int64_t now_us = clock_now().wall_us;
    struct gathered g = { 0 };

    if (gathered_init(&g, answers, count) == 0) {
        const struct job_input in = {
            .run_id = l->run_id,
            .endpoint = l->endpoint,
            .began_us = record->began_us ? record->began_us : now_us,
            .now_us = now_us,
            .record = record,
            .answers = g.answers,
            .answer_count = g.count,
            .store = &l->store,
        };

        take_input(l->answer, &in);
    }
    gathered_fini(&g);
    uv_stop(&l->loop);
}

static void on_answers(void *ctx, const struct session_answer *answers, size_t count,
                       bool complete)
{
    (void)complete;
    inquiry_finish(ctx, answers, count);
}

static void on_stacks(void *ctx, const struct session_answer *answers, size_t count,
                      bool complete)
{
    struct inquiry *l = ctx;

    (void)complete;
    for (size_t i = 0; i < count; i++) {
        const struct session_answer *a = &answers[i];
        char text[200];

        if (!a->missing &&
            stack_sample_parse_of(l->stacks, a->bytes, a->host, NULL) == 0)
            continue;
        (void)snprintf(text, sizeof text, "node %.*s did not send its stacks",
                       (int)MIN_OF(a->host.n, (size_t)100), (const char *)a->host.p);
        (void)stack_sample_note(l->stacks, text);
    }
    l->asked = true;
    uv_stop(&l->loop);
}

static void on_synced(void *ctx)
{
    struct inquiry *l = ctx;
    char within[32];

    if (l->stacks) {
        (void)snprintf(within, sizeof within, "%" PRIu64, l->wait_ms);
        if (session_state(l->session) != SESSION_UP ||
            session_ask(l->session, "stacks", span_str(within),
                        l->wait_ms + STACKS_TRAVEL_MS, on_stacks, l, NULL) != 0)
            uv_stop(&l->loop);
    } else if (session_ask(l->session, "status", span_of(NULL, 0), ANSWER_MS,
                           on_answers, l, NULL) != 0)
        inquiry_finish(l, NULL, 0);
}

static void on_limit(uv_timer_t *timer)
{
    struct inquiry *l = timer->data;

    if (l->stacks)
        uv_stop(&l->loop);
    else
        inquiry_finish(l, NULL, 0);
}

/* Asks about one run, and fills in its status, or the stacks. */
static void ask_run(const struct remote *r, struct inquiry *l, struct auth *auth)
{
    const struct session_opts opts = { .loop = &l->loop,
                                       .run_id = l->run_id,
                                       .host = "",
                                       .addr = "",
                                       .observer = true,
                                       .auth = auth };

    if (uv_loop_init(&l->loop) < 0)
        return;
    (void)uv_timer_init(&l->loop, &l->limit);
    l->limit.data = l;
    if (session_open(&opts, &l->session, NULL) == 0) {
        (void)uv_timer_start(&l->limit, on_limit, SYNC_MS + 4 * ANSWER_MS + l->wait_ms,
                             0);
        session_attach(l->session, r->host, r->port, false, false);
        session_sync(l->session, SYNC_MS, on_synced, l);
        (void)uv_run(&l->loop, UV_RUN_DEFAULT);
        session_close(l->session, NULL, NULL);
    }
    uv_close((uv_handle_t *)&l->limit, NULL);
    (void)uv_run(&l->loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&l->loop);
}

/* ---- what the store itself says ---- */

/* Reads keys of a store, one after the other. */
struct asking {
    uv_loop_t loop;
    struct async_store *store;
    const char *const *keys;
    struct buf *values; /* one a key; borrowed */
    size_t count, next;
    struct muster_error err;
};

static void asking_next(struct asking *q);

static void asking_end(struct asking *q, const struct muster_error *err)
{
    if (err)
        q->err = *err;
    async_store_close(q->store, NULL, NULL);
    q->store = NULL;
}

static void on_value(void *ctx, int status, const struct c10d_reply *reply,
                     const struct muster_error *err)
{
    struct asking *q = ctx;
    struct muster_error why;

    if (status == MUSTER_ETIMEDOUT) {
        (void)err_set(
            &why, MUSTER_ENOTSTORE,
            "this store is not served by muster, so it cannot say which jobs use "
            "it");
        asking_end(q, &why);
    } else if (status < 0) {
        asking_end(q, err);
    } else if (buf_append_span(&q->values[q->next], reply->value) < 0 ||
               buf_append(&q->values[q->next], "", 1) < 0) {
        (void)err_nomem(&why);
        asking_end(q, &why);
    } else {
        q->next++;
        asking_next(q);
    }
}

static void asking_next(struct asking *q)
{
    struct c10d_request get = { .op = C10D_GET };
    struct muster_error err;

    if (q->next == q->count) {
        asking_end(q, NULL);
        return;
    }
    get.key = span_str(q->keys[q->next]);
    if (async_store_call(q->store, &get, 0, CONNECT_MS, on_value, q, &err) < 0)
        asking_end(q, &err);
}

static void asking_on_open(void *ctx, int status, const struct muster_error *err)
{
    struct asking *q = ctx;

    if (status < 0)
        asking_end(q, err);
    else
        asking_next(q);
}

/* Reads the values of the keys, and puts a NUL behind each. */
static int ask_store(const struct remote *r, struct auth *auth, const char *const *keys,
                     struct buf *values, size_t count, struct muster_error *err)
{
    const struct store_client_opts opts = {
        .host = r->host, .port = r->port, .timeout_ms = CONNECT_MS, .auth = auth
    };
    struct asking q = { .keys = keys, .values = values, .count = count };
    int rc;

    if (uv_loop_init(&q.loop) < 0)
        return err_nomem(err);
    rc = store_client_open(&q.loop, &opts, asking_on_open, &q, &q.store, err);
    (void)uv_run(&q.loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&q.loop);
    if (rc == 0 && q.err.code)
        rc = err_copy(err, &q.err);
    return rc;
}

static void read_stats(const struct buf *text, struct store_status *out)
{
    unsigned long long requests = 0, answers = 0, in = 0, sent = 0, connections = 0,
                       keys = 0; /* Older releases do not report keys. */

    (void)sscanf((const char *)buf_data(text),
                 "requests %llu answers %llu bytes_in %llu bytes_out %llu connections "
                 "%llu keys %llu",
                 &requests, &answers, &in, &sent, &connections, &keys);
    *out = (struct store_status){ .present = true,
                                  .requests = requests,
                                  .answers = answers,
                                  .bytes_in = in,
                                  .bytes_out = sent,
                                  .connections = connections,
                                  .keys = keys };
}

/* Loads the secret if the store says that it wants a proof of one. */
static int find_secret(const struct remote *r, struct auth **out,
                       struct muster_error *err)
{
    static const char *const caps[] = { &RESERVED_CAPS[1] };
    struct secret_opts secret = { .token_file = r->token_file };
    struct buf words;
    int rc;

    *out = NULL;
    buf_init(&words, 4096);
    rc = ask_store(r, NULL, caps, &words, 1, err);
    const char *text = rc == 0 ? (const char *)buf_data(&words) : "";
    if (strncmp(text, RESERVED_CAPS_SECRET, sizeof RESERVED_CAPS_SECRET - 1) == 0) {
        secret.encrypt = strstr(text, RESERVED_CAPS_ENCRYPT) != NULL;
        rc = secret_load(&secret, out, err);
        if (!*out && (rc == 0 || (!r->token_file && !getenv("MUSTER_TOKEN"))))
            rc = err_set(err, MUSTER_EACCES,
                         "the job has a secret: give --token-file=FILE or set "
                         "MUSTER_TOKEN, as on its nodes");
    }
    buf_fini(&words);
    return rc;
}

/* Asks about the runs that are wanted; returns how many there were. */
static int ask_runs(const struct remote *r, char *runs, struct inquiry *l,
                    struct auth *auth, struct answers *a)
{
    struct answer none = { 0 };
    int count = 0;

    for (char *run; count < (int)RUNS_MOST && (run = strsep(&runs, "\n")) && *run;) {
        if (r->run && strcmp(run, r->run) != 0)
            continue;
        count++;
        l->run_id = run;
        l->answer = a ? &a->list[a->count] : &none;
        ask_run(r, l, auth);
        if (l->answer->told)
            a->count++;
    }
    return count;
}

/* Adds the status of a store that no job of ours uses. */
static void add_store_status(const struct inquiry *l, struct answers *a)
{
    const struct job_input in = { .backend = "store",
                                  .endpoint = l->endpoint,
                                  .now_us = clock_now().wall_us,
                                  .store = &l->store };

    take_input(&a->list[a->count], &in);
    a->count += a->list[a->count].told != NULL;
}

static int count_lines(const char *text)
{
    int n = 0;

    for (; *text; text++)
        n += *text == '\n';
    return n;
}

static int remote_get(const struct remote *r, struct answers *a,
                      struct stack_sample *stacks, uint64_t wait_ms,
                      struct muster_error *err)
{
    static const char *const keys[] = { &RESERVED_RUNS[1], &RESERVED_STATS[1] };
    struct inquiry l = { .endpoint = r->name, .stacks = stacks, .wait_ms = wait_ms };
    struct buf values[2];
    struct auth *auth = NULL;
    int rc = find_secret(r, &auth, err);

    buf_init(&values[0], 1u << 20);
    buf_init(&values[1], 4096);
    if (rc == 0)
        rc = ask_store(r, auth, keys, values, 2, err);
    if (rc == 0) {
        char *runs = (char *)(uintptr_t)buf_data(&values[0]);

        read_stats(&values[1], &l.store);
        if (stacks && !r->run && count_lines(runs) > 1)
            rc = err_set(err, MUSTER_EINVAL,
                         "several jobs use this store: name one, as in %s/RUN_ID; "
                         "`muster status %s` lists them",
                         r->name, r->name);
        else if (a && !r->run && !count_lines(runs))
            add_store_status(&l, a);
        else if (ask_runs(r, runs, &l, auth, a) == 0 || (a && a->count == 0))
            rc = err_set(err, MUSTER_ENOENT, "no job %s%sof muster uses this store",
                         r->run ? r->run : "", r->run ? " " : "");
        else if (stacks && !l.asked)
            rc = err_set(err, MUSTER_ETIMEDOUT, "the job's nodes do not answer");
    }
    if (rc != 0)
        (void)err_wrap(err, "%s", r->name);
    buf_fini(&values[0]);
    buf_fini(&values[1]);
    auth_unref(auth);
    return rc;
}

int remote_status(const struct remote *r, struct answers *a, struct muster_error *err)
{
    int rc = 0;

    *a = (struct answers){ .list = mem_calloc(RUNS_MOST, sizeof *a->list) };
    if (!a->list)
        rc = err_nomem(err);
    if (rc == 0)
        rc = remote_get(r, a, NULL, 0, err);
    if (rc != 0)
        answers_fini(a);
    return rc;
}

int remote_stacks(const struct remote *r, uint64_t wait_ms, struct stack_sample *out,
                  struct muster_error *err)
{
    const int rc = remote_get(r, NULL, out, wait_ms, err);

    stack_sample_sort(out);
    return rc;
}

bool remote_parse(const char *job, const char *token_file, struct remote *out)
{
    const char *slash = job ? strchr(job, '/') : NULL;
    char text[sizeof out->host + 8];
    struct endpoint at;
    const char *colon;

    if (!job || (size_t)snprintf(text, sizeof text, "%.*s",
                                 (int)(slash ? slash - job : (ptrdiff_t)strlen(job)),
                                 job) >= sizeof text)
        return false;
    colon = strrchr(text, ':');
    if (!colon || colon == text || !colon[1] ||
        strspn(colon + 1, "0123456789") != strlen(colon + 1) ||
        endpoint_parse(text, -1, &at, NULL) < 0 || at.port <= 0 || at.port > 65535)
        return false;
    *out = (struct remote){ .port = (uint16_t)at.port,
                            .run = slash && slash[1] ? slash + 1 : NULL,
                            .name = job,
                            .token_file = token_file };
    memcpy(out->host, at.host, sizeof out->host);
    return true;
}
