/* etcd_tool.c - the etcd client by hand, for tests: etcd_tool ENDPOINT CONF COMMAND ...
 *
 *   get KEY            prints the value, or (none)
 *   put KEY VALUE
 *   watch KEY [TTL]    prints READY, then PUT value, DELETE or RESYNC, until killed;
 * with a TTL it also keeps a lease alive lease KEY TTL      writes KEY under a lease
 * and keeps it until killed v2get KEY store DIR          operations on a store, one a
 * line of stdin: set K V, get K, add K N, wait K, check K, cas K OLD NEW, append K V,
 * delete K, count; an answer a line
 * ("-" for "")
 *
 * The option timeout_ms of CONF bounds get and put. Errors go to stderr, exit code 1.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "etcd/etcd_store.h"
#include "etcd/lease.h"
#include "etcd/options.h"
#include "etcd/watch.h"
#include "rendezvous/core/params.h"

static struct etcd_client *client;
static struct etcd_watch *watch;
static const char *key, *value = "";
static uint64_t timeout_ms = 5000;
static int exit_code;

static void on_log(void *ctx, enum log_level level, enum log_place place,
                   const char *text)
{
    (void)place;
    (void)ctx;
    if (level >= LOG_WARN || getenv("ETCD_TOOL_DEBUG"))
        fprintf(stderr, "# %s\n", text);
}

static void fail(const struct muster_error *err)
{
    fprintf(stderr, "%s: %s\n", muster_code_name(err->code), err->text);
    exit_code = 1;
}

static void on_v3(void *ctx, int status, const struct etcd_answer *a,
                  const struct muster_error *err)
{
    (void)ctx;
    if (status < 0) {
        fail(err);
    } else if (a->v3->count && a->v3->results[0].kind == ETCD3_RANGE) {
        const struct etcd3_result *r = &a->v3->results[0];

        if (r->count)
            printf("%.*s\n", (int)r->kvs[0].value.n, (const char *)r->kvs[0].value.p);
        else
            printf("(none)\n");
    }
    etcd_client_close(client, NULL, NULL);
}

static void on_v2(void *ctx, int status, const struct etcd_answer *a,
                  const struct muster_error *err)
{
    (void)ctx;
    if (status < 0)
        fail(err);
    else
        printf("%.*s\n", (int)a->v2->node.value.n, (const char *)a->v2->node.value.p);
    etcd_client_close(client, NULL, NULL);
}

static void on_change(void *ctx, const struct etcd3_reply *r)
{
    (void)ctx;
    if (!r)
        printf("RESYNC\n");
    for (size_t i = 0; r && i < r->event_count; i++)
        if (r->events[i].deleted)
            printf("DELETE\n");
        else
            printf("PUT %.*s\n", (int)r->events[i].kv.value.n,
                   (const char *)r->events[i].kv.value.p);
    fflush(stdout);
}

static void on_put(void *ctx, int status, const struct etcd_answer *a,
                   const struct muster_error *err)
{
    (void)ctx;
    (void)a;
    if (status < 0)
        fail(err);
    printf("READY\n");
    fflush(stdout);
}

static void call(int rc, struct etcd_msg *m, enum etcd3_expect expect, etcd_cb cb)
{
    const struct etcd_call_opts opts = { .key = span_str(key),
                                         .timeout_ms = timeout_ms,
                                         .expect = expect };
    struct muster_error err = { 0 };

    if (rc < 0 || etcd_client_call(client, m, &opts, cb, NULL, NULL, &err) < 0)
        exit(2);
}

static void on_granted(void *ctx, int64_t id)
{
    const struct etcd3_op op = {
        .kind = ETCD3_PUT, .key = span_str(key), .value = span_str(value), .lease = id
    };
    struct etcd_msg m;

    (void)ctx;
    etcd_msg_init(&m);
    call(etcd3_encode_txn(&m, &(struct etcd3_txn){ .yes = &op, .yes_count = 1 }), &m,
         ETCD3_EXPECT_TXN, on_put);
}

static void on_spare_granted(void *ctx, int64_t id)
{
    (void)ctx;
    (void)id;
}

static void on_failed(void *ctx, const struct muster_error *err)
{
    (void)ctx;
    fprintf(stderr, "# %s\n", err->text);
}

static struct async_store *store;

static void next_line(void);

static void on_closed(void *ctx)
{
    (void)ctx;
    etcd_client_close(client, NULL, NULL);
}

static void on_store(void *ctx, int status, const struct c10d_reply *r,
                     const struct muster_error *err)
{
    (void)ctx;
    if (status < 0)
        printf("%s: %s\n", muster_code_name(status), err->text);
    else if (r->op == C10D_GET || r->op == C10D_COMPARE_SET)
        printf("%.*s\n", (int)r->value.n, (const char *)r->value.p);
    else
        printf("%lld\n", (long long)r->number);
    fflush(stdout);
    next_line();
}

static struct span word(char **save)
{
    const char *w = strtok_r(NULL, " \n", save);

    return !w || strcmp(w, "-") == 0 ? span_of("", 0) : span_str(w);
}

static void next_line(void)
{
    static const struct {
        const char *word;
        enum c10d_op op;
    } table[] = { { "set", C10D_SET },         { "get", C10D_GET },
                  { "add", C10D_ADD },         { "wait", C10D_WAIT },
                  { "check", C10D_CHECK },     { "cas", C10D_COMPARE_SET },
                  { "append", C10D_APPEND },   { "delete", C10D_DELETE_KEY },
                  { "count", C10D_GETNUMKEYS } };
    struct c10d_request req = { .op = C10D_OP_COUNT };
    struct muster_error err = { 0 };
    struct buf list;
    char line[4096], *save = NULL;
    const char *first;

    if (!fgets(line, sizeof line, stdin)) {
        async_store_close(store, on_closed, NULL);
        return;
    }
    first = strtok_r(line, " \n", &save);
    for (size_t i = 0; first && i < ARRAY_LEN(table); i++)
        if (strcmp(first, table[i].word) == 0)
            req.op = table[i].op;
    buf_init(&list, SIZE_MAX);
    if (req.op != C10D_GETNUMKEYS)
        req.key = word(&save);
    if (req.op == C10D_ADD)
        req.number = atoll((const char *)word(&save).p);
    if (req.op == C10D_COMPARE_SET)
        req.expected = word(&save);
    req.value = word(&save);
    if (req.op == C10D_WAIT || req.op == C10D_CHECK) {
        (void)c10d_list_add(&list, req.key);
        req.list = (struct c10d_list){ buf_span(&list), 1 };
    }
    if (async_store_call(store, &req, req.op == C10D_GET ? ASYNC_STORE_BLOCK : 0,
                         timeout_ms, on_store, NULL, &err) < 0) {
        printf("%s\n", err.text);
        exit(2);
    }
    buf_fini(&list);
}

static void run(const char *command, struct muster_error *err)
{
    const struct etcd3_op op = { .kind = ETCD3_RANGE, .key = span_str(key) };
    struct etcd_lease *lease;
    struct etcd_msg m;

    etcd_msg_init(&m);
    if (strcmp(command, "get") == 0) {
        call(etcd3_encode_range(&m, &op), &m, ETCD3_EXPECT_RANGE, on_v3);
    } else if (strcmp(command, "put") == 0) {
        const struct etcd3_op put = { .kind = ETCD3_PUT,
                                      .key = span_str(key),
                                      .value = span_str(value) };

        call(etcd3_encode_txn(&m, &(struct etcd3_txn){ .yes = &put, .yes_count = 1 }),
             &m, ETCD3_EXPECT_TXN, on_v3);
    } else if (strcmp(command, "v2get") == 0) {
        call(etcd2_encode(&m, &(struct etcd2_request){ .key = span_str(key) }), &m, 0,
             on_v2);
    } else if (strcmp(command, "v2store") == 0 || strcmp(command, "store") == 0) {
        const struct etcd_kv kv = { client, *command == 'v' ? ETCD_V2 : ETCD_V3 };

        if (store_etcd_open(&kv, key, NULL, &store, err) < 0)
            exit(2);
        next_line();
    } else if (strcmp(command, "watch") == 0) {
        const struct etcd_watch_opts changes = { .key = span_str(key),
                                                 .on_change = on_change };
        const struct etcd_lease_opts spare = { .ttl_s = (uint64_t)atoi(value),
                                               .seed = 1,
                                               .on_granted = on_spare_granted,
                                               .on_failed = on_failed };

        if (etcd_watch_start(client, &changes, &watch, err) < 0 ||
            (*value && etcd_lease_start(client, &spare, &lease, err) < 0))
            exit(2);
        call(etcd3_encode_range(&m, &op), &m, ETCD3_EXPECT_RANGE, on_put);
    } else {
        const struct etcd_lease_opts own = { .ttl_s = (uint64_t)atoi(value),
                                             .seed = 1,
                                             .on_granted = on_granted,
                                             .on_failed = on_failed };

        if (etcd_lease_start(client, &own, &lease, err) < 0)
            exit(2);
    }
}

int main(int argc, char **argv)
{
    const struct log tr = { .emit = on_log };
    struct muster_error err = { 0 };
    struct rdzv_params p = { 0 };
    struct etcd_conf conf;
    int64_t ms;
    const bool v2 = argc > 3 && strncmp(argv[3], "v2", 2) == 0;

    if (argc < 5)
        return 2;
    key = argv[4];
    if (argc > 5)
        value = argv[5];
    if (params_init(&p, "etcd-v3", argv[1], "tool", 1, 1, NULL, &err) < 0 ||
        conf_parse(&p, argv[2], &err) < 0 ||
        params_int(&p, "timeout_ms", 5000, &ms, &err) < 0 ||
        etcd_conf_read(&conf, v2 ? ETCD_BACKEND_V2 : ETCD_BACKEND_V3, &p, &tr, &err) <
            0 ||
        etcd_client_new(uv_default_loop(), &conf.client, &client, &err) < 0) {
        fail(&err);
        params_fini(&p);
        return 1;
    }
    timeout_ms = (uint64_t)ms;
    etcd_conf_fini(&conf);
    params_fini(&p);
    run(argv[3], &err);
    (void)uv_run(uv_default_loop(), UV_RUN_DEFAULT);
    (void)uv_loop_close(uv_default_loop());
    return exit_code;
}
