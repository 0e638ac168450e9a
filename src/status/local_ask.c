/* local_ask.c - asking agents on this machine; see local_socket.h. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/py/json.h"
#include "loop/clock.h"
#include "loop/file.h"
#include "status/local_socket.h"

#define ANSWER_MAX (256u << 20)
#define TABLE_MAX  (64u << 20) /* of /proc/net/unix */
#define NAMES_MAX  4096u       /* agents on one machine */

/* --- which agents there are ------------------------------------------------------- */

static int by_pid(const void *a, const void *b)
{
    const struct local_name *x = a, *y = b;

    if (x->pid != y->pid)
        return x->pid < y->pid ? -1 : 1;
    return (x->number > y->number) - (x->number < y->number);
}

int local_socket_list(const uint32_t *uid, struct local_name **names, size_t *count,
                      struct muster_error *err)
{
    struct local_name *found = mem_alloc(NAMES_MAX * sizeof *found);
    struct buf table;
    size_t n = 0;

    buf_init(&table, TABLE_MAX);
    int rc = found ? file_read_all("/proc/net/unix", &table) : MUSTER_ENOMEM;
    if (rc == MUSTER_EIO)
        (void)err_set(err, rc, "cannot read /proc/net/unix: %s", strerror(errno));
    else if (rc != 0)
        rc = err_nomem(err);
    struct span rest = buf_span(&table);
    while (rc == 0 && rest.n && n < NAMES_MAX) {
        struct local_name name;

        if (local_name_of_line(span_take_line(&rest), &name) &&
            (!uid || name.uid == *uid))
            found[n++] = name;
    }
    buf_fini(&table);
    if (rc != 0) {
        mem_free(found);
        return rc;
    }
    qsort(found, n, sizeof *found, by_pid);
    *names = found;
    *count = n;
    return 0;
}

/* --- asking ----------------------------------------------------------------------- */

struct asking {
    struct local_call *call;
    size_t sent;
    struct buf in;
};

static void call_fail(struct pollfd *p, struct asking *a, int code, const char *what)
{
    if (p->fd >= 0)
        (void)close(p->fd);
    p->fd = -1;
    err_set(&a->call->error, code, "process %d %s", (int)a->call->name.pid, what);
}

static void call_begin(struct pollfd *p, struct asking *a)
{
    struct sockaddr_un sa = { .sun_family = AF_UNIX };
    const size_t n = local_name_print(&a->call->name, sa.sun_path + 1);
    struct ucred cred;
    socklen_t size = sizeof cred;

    p->events = POLLIN | POLLOUT;
    p->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (p->fd < 0) {
        call_fail(p, a, MUSTER_EIO,
                  "cannot be asked: this process has no descriptor left");
    } else if (connect(p->fd, (struct sockaddr *)&sa,
                       (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n)) <
               0) {
        if (errno == EAGAIN) /* Its backlog is full, as it accepts no connections. */
            call_fail(p, a, MUSTER_ETIMEDOUT, "does not answer (is it stopped?)");
        else
            call_fail(p, a, MUSTER_ENOENT, "is not a muster agent, or has ended");
    } else if (getsockopt(p->fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) < 0 ||
               cred.uid != geteuid()) {
        call_fail(p, a, MUSTER_EACCES, "belongs to another user");
    }
}

/* Reads the answer, of which the whole line has come. */
static void take_answer(struct pollfd *p, struct asking *a, size_t n)
{
    json_t *line = json_loadb((const char *)buf_data(&a->in), n, 0, NULL);
    json_t *ok = json_object_get(line, "ok");
    const char *why = json_string_value(json_object_get(line, "error"));

    (void)close(p->fd);
    p->fd = -1;
    if (ok)
        a->call->answer = json_incref(ok);
    else if (why)
        err_set(&a->call->error, MUSTER_ENOTSUP, "process %d: %s",
                (int)a->call->name.pid, why);
    else
        err_set(&a->call->error, MUSTER_EPROTO,
                "process %d sent an answer that cannot be read",
                (int)a->call->name.pid);
    json_decref(line);
}

static void on_input(struct pollfd *p, struct asking *a)
{
    for (;;) {
        uint8_t *room = buf_room(&a->in, 65536);

        if (!room) {
            call_fail(p, a, MUSTER_EFULL,
                      "sends an answer that does not fit into memory");
            return;
        }
        const ssize_t n = read(p->fd, room, 65536);
        if (n < 0 && errno == EAGAIN)
            return;
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            call_fail(p, a, MUSTER_ECONN, "ended before it answered");
            return;
        }
        buf_commit(&a->in, (size_t)n);
        const uint8_t *end = memchr(room, '\n', (size_t)n);
        if (end) {
            take_answer(p, a, (size_t)(end - buf_data(&a->in)));
            return;
        }
    }
}

static void on_ready(struct pollfd *p, struct asking *a, struct span request)
{
    if (p->revents & POLLOUT) {
        const ssize_t n =
            send(p->fd, request.p + a->sent, request.n - a->sent, MSG_NOSIGNAL);

        if (n >= 0)
            a->sent += (size_t)n;
        if (a->sent == request.n)
            p->events = POLLIN;
    }
    if (p->revents & (POLLIN | POLLHUP | POLLERR))
        on_input(p, a);
}

static void ask_all(struct pollfd *polls, struct asking *asking, size_t count,
                    struct span request, uint64_t timeout_ms)
{
    const uint64_t until = clock_mono_ms() + timeout_ms;
    size_t open = 0;

    for (size_t i = 0; i < count; i++) {
        call_begin(&polls[i], &asking[i]);
        open += polls[i].fd >= 0;
    }
    while (open) {
        const uint64_t now = clock_mono_ms();

        if (now >= until || poll(polls, count, (int)MIN_OF(until - now, 60000u)) < 0)
            if (now >= until || errno != EINTR)
                break;
        open = 0;
        for (size_t i = 0; i < count; i++) {
            if (polls[i].fd >= 0 && polls[i].revents)
                on_ready(&polls[i], &asking[i], request);
            open += polls[i].fd >= 0;
        }
    }
    for (size_t i = 0; i < count; i++)
        if (polls[i].fd >= 0)
            call_fail(&polls[i], &asking[i], MUSTER_ETIMEDOUT,
                      "does not answer (is it stopped?)");
}

int local_socket_ask(const json_t *request, struct local_call *calls, size_t count,
                     uint64_t timeout_ms, struct muster_error *err)
{
    struct pollfd *polls = mem_calloc(count ? count : 1, sizeof *polls);
    struct asking *asking = mem_calloc(count ? count : 1, sizeof *asking);
    struct buf line;
    int rc;

    buf_init(&line, SIZE_MAX);
    rc = json_python(&line, request);
    if (rc == 0)
        rc = buf_u8(&line, '\n');
    if (rc == 0 && polls && asking) {
        for (size_t i = 0; i < count; i++) {
            asking[i].call = &calls[i];
            calls[i].answer = NULL;
            calls[i].error = (struct muster_error){ 0 };
            buf_init(&asking[i].in, ANSWER_MAX);
        }
        ask_all(polls, asking, count, buf_span(&line), timeout_ms);
        for (size_t i = 0; i < count; i++)
            buf_fini(&asking[i].in);
    } else {
        rc = err_nomem(err);
    }
    buf_fini(&line);
    mem_free(polls);
    mem_free(asking);
    return rc;
}

void local_calls_fini(struct local_call *calls, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        json_decref(calls[i].answer);
        calls[i].answer = NULL;
    }
}
