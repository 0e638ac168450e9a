/* store.c - `muster store`: a stand-alone c10d store. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "auth/secret.h"
#include "base/err.h"
#include "base/escape.h"
#include "cmd/cmd.h"
#include "loop/clock.h"
#include "status/http.h"
#include "status/local_socket.h"
#include "store/extension.h"
#include "store/server.h"

#define PROG "muster store"

static const char help[] =
    "usage: muster store [--bind ADDR] [--port N] [--port-file FILE] [options]\n"
    "\n"
    "Serves a key-value store that PyTorch's TCPStore clients can use. Prints\n"
    "`listening on ADDR:PORT` when it is ready; SIGTERM or SIGINT ends it.\n"
    "\n"
    "  --bind ADDR        numeric address to listen on; without it: every address of\n"
    "                     this machine, IPv6 and IPv4, as clients connect by host\n"
    "                     name. Without --token-file there is no authentication: "
    "where\n"
    "                     strangers can reach the machine, bind the address of the\n"
    "                     cluster's network\n"
    "  --port N           port to listen on (default 29500); 0 takes any free one\n"
    "  --port-file FILE   write the port number into FILE when ready\n"
    "  --old-clients V    take clients that predate PyTorch 2.2 for version V: 2.1\n"
    "                     (default) or 2.0, which stands for 1.9 to 2.0\n"
    "  --silence SECONDS  close a new connection that sends no whole request for this\n"
    "                     long, and any connection that takes longer to finish a\n"
    "                     request that it has begun (default 30)\n"
    "  --max-request MIB  close a connection that sends a larger request (default "
    "256)\n"
    "  --max-unread MIB   close a connection that leaves more than this of its\n"
    "                     answers unread (default 256)\n"
    "  --max-held MIB     while the unfinished requests and unread answers of all\n"
    "                     connections together exceed this, close a connection that\n"
    "                     adds to them (default 1024)\n"
    "  --status-http A:P  serve a page, /status.json and /metrics at ADDR:PORT\n"
    "                     (without ADDR: to this machine alone)\n"
    "  --token-file FILE  serve only clients that prove that they hold the secret in\n"
    "                     FILE, workers on the same machines as such clients, and\n"
    "                     workers of this user on this machine; without the option\n"
    "                     the secret is taken from MUSTER_TOKEN\n"
    "  --encrypt          with a secret: encrypt the connections, for nodes that run\n"
    "                     with --encrypt\n"
    "  --help             this text\n";

struct store_args {
    struct store_server_opts server;
    const char *port_file;    /* borrowed, or NULL */
    const char *status_http;  /* likewise */
    struct http_address page; /* status_http, taken apart */
    struct secret_opts secret;
};

static int parse_port(const char *text, uint16_t *out, struct muster_error *err)
{
    char *end;
    unsigned long v;

    errno = 0;
    v = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno || v > 65535)
        return err_set(
            err, MUSTER_EINVAL,
            "--port %s: a port is a number from 0 to 65535; 0 takes any free "
            "one",
            text);
    *out = (uint16_t)v;
    return 0;
}

static int parse_count(const char *name, const char *text, uint64_t unit, uint64_t *out,
                       struct muster_error *err)
{
    char *end;
    unsigned long v;

    errno = 0;
    v = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno || v == 0 || v > 1000000)
        return err_set(err, MUSTER_EINVAL, "%s %s: give a number from 1 to 1000000",
                       name, text);
    *out = v * unit;
    return 0;
}

static int parse_old(const char *text, bool *dialect_a, struct muster_error *err)
{
    if (strcmp(text, "2.0") != 0 && strcmp(text, "2.1") != 0)
        return err_set(err, MUSTER_EINVAL, "--old-clients %s: give 2.0 or 2.1", text);
    *dialect_a = text[2] == '0';
    return 0;
}

/* Returns 0, 1 if the help is to be printed, or an error. */
static int store_parse(int argc, char **argv, struct store_args *a,
                       struct muster_error *err)
{
    static const struct option options[] = {
        { "bind", required_argument, NULL, 'b' },
        { "port", required_argument, NULL, 'p' },
        { "port-file", required_argument, NULL, 'f' },
        { "old-clients", required_argument, NULL, 'o' },
        { "silence", required_argument, NULL, 's' },
        { "max-request", required_argument, NULL, 'i' },
        { "max-unread", required_argument, NULL, 'u' },
        { "token-file", required_argument, NULL, 'T' },
        { "encrypt", no_argument, NULL, 'e' },
        { "max-held", required_argument, NULL, 'm' },
        { "status-http", required_argument, NULL, 't' },
        { "help", no_argument, NULL, 'h' },
        { NULL, 0, NULL, 0 },
    };
    int rc = 0;

    store_server_opts_init(&a->server);

    a->server.extension = &run_extension;
    a->server.port = 29500;
    a->port_file = a->status_http = NULL;
    a->secret = (struct secret_opts){ 0 };
    optind = 0; /* getopt may have been used before. */
    opterr = 0;
    for (int c; rc == 0 && (c = getopt_long(argc, argv, ":h", options, NULL)) != -1;) {
        if (c == 'b')
            a->server.bind = optarg;
        else if (c == 'p')
            rc = parse_port(optarg, &a->server.port, err);
        else if (c == 'f')
            a->port_file = optarg;
        else if (c == 'o')
            rc = parse_old(optarg, &a->server.dialect_a, err);
        else if (c == 's')
            rc = parse_count("--silence", optarg, 1000, &a->server.request_ms, err);
        else if (c == 'i')
            rc = parse_count("--max-request", optarg, 1 << 20, &a->server.max_input,
                             err);
        else if (c == 'u')
            rc = parse_count("--max-unread", optarg, 1 << 20, &a->server.max_output,
                             err);
        else if (c == 'T')
            a->secret.token_file = optarg;
        else if (c == 'e')
            a->secret.encrypt = true;
        else if (c == 'm')
            rc = parse_count("--max-held", optarg, 1 << 20, &a->server.max_held, err);
        else if (c == 't')
            rc = http_address_parse(a->status_http = optarg, &a->page, err);
        else if (c == 'h')
            rc = 1;
        else
            return cmd_bad_option(c, argv[optind - 1], options, PROG, err);
    }
    if (rc == 0 && optind < argc)
        return err_set(err, MUSTER_EINVAL,
                       "%s: takes no arguments; see `muster store --help`",
                       argv[optind]);
    return rc;
}

/* Writes a temporary file and renames it, so that a reader never finds half of it. */
static int write_port_file(const char *path, uint16_t port, struct muster_error *err)
{
    char tmp[4096];
    FILE *f;
    int bad;

    if ((size_t)snprintf(tmp, sizeof tmp, "%s.%ld", path, (long)getpid()) >= sizeof tmp)
        return err_set(err, MUSTER_EINVAL, "--port-file: the name is too long");
    f = fopen(tmp, "we");
    if (f) {
        bad = fprintf(f, "%u\n", (unsigned)port) < 0;
        bad |= fclose(f) != 0;
        if (!bad && rename(tmp, path) == 0)
            return 0;
    }
    bad = errno;
    (void)unlink(tmp);
    return err_set(err, MUSTER_EIO,
                   "cannot write the port file %s: %s; name a file in a directory that "
                   "exists, that you may write to and that has room",
                   path, strerror(bad));
}

static void print_log(void *ctx, enum log_level level, enum log_place place,
                      const char *text)
{
    char clean[4096]; /* Keys, run ids and addresses come from strangers. */

    (void)ctx;
    (void)level;
    (void)place;
    fprintf(stderr, "%s\n", escape_text(clean, sizeof clean, span_str(text)));
}

struct running {
    struct store_server *server;
    uv_signal_t term, interrupt;
    struct status *status;
    struct status_http *http;
    struct local_socket *local;
    struct store_status now;
    struct store_rate rate;
    int64_t began_us;
    char host[256];
};

/* ---- what `muster status` and the page show ---- */

static void describe_store(void *ctx, struct job_input *in)
{
    struct running *r = ctx;
    struct store_server_stats s;

    store_server_stats(r->server, &s);
    r->now = status_of_store(&s, &r->rate);
    *in = (struct job_input){ .run_id = "",
                              .backend = "store",
                              .endpoint = store_server_address(r->server),
                              .began_us = r->began_us,
                              .now_us = clock_now().wall_us,
                              .host = r->host,
                              .addr = "",
                              .agent_pid = getpid(),
                              .store = &r->now };
}

static void on_url(void *ctx, struct local_request *q, const json_t *body)
{
    const struct running *r = ctx;

    (void)body;
    local_request_answer_json(
        q,
        r->http ? json_pack("{s:s}", "url", status_http_url(r->http)) : json_object());
}

/* A store whose local socket cannot be opened still serves. Only if the page was asked
 * for and cannot be served does the command fail. */
static int open_status(uv_loop_t *loop, struct running *r, const struct store_args *a,
                       struct muster_error *err)
{
    const struct status_opts opts = { .loop = loop,
                                      .describe = describe_store,
                                      .ctx = r };
    char key[STATUS_KEY_SIZE];
    int rc = status_open(&opts, &r->status, err);

    r->began_us = clock_now().wall_us;
    r->rate.at_ms = clock_mono_ms();
    (void)gethostname(r->host, sizeof r->host - 1);
    if (rc == 0 && local_socket_open(loop, &r->local, NULL) == 0) {
        (void)status_serve_local(r->status, r->local);
        (void)local_socket_register(r->local, "url", on_url, r);
    }
    if (rc != 0 || !a->status_http)
        return rc;
    status_http_random_key(key);
    rc = status_http_open(loop, r->status, &a->page, key, &r->http, err);
    if (rc != 0)
        (void)err_wrap(err, "--status-http %s", a->status_http);
    return rc;
}

static void on_signal(uv_signal_t *handle, int signum)
{
    struct running *r = handle->data;

    (void)signum;
    status_http_close(r->http);
    local_socket_close(r->local);
    status_close(r->status);
    store_server_close(r->server, NULL, NULL);
    uv_close((uv_handle_t *)&r->term, NULL);
    uv_close((uv_handle_t *)&r->interrupt, NULL);
}

static void listen_for_signals(uv_loop_t *loop, struct running *r)
{
    r->term.data = r->interrupt.data = r;
    (void)uv_signal_init(loop, &r->term);
    (void)uv_signal_init(loop, &r->interrupt);
    (void)uv_signal_start_oneshot(&r->term, on_signal, SIGTERM);
    (void)uv_signal_start_oneshot(&r->interrupt, on_signal, SIGINT);
}

static int store_serve(const struct store_args *a, struct muster_error *err)
{
    struct running r = { 0 };
    uv_loop_t loop;
    int rc;

    (void)signal(SIGPIPE, SIG_IGN); /* The reader of our stdout may go away. */
    if (uv_loop_init(&loop) < 0)
        return err_set(err, MUSTER_EIO, "cannot make an event loop");
    rc = store_server_open(&loop, &a->server, &r.server, err);
    if (rc == 0) {
        listen_for_signals(&loop, &r);
        rc = open_status(&loop, &r, a, err);
        if (rc == 0 && a->port_file)
            rc = write_port_file(a->port_file, store_server_port(r.server), err);
        if (rc == 0) {
            printf("listening on %s\n", store_server_address(r.server));
            (void)fflush(stdout);
            store_server_run(r.server);
        } else {
            on_signal(&r.term, 0);
        }
    }
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&loop);
    return rc;
}

int cmd_store(int argc, char **argv)
{
    const struct log log = { .emit = print_log,
                             .least = LOG_INFO,
                             .torch_least = LOG_INFO };
    struct muster_error err;
    struct store_args a;
    int rc = store_parse(argc, argv, &a, &err);

    if (rc == 1) {
        fputs(help, stdout);
        return 0;
    }
    if (rc == 0) {
        a.server.log = &log;
        rc = secret_load(&a.secret, &a.server.auth, &err);
    }
    if (rc == 0) {
        store_server_allow_many();
        rc = store_serve(&a, &err);
        auth_unref(a.server.auth);
    }
    if (rc == 0)
        return 0;
    cmd_error(PROG, &err);
    return 2;
}
