/* remote.c - `muster status HOST:PORT`: a store elsewhere, and the jobs that meet
 * there.
 *
 * The store says which runs it knows; for each, we attach to the job channel as an
 * observer, who hears and asks but is no node. */
#include <stdio.h>
#include <stdlib.h>

#include "auth/secret.h"
#include "base/err.h"
#include "base/mem.h"
#include "cmd/ask.h"
#include "loop/clock.h"
#include "muster/store.h"
#include "record/channel.h"
#include "status/core/job_status.h"
#include "store/core/reserved.h"

#define CONNECT_MS 3000u
#define SYNC_MS    2000u
#define ANSWER_MS  500u
#define RUNS_MOST  16u

struct looking {
    uv_loop_t loop;
    uv_timer_t limit;
    struct channel *channel;
    const char *run_id, *endpoint;
    struct store_status store;
    json_t *answer; /* what there is to tell; NULL: nothing */
};

static void finish(struct looking *l, const struct channel_answer *answers,
                   size_t count)
{
    struct job_answer *told = mem_calloc(count ? count : 1, sizeof *told);
    struct job_input in = { .run_id = l->run_id,
                            .backend = "",
                            .endpoint = l->endpoint,
                            .now_us = clock_now().wall_us,
                            .record = channel_record(l->channel),
                            .host = "",
                            .addr = "",
                            .answers = told,
                            .store = &l->store };
    struct job_status j;
    struct buf b;

    for (size_t i = 0; told && i < count; i++) {
        struct job_answer *a = &told[in.answer_count];

        if (node_status_decode(answers[i].bytes, &a->status, NULL) != 0)
            continue;
        a->node = answers[i].node;
        a->at_us = in.now_us;
        in.answer_count++;
    }
    in.began_us = in.record->began_us ? in.record->began_us : in.now_us;
    buf_init(&b, SIZE_MAX);
    if (told && job_status_build(&j, &in) == 0) {
        job_status_json(&b, &j, 0, true);
        job_status_fini(&j);
        if (buf_error(&b) == 0)
            l->answer = json_loadb((const char *)buf_data(&b), buf_len(&b), 0, NULL);
    }
    buf_fini(&b);
    for (size_t i = 0; i < in.answer_count; i++)
        node_status_fini(&told[i].status);
    mem_free(told);
    uv_stop(&l->loop);
}

static void on_answers(void *ctx, const struct channel_answer *answers, size_t count,
                       bool complete)
{
    (void)complete;
    finish(ctx, answers, count);
}

static void on_synced(void *ctx)
{
    struct looking *l = ctx;

    if (channel_ask(l->channel, "status", span_of(NULL, 0), ANSWER_MS, on_answers, l,
                    NULL) != 0)
        finish(l, NULL, 0);
}

static void on_limit(uv_timer_t *timer)
{
    finish(timer->data, NULL, 0);
}

/* Looks at one run; an answer or NULL. */
static json_t *look(const char *host, uint16_t port, struct looking *l,
                    struct auth *auth)
{
    const struct channel_opts opts = { .loop = &l->loop,
                                       .run_id = l->run_id,
                                       .host = "",
                                       .addr = "",
                                       .observer = true,
                                       .auth = auth };

    if (uv_loop_init(&l->loop) < 0)
        return NULL;
    (void)uv_timer_init(&l->loop, &l->limit);
    l->limit.data = l;
    if (channel_open(&opts, &l->channel, NULL) == 0) {
        (void)uv_timer_start(&l->limit, on_limit, SYNC_MS + 2 * ANSWER_MS, 0);
        channel_attach(l->channel, host, port, false);
        channel_sync(l->channel, SYNC_MS, on_synced, l);
        (void)uv_run(&l->loop, UV_RUN_DEFAULT);
        channel_close(l->channel, NULL, NULL);
    }
    uv_close((uv_handle_t *)&l->limit, NULL);
    (void)uv_run(&l->loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&l->loop);
    return l->answer;
}

static void read_stats(const struct muster_bytes *text, struct store_status *out)
{
    unsigned long long requests = 0, answers = 0, in = 0, sent = 0, connections = 0;

    (void)sscanf(text->data,
                 "requests %llu answers %llu bytes_in %llu bytes_out %llu connections "
                 "%llu",
                 &requests, &answers, &in, &sent, &connections);
    *out = (struct store_status){ .present = true,
                                  .requests = requests,
                                  .answers = answers,
                                  .bytes_in = in,
                                  .bytes_out = sent,
                                  .connections = connections };
}

/* Keys of the API are without the slash that they have on the wire. */
static int get_text(struct muster_store *s, const char *key, struct muster_bytes *out,
                    struct muster_error *err)
{
    const int rc = muster_store_get(s, key, out, err);

    return rc == MUSTER_ETIMEDOUT
               ? err_set(err, MUSTER_ENOTSTORE,
                         "it is a store, but not one that muster serves: it cannot "
                         "tell of its jobs")
               : rc;
}

int remote_get(struct answers *a, const char *host, uint16_t port, const char *name,
               struct muster_error *err)
{
    const struct secret_opts secret = { 0 };
    struct muster_bytes runs = { 0 }, stats = { 0 };
    struct muster_store_options o;
    struct muster_store *s = NULL;
    struct auth *auth = NULL;
    struct looking l = { .endpoint = name };
    int rc = secret_load(&secret, &auth, err);

    *a = (struct answers){ .calls = mem_calloc(RUNS_MOST, sizeof *a->calls) };
    if (!a->calls)
        rc = err_nomem(err);
    muster_store_options_init(&o);
    o.host = host;
    o.port = port;
    o.timeout_ms = CONNECT_MS;
    if (rc == 0)
        rc = muster_store_open_tcp(&o, &s, err);
    if (rc == 0)
        rc = get_text(s, &RESERVED_RUNS[1], &runs, err);
    if (rc == 0)
        rc = get_text(s, &RESERVED_STATS[1], &stats, err);
    if (rc == 0)
        read_stats(&stats, &l.store);
    char *rest = runs.data, *run;
    while (rc == 0 && a->count < RUNS_MOST && (run = strsep(&rest, "\n")) && *run) {
        l.run_id = run;
        l.answer = NULL;
        l.answer = look(host, port, &l, auth);
        if (l.answer)
            a->calls[a->count++].answer = l.answer;
    }
    if (rc == 0 && a->count == 0) {
        rc = err_set(err, MUSTER_ENOENT, "no job of muster meets at %s", name);
    }
    if (rc != 0)
        (void)err_wrap(err, "%s", name);
    muster_bytes_free(&runs);
    muster_bytes_free(&stats);
    muster_store_close(s);
    auth_unref(auth);
    if (rc != 0)
        answers_fini(a);
    return rc;
}
