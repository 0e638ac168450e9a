/* echo_uring.c - `muster-bench echo-uring`: the echo server of echo.c on io_uring, to
 * see what that would bring: accepts and reads that stay armed, buffers that the kernel
 * picks, all answers of a batch and the wait for the next in one system call. Nothing
 * in muster uses it: see docs/PERFORMANCE.md. */
#include <errno.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bench.h"
#include "net.h"

#define ENTRIES 4096u
#define BUFFERS 1024u /* a power of two */
#define BUFFER  256u
#define ACCEPT  UINT64_MAX
#define SEND    (UINT64_MAX - 1)

struct ring {
    int fd;
    unsigned *sq_tail, *cq_head, *cq_tail;
    unsigned sq_mask, cq_mask, queued;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
    struct io_uring_buf_ring *buffers;
    char *memory;
};

static void *map_ring(int fd, size_t size, uint64_t at)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)at);

    if (p == MAP_FAILED)
        net_die("mmap of the ring");
    return p;
}

static void give_back(struct ring *r, unsigned id, unsigned place)
{
    struct io_uring_buf *b = &r->buffers->bufs[place & (BUFFERS - 1)];

    b->addr = (uint64_t)(uintptr_t)(r->memory + (size_t)id * BUFFER);
    b->len = BUFFER;
    b->bid = (uint16_t)id;
}

static void open_ring(struct ring *r)
{
    struct io_uring_params p = { .flags = IORING_SETUP_SINGLE_ISSUER |
                                          IORING_SETUP_DEFER_TASKRUN |
                                          IORING_SETUP_CQSIZE,
                                 .cq_entries = 4 * ENTRIES };
    struct io_uring_buf_reg reg = { .ring_entries = BUFFERS };
    char *both;
    unsigned *array;
    size_t size;

    r->fd = (int)syscall(SYS_io_uring_setup, ENTRIES, &p);
    if (r->fd < 0)
        net_die("io_uring_setup");
    size = p.cq_off.cqes + p.cq_entries * sizeof *r->cqes;
    if (size < p.sq_off.array + p.sq_entries * sizeof *array)
        size = p.sq_off.array + p.sq_entries * sizeof *array;
    both = map_ring(r->fd, size, IORING_OFF_SQ_RING);
    r->sqes = map_ring(r->fd, p.sq_entries * sizeof *r->sqes, IORING_OFF_SQES);
    r->sq_tail = (unsigned *)(void *)(both + p.sq_off.tail);
    r->cq_head = (unsigned *)(void *)(both + p.cq_off.head);
    r->cq_tail = (unsigned *)(void *)(both + p.cq_off.tail);
    r->sq_mask = p.sq_entries - 1;
    r->cq_mask = p.cq_entries - 1;
    r->cqes = (struct io_uring_cqe *)(void *)(both + p.cq_off.cqes);
    array = (unsigned *)(void *)(both + p.sq_off.array);
    for (unsigned i = 0; i < p.sq_entries; i++)
        array[i] = i;
    r->memory = calloc(BUFFERS, BUFFER);
    r->buffers = mmap(NULL, BUFFERS * sizeof(struct io_uring_buf),
                      PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!r->memory || (void *)r->buffers == MAP_FAILED)
        net_die("memory");
    reg.ring_addr = (uint64_t)(uintptr_t)r->buffers;
    if (syscall(SYS_io_uring_register, r->fd, IORING_REGISTER_PBUF_RING, &reg, 1) < 0)
        net_die("io_uring buffers");
    for (unsigned i = 0; i < BUFFERS; i++)
        give_back(r, i, i);
    r->buffers->tail = BUFFERS;
}

static void enter(struct ring *r, unsigned wait)
{
    const long n = syscall(SYS_io_uring_enter, r->fd, r->queued, wait,
                           IORING_ENTER_GETEVENTS, NULL, 0);

    if (n < 0 && errno != EINTR)
        net_die("io_uring_enter");
    if (n > 0)
        r->queued -= (unsigned)n;
}

static struct io_uring_sqe *next(struct ring *r, uint8_t op, int fd, uint64_t data)
{
    struct io_uring_sqe *e;

    if (r->queued == ENTRIES)
        enter(r, 0);
    e = &r->sqes[*r->sq_tail & r->sq_mask];
    *e = (struct io_uring_sqe){ .opcode = op, .fd = fd, .user_data = data };
    __atomic_store_n(r->sq_tail, *r->sq_tail + 1, __ATOMIC_RELEASE);
    r->queued++;
    return e;
}

static void arm_read(struct ring *r, int fd)
{
    struct io_uring_sqe *e = next(r, IORING_OP_RECV, fd, (uint64_t)fd);

    e->ioprio = IORING_RECV_MULTISHOT;
    e->flags = IOSQE_BUFFER_SELECT;
}

static void on_read(struct ring *r, const struct io_uring_cqe *c,
                    const struct net_args *a)
{
    static char out[4096];
    const int fd = (int)c->user_data;
    struct io_uring_sqe *e;

    if (c->flags & IORING_CQE_F_BUFFER) {
        give_back(r, c->flags >> IORING_CQE_BUFFER_SHIFT, r->buffers->tail);
        __atomic_store_n(&r->buffers->tail, (uint16_t)(r->buffers->tail + 1),
                         __ATOMIC_RELEASE);
    }
    if (c->res > 0) {
        e = next(r, IORING_OP_SEND, fd, SEND);
        e->addr = (uint64_t)(uintptr_t)out;
        e->len = (uint32_t)((size_t)c->res / a->size * a->reply);
        e->msg_flags = MSG_NOSIGNAL;
        e->flags = IOSQE_CQE_SKIP_SUCCESS;
    }
    if (c->res == 0 || (c->res < 0 && c->res != -ENOBUFS))
        (void)close(fd);
    else if (!(c->flags & IORING_CQE_F_MORE))
        arm_read(r, fd);
}

int bench_echo_uring(int argc, char **argv)
{
    static struct ring r;
    struct net_args a;

    net_parse(argc, argv, &a);
    open_ring(&r);
    next(&r, IORING_OP_ACCEPT, net_serve(), ACCEPT)->ioprio = IORING_ACCEPT_MULTISHOT;
    for (;;) {
        unsigned tail;

        enter(&r, 1);
        tail = __atomic_load_n(r.cq_tail, __ATOMIC_ACQUIRE);
        for (; *r.cq_head != tail;
             __atomic_store_n(r.cq_head, *r.cq_head + 1, __ATOMIC_RELEASE)) {
            const struct io_uring_cqe *c = &r.cqes[*r.cq_head & r.cq_mask];

            if (c->user_data == ACCEPT && c->res >= 0)
                arm_read(&r, c->res);
            else if (c->user_data < SEND)
                on_read(&r, c, &a);
        }
    }
}
