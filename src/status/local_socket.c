/* local_socket.c - the agent's side of its own socket; see local_socket.h. The asker's
 * side is local_ask.c. */
#include "status/local_socket.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/err.h"
#include "base/list.h"
#include "base/mem.h"
#include "base/py/json.h"

#define KINDS_MAX   16u
#define CONNS_MAX   32u         /* connections; all are of one user's commands */
#define REQUEST_MAX (64u << 10) /* bytes of one line */
#define QUIET_MS    10000u /* for a whole request to come, or an answer to be read */
#define PAUSE_MS    1000u  /* before accepting again when descriptors ran out */

struct kind {
    const char *name; /* borrowed */
    local_handler handler;
    void *ctx;
};

struct local_conn {
    uv_pipe_t pipe;
    uv_timer_t timer;
    int handles;            /* not closed yet */
    struct local_socket *s; /* NULL once this connection is closed */
    struct local_conn *prev, *next;
    struct local_request *pending; /* the request that waits for its answer */
    struct buf in;
    bool closing;
};

struct local_request {
    struct local_conn *conn; /* NULL: closed meanwhile */
};

struct local_socket {
    uv_loop_t *loop;
    uv_poll_t poll;
    uv_timer_t pause;
    int fd, handles;
    struct kind kinds[KINDS_MAX];
    size_t kind_count, conn_count;
    struct {
        struct local_conn *first, *last;
    } conns;
};

struct outgoing {
    uv_write_t write;
    struct buf head, body;
};

static void next_request(struct local_conn *c);

/* --- connections ------------------------------------------------------------------ */

static void conn_on_closed(uv_handle_t *handle)
{
    struct local_conn *c = handle->data;

    if (--c->handles > 0)
        return;
    buf_fini(&c->in);
    mem_free(c);
}

static void conn_close(struct local_conn *c)
{
    struct local_socket *s = c->s;

    if (c->closing)
        return;
    c->closing = true;
    if (c->pending)
        c->pending->conn = NULL;
    c->pending = NULL;
    LIST_REMOVE(&s->conns, c, prev, next);
    s->conn_count--;
    c->s = NULL;
    uv_close((uv_handle_t *)&c->timer, conn_on_closed);
    uv_close((uv_handle_t *)&c->pipe, conn_on_closed);
}

static void conn_on_timer(uv_timer_t *timer)
{
    conn_close(timer->data);
}

static void conn_expect(struct local_conn *c)
{
    (void)uv_timer_start(&c->timer, conn_on_timer, QUIET_MS, 0);
}

static void conn_on_room(uv_handle_t *handle, size_t suggested, uv_buf_t *out)
{
    struct local_conn *c = handle->data;
    const size_t room = MIN_OF(REQUEST_MAX - buf_len(&c->in), 4096u);
    uint8_t *p = room ? buf_room(&c->in, room) : NULL;

    (void)suggested;
    *out = uv_buf_init((char *)p, p ? (unsigned)room : 0);
}

static void conn_on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *b)
{
    struct local_conn *c = stream->data;

    (void)b;
    if (n < 0) { /* UV_EOF, or UV_ENOBUFS for a line that is too long. */
        conn_close(c);
        return;
    }
    buf_commit(&c->in, (size_t)n);
    next_request(c);
}

static bool same_user(int fd)
{
    struct ucred cred;
    socklen_t n = sizeof cred;

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n) == 0 &&
           cred.uid == geteuid();
}

static void conn_open(struct local_socket *s, int fd)
{
    struct local_conn *c = mem_calloc(1, sizeof *c);

    if (!c) {
        (void)close(fd);
        return;
    }
    buf_init(&c->in, REQUEST_MAX);
    c->s = s;
    c->handles = 2;
    (void)uv_timer_init(s->loop, &c->timer);
    (void)uv_pipe_init(s->loop, &c->pipe, 0);
    c->timer.data = c->pipe.data = c;
    uv_unref((uv_handle_t *)&c->timer);
    uv_unref((uv_handle_t *)&c->pipe);
    LIST_APPEND(&s->conns, c, prev, next);
    s->conn_count++;
    if (uv_pipe_open(&c->pipe, fd) < 0) {
        (void)close(fd);
        conn_close(c);
        return;
    }
    conn_expect(c);
    (void)uv_read_start((uv_stream_t *)&c->pipe, conn_on_room, conn_on_read);
}

/* --- requests --------------------------------------------------------------------- */

static void handle_line(struct local_conn *c, struct span line)
{
    struct local_request *r = mem_calloc(1, sizeof *r);
    json_t *body = json_loadb((const char *)line.p, line.n, 0, NULL);
    const char *ask = json_string_value(json_object_get(body, "ask"));

    if (!r) {
        json_decref(body);
        conn_close(c);
        return;
    }
    r->conn = c;
    c->pending = r;
    (void)uv_read_stop((uv_stream_t *)&c->pipe);
    (void)uv_timer_stop(&c->timer);
    for (size_t i = 0; ask && i < c->s->kind_count; i++) {
        const struct kind *k = &c->s->kinds[i];

        if (strcmp(k->name, ask) == 0) {
            k->handler(k->ctx, r, body);
            json_decref(body);
            return;
        }
    }
    if (ask)
        local_request_refuse(r, "this muster (%s) cannot answer \"%.40s\"",
                             muster_version(), ask);
    else
        local_request_refuse(r, "a request is a JSON object with a text \"ask\"");
    json_decref(body);
}

/* Takes one request at a time; the next waits until this one is answered. */
static void next_request(struct local_conn *c)
{
    const struct span in = buf_span(&c->in);
    const uint8_t *end = in.n ? memchr(in.p, '\n', in.n) : NULL;

    if (!end || c->pending || c->closing)
        return;
    const size_t n = (size_t)(end - in.p);
    uint8_t *line = mem_memdup(in.p, n + 1);
    buf_consume(&c->in, n + 1);
    if (line)
        handle_line(c, span_of(line, n));
    else
        conn_close(c);
    mem_free(line);
}

static void conn_on_written(uv_write_t *write, int status)
{
    struct outgoing *o = CONTAINER_OF(write, struct outgoing, write);
    struct local_conn *c = write->data;

    buf_fini(&o->head);
    buf_fini(&o->body);
    mem_free(o);
    if (c->closing)
        return;
    if (status < 0) {
        conn_close(c);
        return;
    }
    conn_expect(c);
    (void)uv_read_start((uv_stream_t *)&c->pipe, conn_on_room, conn_on_read);
    next_request(c);
}

/* Sends {"<head>": <body>}; takes the body over. */
static void send_answer(struct local_conn *c, const char *head, struct buf *body)
{
    struct outgoing *o = mem_calloc(1, sizeof *o);

    if (!o || buf_append(body, "}\n", 2) != 0) {
        buf_fini(body);
        mem_free(o);
        conn_close(c);
        return;
    }
    o->body = *body;
    o->write.data = c;
    const struct span s = buf_span(&o->body);
    assert(memchr(s.p, '\n', s.n) == s.p + s.n - 1); /* One line is one answer. */
    const uv_buf_t bufs[] = {
        uv_buf_init((char *)(uintptr_t)head, (unsigned)strlen(head)),
        uv_buf_init((char *)(uintptr_t)s.p, (unsigned)s.n),
    };
    conn_expect(c);
    if (uv_write(&o->write, (uv_stream_t *)&c->pipe, bufs, 2, conn_on_written) < 0) {
        buf_fini(&o->body);
        mem_free(o);
        conn_close(c);
    }
}

/* Frees the request, and returns the connection that waits for its answer, or NULL. */
static struct local_conn *request_end(struct local_request *r)
{
    struct local_conn *c = r->conn;

    if (c)
        c->pending = NULL;
    mem_free(r);
    return c;
}

void local_request_answer(struct local_request *r, struct buf *json, int rc)
{
    if (rc != 0) {
        buf_fini(json);
        local_request_refuse(r, "out of memory");
        return;
    }
    struct local_conn *c = request_end(r);
    if (c)
        send_answer(c, "{\"ok\": ", json);
    else
        buf_fini(json);
}

void local_request_answer_json(struct local_request *r, json_t *value)
{
    struct buf b;

    buf_init(&b, SIZE_MAX);
    const int rc = value ? json_python(&b, value) : MUSTER_ENOMEM;
    json_decref(value);
    local_request_answer(r, &b, rc);
}

void local_request_refuse(struct local_request *r, const char *fmt, ...)
{
    struct local_conn *c = request_end(r);
    char text[1024];
    struct buf b;
    va_list ap;

    if (!c)
        return;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    buf_init(&b, SIZE_MAX);
    if (json_text(&b, text) == 0) {
        send_answer(c, "{\"error\": ", &b);
    } else {
        buf_fini(&b);
        conn_close(c);
    }
}

/* --- open and close --------------------------------------------------------------- */

static void local_socket_on_readable(uv_poll_t *poll, int status, int events);

static void on_pause_over(uv_timer_t *timer)
{
    struct local_socket *s = timer->data;

    (void)uv_poll_start(&s->poll, UV_READABLE, local_socket_on_readable);
}

static void local_socket_on_readable(uv_poll_t *poll, int status, int events)
{
    struct local_socket *s = poll->data;
    const int fd = accept4(s->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    (void)status;
    (void)events;
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
        (void)uv_poll_stop(&s->poll); /* Otherwise it would be called again at once. */
        (void)uv_timer_start(&s->pause, on_pause_over, PAUSE_MS, 0);
    } else if (fd >= 0 && same_user(fd) && s->conn_count < CONNS_MAX) {
        conn_open(s, fd);
    } else if (fd >= 0) {
        (void)close(fd);
    }
}

/* Any user may bind any abstract name. If ours is taken, by another user or by another
 * agent in this process, we try the next number. */
static int bind_free_name(int fd)
{
    struct local_name name = { (uint32_t)geteuid(), (int32_t)getpid(), 0 };
    int rc = -1;

    for (; rc < 0 && name.number < LOCAL_NAME_TRIES; name.number++) {
        struct sockaddr_un sa = { .sun_family = AF_UNIX };
        const size_t n = local_name_print(&name, sa.sun_path + 1);

        rc = bind(fd, (struct sockaddr *)&sa,
                  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n));
        if (rc < 0 && errno != EADDRINUSE)
            break;
    }
    return rc < 0 ? rc : listen(fd, 64);
}

int local_socket_open(uv_loop_t *loop, struct local_socket **out,
                      struct muster_error *err)
{
    struct local_socket *s = mem_calloc(1, sizeof *s);

    if (!s)
        return err_nomem(err);
    s->loop = loop;
    s->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (s->fd < 0 || bind_free_name(s->fd) < 0 ||
        uv_poll_init(loop, &s->poll, s->fd) < 0) {
        const int e = errno;

        if (s->fd >= 0)
            (void)close(s->fd);
        mem_free(s);
        return err_set(err, MUSTER_EIO, "cannot listen for `muster status`: %s",
                       strerror(e));
    }
    s->handles = 2;
    (void)uv_timer_init(loop, &s->pause);
    s->poll.data = s->pause.data = s;
    (void)uv_poll_start(&s->poll, UV_READABLE, local_socket_on_readable);
    uv_unref((uv_handle_t *)&s->poll); /* The socket must not keep the loop alive. */
    uv_unref((uv_handle_t *)&s->pause);
    *out = s;
    return 0;
}

int local_socket_register(struct local_socket *s, const char *kind,
                          local_handler handler, void *ctx)
{
    for (size_t i = 0; i < s->kind_count; i++)
        if (strcmp(s->kinds[i].name, kind) == 0)
            return MUSTER_EEXIST;
    if (s->kind_count == KINDS_MAX)
        return MUSTER_EFULL;
    s->kinds[s->kind_count++] = (struct kind){ kind, handler, ctx };
    return 0;
}

static void socket_on_closed(uv_handle_t *handle)
{
    struct local_socket *s = handle->data;

    if (--s->handles == 0)
        mem_free(s);
}

void local_socket_close(struct local_socket *s)
{
    if (!s)
        return;
    while (s->conns.first)
        conn_close(s->conns.first);
    uv_close((uv_handle_t *)&s->poll, socket_on_closed);
    uv_close((uv_handle_t *)&s->pause, socket_on_closed);
    (void)close(s->fd);
}
