/* uv_loop.c - the functions of libuv that our drivers call, on simulated time: the
 * loop, timers, idle handles, wake-ups, signals and polled descriptors. It is linked in
 * libuv's place; streams are in uv_stream.c. The order within a turn is libuv's:
 * timers, callbacks of writes that are done, idle handles, waiting, events, closing. */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "sim/os.h"

struct loop_state { /* the loop's internal_fields points here */
    struct os_process *process;
    struct uv_state *first, *last; /* its handles */
    uint64_t now_ms, order;
    bool stop;
};

static struct loop_state *state_of(const uv_loop_t *loop)
{
    return loop->internal_fields;
}

struct uv_state *uv_state_of(const void *handle)
{
    return ((const uv_handle_t *)handle)->u.reserved[0];
}

struct uv_state *uv_state_new(uv_loop_t *loop, void *handle, uv_handle_type type)
{
    struct loop_state *l = state_of(loop);
    struct uv_state *s = os_alloc(sizeof *s);
    uv_handle_t *h = handle;

    h->loop = loop;
    h->type = type;
    h->flags = 0;
    h->close_cb = NULL;
    h->u.reserved[0] = s;
    s->handle = h;
    if (l->last)
        l->last->next = s;
    else
        l->first = s;
    l->last = s;
    return s;
}

/* ---- time ---- */

uint64_t uv_hrtime(void)
{
    return (os.t + (os.current ? os.current->machine->boot_us : 0)) * 1000;
}

int uv_gettimeofday(uv_timeval64_t *tv)
{
    const int64_t us =
        OS_WALL_US + (int64_t)os.t + (os.current ? os.current->machine->wall_us : 0);

    tv->tv_sec = us / 1000000;
    tv->tv_usec = (int32_t)(us % 1000000);
    return 0;
}

void uv_update_time(uv_loop_t *loop)
{
    state_of(loop)->now_ms = uv_hrtime() / 1000000;
}

uint64_t uv_now(const uv_loop_t *loop)
{
    return state_of(loop)->now_ms;
}

/* ---- handles of all kinds ---- */

int uv_is_active(const uv_handle_t *handle)
{
    const struct uv_state *s = uv_state_of(handle);

    return s->active && !s->closing;
}

int uv_is_closing(const uv_handle_t *handle)
{
    return uv_state_of(handle)->closing;
}

void uv_unref(uv_handle_t *handle)
{
    uv_state_of(handle)->unreferenced = true;
}

void uv_close(uv_handle_t *handle, uv_close_cb cb)
{
    struct uv_state *s = uv_state_of(handle);

    assert(!s->closing);
    s->closing = true;
    s->active = false;
    handle->close_cb = cb;
    if (handle->type == UV_TCP)
        uv_tcp_begin_close(s);
}

/* ---- timers ---- */

int uv_timer_init(uv_loop_t *loop, uv_timer_t *timer)
{
    (void)uv_state_new(loop, timer, UV_TIMER);
    return 0;
}

int uv_timer_start(uv_timer_t *timer, uv_timer_cb cb, uint64_t timeout, uint64_t repeat)
{
    struct uv_state *s = uv_state_of(timer);
    struct loop_state *l = state_of(timer->loop);

    if (s->closing || !cb)
        return UV_EINVAL;
    s->active = true;
    s->cb = (void *)(uintptr_t)cb;
    s->due_ms = timeout > UINT64_MAX - l->now_ms ? UINT64_MAX : l->now_ms + timeout;
    s->repeat_ms = repeat;
    s->order = l->order++;
    return 0;
}

int uv_timer_stop(uv_timer_t *timer)
{
    uv_state_of(timer)->active = false;
    return 0;
}

static struct uv_state *first_timer(const struct loop_state *l)
{
    struct uv_state *best = NULL;

    for (struct uv_state *s = l->first; s; s = s->next)
        if (s->active && s->handle->type == UV_TIMER &&
            (!best || s->due_ms < best->due_ms ||
             (s->due_ms == best->due_ms && s->order < best->order)))
            best = s;
    return best;
}

static void run_timers(struct loop_state *l)
{
    struct uv_state *s;

    while ((s = first_timer(l)) && s->due_ms <= l->now_ms) {
        uv_timer_t *timer = (uv_timer_t *)s->handle;

        s->active = false;
        if (s->repeat_ms)
            (void)uv_timer_start(timer, (uv_timer_cb)(uintptr_t)s->cb, s->repeat_ms,
                                 s->repeat_ms);
        ((uv_timer_cb)(uintptr_t)s->cb)(timer);
    }
}

/* ---- idle handles, wake-ups ---- */

int uv_idle_init(uv_loop_t *loop, uv_idle_t *idle)
{
    (void)uv_state_new(loop, idle, UV_IDLE);
    return 0;
}

int uv_idle_start(uv_idle_t *idle, uv_idle_cb cb)
{
    struct uv_state *s = uv_state_of(idle);

    if (s->active)
        return 0;
    if (!cb)
        return UV_EINVAL;
    s->active = true;
    s->cb = (void *)(uintptr_t)cb;
    return 0;
}

int uv_idle_stop(uv_idle_t *idle)
{
    uv_state_of(idle)->active = false;
    return 0;
}

int uv_prepare_init(uv_loop_t *loop, uv_prepare_t *prepare)
{
    (void)uv_state_new(loop, prepare, UV_PREPARE);
    return 0;
}

int uv_prepare_start(uv_prepare_t *prepare, uv_prepare_cb cb)
{
    struct uv_state *s = uv_state_of(prepare);

    s->active = true;
    s->cb = (void *)(uintptr_t)cb;
    return 0;
}

int uv_async_init(uv_loop_t *loop, uv_async_t *async, uv_async_cb cb)
{
    struct uv_state *s = uv_state_new(loop, async, UV_ASYNC);

    s->active = true;
    s->cb = (void *)(uintptr_t)cb;
    return 0;
}

int uv_async_send(uv_async_t *async)
{
    struct uv_state *s = uv_state_of(async);

    s->pending = true;
    os_wake(state_of(async->loop)->process);
    return 0;
}

/* ---- signals ---- */

int uv_signal_init(uv_loop_t *loop, uv_signal_t *handle)
{
    (void)uv_state_new(loop, handle, UV_SIGNAL);
    return 0;
}

int uv_signal_start(uv_signal_t *handle, uv_signal_cb cb, int signum)
{
    struct uv_state *s = uv_state_of(handle);

    s->active = true;
    s->cb = (void *)(uintptr_t)cb;
    handle->signum = s->signum = signum;
    return 0;
}

int uv_signal_start_oneshot(uv_signal_t *handle, uv_signal_cb cb, int signum)
{
    uv_state_of(handle)->oneshot = true;
    return uv_signal_start(handle, cb, signum);
}

bool uv_take_signal(struct os_process *p, int sig)
{
    bool taken = false;

    for (struct uv_state *s = p->loop ? state_of(p->loop)->first : NULL; s; s = s->next)
        if (s->active && s->handle->type == UV_SIGNAL && s->signum == sig)
            taken = s->pending = true;
    if (taken)
        os_wake(p);
    return taken;
}

/* ---- descriptors ---- */

int uv_poll_init(uv_loop_t *loop, uv_poll_t *poll, int fd)
{
    uv_state_new(loop, poll, UV_POLL)->fd = fd;
    return 0;
}

int uv_poll_init_socket(uv_loop_t *loop, uv_poll_t *poll, uv_os_sock_t fd)
{
    return uv_poll_init(loop, poll, fd);
}

int uv_poll_start(uv_poll_t *poll, int events, uv_poll_cb cb)
{
    struct uv_state *s = uv_state_of(poll);

    s->active = true;
    s->events = events;
    s->cb = (void *)(uintptr_t)cb;
    return 0;
}

int uv_poll_stop(uv_poll_t *poll)
{
    uv_state_of(poll)->active = false;
    return 0;
}

/* ---- the loop ---- */

int uv_loop_init(uv_loop_t *loop)
{
    struct loop_state *l = os_alloc(sizeof *l);
    void *data = loop->data;

    memset(loop, 0, sizeof *loop);
    loop->data = data;
    loop->internal_fields = l;
    l->process = os.current;
    os.current->loop = loop;
    uv_update_time(loop);
    return 0;
}

/* Handles that are closing stay in the list until a turn of the loop ends them. */
int uv_loop_close(uv_loop_t *loop)
{
    struct loop_state *l = state_of(loop);

    if (l->first)
        return UV_EBUSY;
    if (l->process->loop == loop)
        l->process->loop = NULL;
    return 0;
}

void uv_stop(uv_loop_t *loop)
{
    state_of(loop)->stop = true;
}

static bool keeps_alive(const struct uv_state *s)
{
    if (s->closing)
        return true;
    if (s->unreferenced)
        return false;
    return s->handle->type == UV_TCP ? uv_tcp_wants_loop(s) : s->active;
}

int uv_loop_alive(const uv_loop_t *loop)
{
    for (struct uv_state *s = state_of(loop)->first; s; s = s->next)
        if (keeps_alive(s))
            return 1;
    return 0;
}

static bool has_work(const struct uv_state *s)
{
    if (s->closing)
        return true;
    switch (s->handle->type) {
    case UV_IDLE:
        return s->active;
    case UV_ASYNC:
    case UV_SIGNAL:
        return s->pending && s->active;
    case UV_POLL:
        return s->active && os_poll_ready(s->fd, s->events);
    case UV_TCP:
        return uv_tcp_has_work(s) || uv_tcp_has_pending(s);
    default:
        return false;
    }
}

static bool any_work(const struct loop_state *l)
{
    for (const struct uv_state *s = l->first; s; s = s->next)
        if (has_work(s))
            return true;
    return false;
}

static void work(struct uv_state *s)
{
    uv_handle_t *h = s->handle;

    switch (h->type) {
    case UV_ASYNC:
        s->pending = false;
        ((uv_async_cb)(uintptr_t)s->cb)((uv_async_t *)h);
        return;
    case UV_SIGNAL:
        s->pending = false;
        if (s->oneshot)
            s->active = false;
        ((uv_signal_cb)(uintptr_t)s->cb)((uv_signal_t *)h, s->signum);
        return;
    case UV_POLL:
        ((uv_poll_cb)(uintptr_t)s->cb)((uv_poll_t *)h, 0, s->events);
        return;
    case UV_TCP:
        uv_tcp_work(s);
        return;
    default:
        return;
    }
}

/* Runs the handles that are there at the beginning; those that callbacks add have to
 * wait for the next turn. */
static void each(struct loop_state *l, bool (*wanted)(const struct uv_state *s),
                 void (*run)(struct uv_state *s))
{
    struct uv_state *last = l->last;

    for (struct uv_state *s = l->first; s; s = s->next) {
        if (wanted(s))
            run(s);
        if (s == last)
            return;
    }
}

static bool is_idle(const struct uv_state *s)
{
    return s->handle->type == UV_IDLE && s->active && !s->closing;
}

static void run_idle(struct uv_state *s)
{
    ((uv_idle_cb)(uintptr_t)s->cb)((uv_idle_t *)s->handle);
}

static bool is_prepare(const struct uv_state *s)
{
    return s->handle->type == UV_PREPARE && s->active && !s->closing;
}

static void run_prepare(struct uv_state *s)
{
    ((uv_prepare_cb)(uintptr_t)s->cb)((uv_prepare_t *)s->handle);
}

static bool is_pending(const struct uv_state *s)
{
    return s->handle->type == UV_TCP && uv_tcp_has_pending(s) && !s->closing;
}

static bool is_io(const struct uv_state *s)
{
    return s->handle->type != UV_IDLE && !s->closing && has_work(s);
}

static void run_closing(struct loop_state *l)
{
    struct uv_state **at = &l->first, *closed = NULL, **end = &closed, *s;

    l->last = NULL;
    while ((s = *at)) {
        if (s->closing) {
            *at = s->next;
            s->next = NULL;
            *end = s;
            end = &s->next;
        } else {
            l->last = s;
            at = &s->next;
        }
    }
    while ((s = closed)) {
        closed = s->next;
        if (s->handle->type == UV_TCP)
            uv_tcp_end_close(s);
        if (s->handle->close_cb)
            s->handle->close_cb(s->handle);
    }
}

static void wait_for_work(uv_loop_t *loop, bool may_wait)
{
    struct loop_state *l = state_of(loop);
    const struct uv_state *timer = first_timer(l);

    if (may_wait && !l->stop && !any_work(l)) {
        const uint64_t due_us =
            timer && timer->due_ms < UINT64_MAX / 1000
                ? timer->due_ms * 1000 - os.current->machine->boot_us
                : OS_NEVER;

        os_wait(due_us);
    }
    uv_update_time(loop);
    each(l, is_io, work);
}

int uv_run(uv_loop_t *loop, uv_run_mode mode)
{
    struct loop_state *l = state_of(loop);
    bool alive = uv_loop_alive(loop);

    while (alive && !l->stop) {
        uv_update_time(loop);
        run_timers(l);
        each(l, is_pending, uv_tcp_pending);
        each(l, is_idle, run_idle);
        each(l, is_prepare, run_prepare);
        alive = uv_loop_alive(loop);
        wait_for_work(loop, mode != UV_RUN_NOWAIT && alive);
        run_closing(l);
        alive = uv_loop_alive(loop);
        if (mode != UV_RUN_DEFAULT)
            break;
    }
    l->stop = false;
    return alive;
}

int uv_backend_fd(const uv_loop_t *loop)
{
    return -1;
}

int uv_backend_timeout(const uv_loop_t *loop)
{
    return 0;
}

/* ---- functions that need no loop ---- */

const char *uv_strerror(int err)
{
    if (err == UV_EOF)
        return "end of file";
    return strerror(-err);
}

uv_pid_t uv_os_getpid(void)
{
    return os.current ? os.current->pid : 1;
}

int uv_random(uv_loop_t *loop, uv_random_t *req, void *to, size_t n, unsigned flags,
              uv_random_cb cb)
{
    uint8_t *p = to;

    assert(!cb);
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)rng_u64(os.steady ? &os.current->rng : &os.rng);
    return 0;
}

uv_buf_t uv_buf_init(char *base, unsigned n)
{
    return (uv_buf_t){ .base = base, .len = n };
}

int uv_ip4_addr(const char *ip, int port, struct sockaddr_in *out)
{
    *out = (struct sockaddr_in){ .sin_family = AF_INET,
                                 .sin_port = htons((uint16_t)port) };
    return inet_pton(AF_INET, ip, &out->sin_addr) == 1 ? 0 : UV_EINVAL;
}

int uv_ip6_addr(const char *ip, int port, struct sockaddr_in6 *out)
{
    *out = (struct sockaddr_in6){ .sin6_family = AF_INET6,
                                  .sin6_port = htons((uint16_t)port) };
    return inet_pton(AF_INET6, ip, &out->sin6_addr) == 1 ? 0 : UV_EINVAL;
}

int uv_inet_ntop(int family, const void *from, char *to, size_t n)
{
    return inet_ntop(family, from, to, (socklen_t)n) ? 0 : UV_ENOSPC;
}

int uv_ip4_name(const struct sockaddr_in *a, char *to, size_t n)
{
    return uv_inet_ntop(AF_INET, &a->sin_addr, to, n);
}

int uv_ip6_name(const struct sockaddr_in6 *a, char *to, size_t n)
{
    return uv_inet_ntop(AF_INET6, &a->sin6_addr, to, n);
}

/* No simulated job has a store in a file. */
int uv_fs_event_init(uv_loop_t *loop, uv_fs_event_t *handle)
{
    return UV_ENOSYS;
}

int uv_fs_event_start(uv_fs_event_t *handle, uv_fs_event_cb cb, const char *path,
                      unsigned flags)
{
    return UV_ENOSYS;
}

int uv_fs_event_stop(uv_fs_event_t *handle)
{
    return 0;
}
