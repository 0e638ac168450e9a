/* os_world.c - virtual time, and processes as coroutines; see os.h. */
#include "sim/os.h"

#include <assert.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define STACK_SIZE (512u << 10)
#define CHUNK_SIZE (256u << 10)

struct os os;

/* ---- the simulator's own memory, freed at the end of the job ---- */

struct chunk {
    struct chunk *next;
    size_t used, size;
    _Alignas(16) char bytes[];
};

static struct chunk *chunks, *spare_chunks;
static void *spare_stacks[64];
static size_t spare_stack_count;

static struct chunk *chunk_new(size_t size)
{
    struct chunk *c = spare_chunks;

    if (c && size <= CHUNK_SIZE) {
        spare_chunks = c->next;
    } else {
        size = MAX_OF(size, CHUNK_SIZE);
        c = malloc(sizeof *c + size);
        if (!c)
            abort();
        c->size = size;
    }
    c->used = 0;
    c->next = chunks;
    chunks = c;
    return c;
}

void *os_alloc(size_t size)
{
    struct chunk *c = chunks;
    void *p;

    size = (size + 15) & ~(size_t)15;
    if (!c || c->size - c->used < size)
        c = chunk_new(size);
    p = c->bytes + c->used;
    c->used += size;
    return memset(p, 0, size);
}

char *os_text(const char *fmt, ...)
{
    va_list ap, again;
    char *text;

    assert(fmt); /* gcc sees a way to NULL under UBSan, and warns. */
    va_start(ap, fmt);
    va_copy(again, ap);
    const int n = vsnprintf(NULL, 0, fmt, ap);
    text = os_alloc((size_t)n + 1);
    (void)vsnprintf(text, (size_t)n + 1, fmt, again);
    va_end(again);
    va_end(ap);
    return text;
}

void *os_grow(void *array, size_t count, size_t size)
{
    void *larger;

    if (count & (count - 1)) /* It grows when its size is a power of two, or 0. */
        return array;
    larger = os_alloc(MAX_OF(2 * count, 1u) * size);
    return count ? memcpy(larger, array, count * size) : larger;
}

static void free_chunks(void)
{
    struct chunk *c;

    while ((c = chunks)) {
        chunks = c->next;
        if (c->size > CHUNK_SIZE) {
            free(c);
            continue;
        }
        c->next = spare_chunks;
        spare_chunks = c;
    }
}

/* Below each stack is a page that cannot be accessed, to catch an overflow. */
static void *stack_take(void)
{
    char *p;

    if (spare_stack_count)
        return spare_stacks[--spare_stack_count];
    p = mmap(NULL, STACK_SIZE + 4096, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || mprotect(p, 4096, PROT_NONE) < 0)
        abort();
    return p + 4096;
}

static void stack_give(void *stack)
{
    if (spare_stack_count < ARRAY_LEN(spare_stacks))
        spare_stacks[spare_stack_count++] = stack;
    else
        (void)munmap((char *)stack - 4096, STACK_SIZE + 4096);
}

/* ---- what happens when ---- */

static bool before(const struct os_event *a, const struct os_event *b)
{
    return a->t != b->t ? a->t < b->t : a->seq < b->seq;
}

void os_at(uint64_t t, os_event_fn fn, void *arg, uint64_t n)
{
    struct os_event ev = { MAX_OF(t, os.t), os.seq++, fn, arg, n };
    size_t i = os.heap_count++;

    if (t == OS_NEVER) {
        os.heap_count--;
        return;
    }
    if (i == os.heap_room) {
        os.heap_room = os.heap_room ? os.heap_room * 2 : 256;
        os.heap = realloc(os.heap, os.heap_room * sizeof *os.heap);
        if (!os.heap)
            abort();
    }
    for (; i && before(&ev, &os.heap[(i - 1) / 2]); i = (i - 1) / 2)
        os.heap[i] = os.heap[(i - 1) / 2];
    os.heap[i] = ev;
}

static struct os_event take_first(void)
{
    const struct os_event first = os.heap[0], last = os.heap[--os.heap_count];
    size_t i = 0;

    for (size_t child; (child = 2 * i + 1) < os.heap_count; i = child) {
        if (child + 1 < os.heap_count && before(&os.heap[child + 1], &os.heap[child]))
            child++;
        if (!before(&os.heap[child], &last))
            break;
        os.heap[i] = os.heap[child];
    }
    os.heap[i] = last;
    return first;
}

bool os_run(uint64_t until_t)
{
    while (!os.fail[0] && os.heap_count && os.heap[0].t <= until_t) {
        const struct os_event ev = take_first();

        os.t = ev.t;
        ev.fn(ev.arg, ev.n);
    }
    if (!os.fail[0])
        os.t = MAX_OF(os.t, until_t);
    return !os.fail[0];
}

uint64_t os_random(uint64_t from, uint64_t to)
{
    return from + rng_below(&os.rng, to > from ? to - from : 1);
}

bool os_chance(uint64_t one_in)
{
    return rng_below(&os.rng, one_in) == 0;
}

/* ---- processes ---- */

static void process_gone(struct os_process *p, bool power_lost)
{
    p->state = OS_ENDED;
    os_sockets_close(p, power_lost);
    os_memory_free(p);
    stack_give(p->stack);
    p->stack = NULL;
    if (p->ended)
        p->ended(p->ended_ctx, p);
}

static void trampoline(void)
{
    struct os_process *p = os.current;

    p->exit_code = p->main(p->arg);
    p->killed = true;
    setcontext(&os.scheduler);
}

static void resume(struct os_process *p)
{
    p->state = OS_RUNNING;
    os.current = p;
    if (swapcontext(&os.scheduler, &p->context) < 0)
        abort();
    os.current = NULL;
    if (p->killed)
        process_gone(p, false);
}

static void on_run(void *arg, uint64_t n)
{
    struct os_process *p = arg;

    if (p->state == OS_ENDED)
        return;
    if (p->stopped_t > os.t) {
        os_at(p->stopped_t, on_run, p, 0);
        return;
    }
    p->wake_sent = false;
    resume(p);
}

void os_wake(struct os_process *p)
{
    if (p->state != OS_WAITING || p->wake_sent)
        return;
    p->wake_sent = true;
    os_at(os.t, on_run, p, 0);
}

static void on_wait_over(void *arg, uint64_t number)
{
    struct os_process *p = arg;

    if (p->wait_number == number)
        os_wake(p);
}

void os_wait(uint64_t until_t)
{
    struct os_process *p = os.current;

    p->wait_number++;
    p->state = OS_WAITING;
    os_at(until_t, on_wait_over, p, p->wait_number);
    if (swapcontext(&p->context, &os.scheduler) < 0)
        abort();
    p->wait_number++;
}

void os_exit(int code)
{
    os.current->exit_code = code;
    os.current->killed = true;
    setcontext(&os.scheduler);
    abort(); /* setcontext does not return. */
}

struct os_process *os_process_start(struct os_machine *m, const char *name,
                                    int (*main)(void *arg), void *arg)
{
    struct os_process *p = os_alloc(sizeof *p);

    (void)snprintf(p->name, sizeof p->name, "%s", name);
    p->machine = m;
    p->pid = os.next_pid++;
    p->main = main;
    rng_init(&p->rng, (uint64_t)p->pid);
    p->arg = arg;
    p->stack = stack_take();
    if (getcontext(&p->context) < 0)
        abort();
    p->context.uc_stack.ss_sp = p->stack;
    p->context.uc_stack.ss_size = STACK_SIZE;
    makecontext(&p->context, trampoline, 0);
    if (os.last_process)
        os.last_process->next = p;
    else
        os.processes = p;
    os.last_process = p;
    p->wake_sent = true;
    os_at(os.t, on_run, p, 0);
    return p;
}

static void end_process(struct os_process *p, int sig, bool power_lost)
{
    if (p->state == OS_ENDED)
        return;
    p->exit_code = -sig;
    if (p == os.current)
        p->killed = true; /* A process that kills itself ends at its next wait. */
    else
        process_gone(p, power_lost);
}

void os_signal(struct os_process *p, int sig)
{
    if (p->state == OS_ENDED || (sig != SIGKILL && uv_take_signal(p, sig)))
        return;
    end_process(p, sig, false);
}

void os_stop_until(struct os_process *p, uint64_t t)
{
    p->stopped_t = MAX_OF(p->stopped_t, t);
}

/* ---- machines ---- */

struct os_machine *os_machine_add(const char *name)
{
    struct os_machine *m = os_alloc(sizeof *m);

    if (os.machine_count == os.machine_room) {
        os.machine_room = os.machine_room ? os.machine_room * 2 : 16;
        os.machines = realloc(os.machines, os.machine_room * sizeof(void *));
        if (!os.machines)
            abort();
    }
    os.machines[os.machine_count] = m;
    m->index = os.machine_count++;
    (void)snprintf(m->name, sizeof m->name, "%s", name);
    m->ip = OS_FIRST_IP + (uint32_t)m->index;
    m->up = true;
    m->boot_us = os_random(1, 100000) * OS_SECOND;
    m->next_port = 40000;
    return m;
}

void os_machine_off(struct os_machine *m)
{
    m->up = false;
    for (struct os_process *p = os.processes; p; p = p->next)
        if (p->machine == m)
            end_process(p, SIGKILL, true);
}

void os_machine_on(struct os_machine *m)
{
    m->up = true;
    m->boot_us = 0;
}

/* ---- a job ---- */

void os_begin(uint64_t seed, bool loud)
{
    os = (struct os){ .heap = os.heap,
                      .heap_room = os.heap_room,
                      .machines = os.machines,
                      .machine_room = os.machine_room,
                      .loud = loud };
    os.next_pid = 1000;
    rng_init(&os.rng, rng_mix(seed));
}

void os_end(void)
{
    for (struct os_process *p = os.processes; p; p = p->next) {
        p->ended = NULL;
        end_process(p, SIGKILL, true);
    }
    os.heap_count = 0;
    free_chunks();
}

void os_log(const char *who, const char *fmt, ...)
{
    va_list ap;

    if (!os.loud)
        return;
    printf("%10.4f  %-10s ", (double)os.t / 1e6, who);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
}

void os_must(int rc)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "muster-sim: %s\n", muster_code_text(rc));
    abort();
}

void os_fail(const char *fmt, ...)
{
    size_t len;
    va_list ap;

    if (os.fail[0])
        return;
    len = (size_t)snprintf(os.fail, sizeof os.fail, "at %.6f s: ", (double)os.t / 1e6);
    va_start(ap, fmt);
    (void)vsnprintf(os.fail + len, sizeof os.fail - len, fmt, ap);
    va_end(ap);
    os_log("", "BROKEN PROMISE %s", os.fail);
}
