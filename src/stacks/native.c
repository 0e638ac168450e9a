/* native.c - see native.h. PTRACE_SEIZE leaves no trace: should this process be killed
 * in the middle, the kernel lets the thread go on. PTRACE_ATTACH, which sends a
 * SIGSTOP, could leave a worker stopped for good. */
#include "stacks/native.h"

#include "base/err.h"

#if defined(HAVE_LIBDW) && (defined(__x86_64__) || defined(__aarch64__))

#include <assert.h>
#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "stacks/dw_dl.h"

#define STACK_BYTES  (256u * 1024u)
#define PAGE_BYTES   4096u
#define HOLD_US      20000 /* a thread that does not stop by then is let go */
#define HOLD_STEP_US 20

struct snapshot {
    pid_t pid, tid;
    struct user_regs_struct regs;
    uint64_t from; /* the address of the first byte copied */
    uint8_t bytes[STACK_BYTES];
    size_t count;
    Dwarf_Addr pcs[STACK_FRAMES_MAX];
    size_t pc_count;
};

static uint64_t stack_pointer(const struct user_regs_struct *r)
{
#if defined(__x86_64__)
    return r->rsp;
#else
    return r->sp;
#endif
}

/* --- the moment ------------------------------------------------------------------- */

static void copy_stack(struct snapshot *s)
{
    const uint64_t sp = stack_pointer(&s->regs);

    s->from = sp;
    while (s->count < STACK_BYTES) {
        const size_t want = MIN_OF((size_t)(PAGE_BYTES - (sp + s->count) % PAGE_BYTES),
                                   STACK_BYTES - s->count);
        const struct iovec to = { s->bytes + s->count, want };
        const struct iovec of = { (void *)(uintptr_t)(sp + s->count), want };

        if (process_vm_readv(s->pid, &to, 1, &of, 1, 0) != (ssize_t)want)
            return; /* The end of the stack. */
        s->count += want;
    }
}

static bool wait_for_stop(pid_t tid)
{
    for (int us = 0; us < HOLD_US; us += HOLD_STEP_US) {
        int status;
        const pid_t got = waitpid(tid, &status, __WALL | WNOHANG);

        if (got == tid)
            return WIFSTOPPED(status);
        if (got < 0)
            return false;
        nanosleep(&(struct timespec){ 0, HOLD_STEP_US * 1000L }, NULL);
    }
    return false;
}

static int snapshot_take(struct snapshot *s, struct muster_error *err)
{
    struct iovec regs = { &s->regs, sizeof s->regs };

    if (ptrace(PTRACE_SEIZE, s->tid, NULL, NULL) < 0)
        return err_set(err, errno == EPERM ? MUSTER_EACCES : MUSTER_EIO, "ptrace: %s",
                       strerror(errno));
    if (ptrace(PTRACE_INTERRUPT, s->tid, NULL, NULL) < 0 || !wait_for_stop(s->tid))
        return err_set(err, MUSTER_EIO, "the thread does not come out of the kernel");
    const bool read =
        ptrace(PTRACE_GETREGSET, s->tid, (void *)(uintptr_t)NT_PRSTATUS, &regs) == 0;
    if (read)
        copy_stack(s);
    ptrace(PTRACE_DETACH, s->tid, NULL, NULL);
    if (!read)
        return err_set(err, MUSTER_EIO, "its registers cannot be read");
    return 0;
}

/* In a process of its own, whose end makes the kernel let go of a thread that did not
 * stop in time: only one that has stopped can be let go by request, and this one would
 * stop later and stay so for as long as we live. */
static int take_apart(struct snapshot *s, struct muster_error *err)
{
    volatile int rc = err_set(err, MUSTER_EIO, "reading it was cut short");
    const pid_t child = vfork();

    if (child == 0) {
        rc = snapshot_take(s, err);
        _exit(0);
    }
    if (child < 0)
        return err_set(err, MUSTER_EIO, "ptrace: %s", strerror(errno));
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
    return rc;
}

/* --- unwinding -------------------------------------------------------------------- */

static pid_t next_thread(Dwfl *dwfl, void *arg, void **thread_arg)
{
    struct snapshot *s = arg;

    (void)dwfl;
    if (*thread_arg)
        return 0;
    *thread_arg = s;
    return s->tid;
}

static bool get_thread(Dwfl *dwfl, pid_t tid, void *arg, void **thread_arg)
{
    (void)dwfl;
    (void)tid;
    *thread_arg = arg;
    return true;
}

static bool read_word(Dwfl *dwfl, Dwarf_Addr addr, Dwarf_Word *out, void *arg)
{
    struct snapshot *s = arg;

    (void)dwfl;
    if (addr >= s->from && addr - s->from < s->count &&
        s->count - (addr - s->from) >= sizeof *out) {
        memcpy(out, s->bytes + (addr - s->from), sizeof *out);
        return true;
    }
    const struct iovec to = { out, sizeof *out };
    const struct iovec of = { (void *)(uintptr_t)addr, sizeof *out };
    return process_vm_readv(s->pid, &to, 1, &of, 1, 0) == (ssize_t)sizeof *out;
}

static bool set_registers(Dwfl_Thread *thread, void *arg)
{
    const struct snapshot *s = arg;
    const struct user_regs_struct *r = &s->regs;

#if defined(__x86_64__)
    const Dwarf_Word regs[] = { r->rax, r->rdx, r->rcx, r->rbx, r->rsi, r->rdi,
                                r->rbp, r->rsp, r->r8,  r->r9,  r->r10, r->r11,
                                r->r12, r->r13, r->r14, r->r15, r->rip };
#else
    Dwarf_Word regs[32];

    for (size_t i = 0; i < 31; i++)
        regs[i] = r->regs[i];
    regs[31] = r->sp;
    dw_dl.thread_state_register_pc(thread, r->pc);
#endif
    return dw_dl.thread_state_registers(thread, 0, ARRAY_LEN(regs), regs);
}

static int on_frame(Dwfl_Frame *frame, void *arg)
{
    struct snapshot *s = arg;
    bool activation;
    Dwarf_Addr pc;

    if (!dw_dl.frame_pc(frame, &pc, &activation))
        return DWARF_CB_ABORT;
    s->pcs[s->pc_count++] = pc - (activation ? 0 : 1);
    return s->pc_count < STACK_FRAMES_MAX ? DWARF_CB_OK : DWARF_CB_ABORT;
}

/* Never look for debug information elsewhere: it may be as far as another host. */
static int no_debuginfo(Dwfl_Module *mod, void **user, const char *name,
                        Dwarf_Addr base, const char *file, const char *link,
                        GElf_Word crc, char **out)
{
    (void)mod, (void)user, (void)name, (void)base, (void)file, (void)link, (void)crc;
    (void)out;
    return -1;
}

/* --- names ------------------------------------------------------------------------ */

/* "c10d::Work::wait" of "c10d::Work::wait(std::chrono::...)": what is between the
 * outermost angle brackets and parentheses says little and may be pages long. */
static void shorten(char *name)
{
    size_t depth = 0, n = 0;

    for (const char *p = name; *p; p++) {
        if (strncmp(p, "operator", 8) == 0)
            break; /* operator< and operator() are not brackets */
        if (*p == '<' || *p == '(')
            depth++;
        else if ((*p == '>' || *p == ')') && depth > 0)
            depth--;
        else if (depth == 0)
            name[n++] = *p;
    }
    if (n > 0)
        name[MIN_OF(n, (size_t)200)] = '\0';
}

/* A function without a name is told by its distance from the beginning of its library:
 * unlike its address, that is the same in all ranks, whose stacks are compared. */
static char *name_of(struct arena *a, Dwfl_Module *mod, Dwarf_Addr start, Dwarf_Addr pc)
{
    GElf_Off offset;
    GElf_Sym sym;
    const char *raw =
        mod ? dw_dl.module_addrinfo(mod, pc, &offset, &sym, NULL, NULL, NULL) : NULL;

    if (!mod)
        return arena_text(a, span_str("?"));
    if (!raw || !*raw)
        return arena_printf(a, "+0x%llx", (unsigned long long)(pc - start));
    char *clear = dw_dl.demangle && strncmp(raw, "_Z", 2) == 0
                      ? dw_dl.demangle(raw, NULL, NULL, NULL)
                      : NULL;
    if (clear)
        shorten(clear);
    char *name = arena_printf(a, "%.200s", clear ? clear : raw);
    free(clear); /* the C++ library's */
    return name;
}

static bool is_interpreter(const char *file)
{
    return strncmp(file, "libpython", 9) == 0 || strncmp(file, "python", 6) == 0;
}

/* From the interpreter on, its own frames tell nothing that Python's do not: one is
 * kept, so that it is known where they begin. */
static int name_frames(struct arena *a, Dwfl *dwfl, struct snapshot *s,
                       struct stack_thread *t)
{
    struct stack_frame *f = arena_alloc(a, s->pc_count, sizeof *f);
    size_t n = 0;

    for (size_t i = 0; f && i < s->pc_count; i++) {
        Dwfl_Module *mod = dw_dl.addrmodule(dwfl, s->pcs[i]);
        Dwarf_Addr start = 0;
        const char *path =
            mod ? dw_dl.module_info(mod, NULL, &start, NULL, NULL, NULL, NULL, NULL)
                : NULL;
        const char *slash = path ? strrchr(path, '/') : NULL;

        f[n].file = arena_text(a, span_str(slash ? slash + 1 : path ? path : "?"));
        f[n].name = name_of(a, mod, start, s->pcs[i]);
        if (!f[n].file || !f[n].name)
            return MUSTER_ENOMEM;
        if (is_interpreter(f[n++].file) && t->python_count > 0)
            break;
    }
    if (!f)
        return MUSTER_ENOMEM;
    t->native = f;
    t->native_count = n;
    return 0;
}

static int unwind(struct arena *a, struct snapshot *s, struct stack_thread *t,
                  struct muster_error *err)
{
    static const Dwfl_Thread_Callbacks threads = {
        .next_thread = next_thread,
        .get_thread = get_thread,
        .memory_read = read_word,
        .set_initial_registers = set_registers,
    };
    const Dwfl_Callbacks files = {
        .find_elf = dw_dl.linux_proc_find_elf,
        .find_debuginfo = no_debuginfo,
    };
    Dwfl *dwfl = dw_dl.begin(&files);
    int rc = 0;

    if (!dwfl)
        return err_nomem(err);
    if (dw_dl.linux_proc_report(dwfl, s->pid) != 0 ||
        dw_dl.report_end(dwfl, NULL, NULL) != 0 ||
        !dw_dl.attach_state(dwfl, NULL, s->pid, &threads, s))
        rc = err_set(err, MUSTER_EIO, "libdw: %s", dw_dl.errmsg(-1));
    if (rc == 0) {
        (void)dw_dl.getthread_frames(dwfl, s->tid, on_frame, s);
        rc = name_frames(a, dwfl, s, t);
    }
    dw_dl.end(dwfl);
    return rc;
}

int native_read(struct arena *a, struct stack_process *p, size_t thread,
                struct muster_error *err)
{
    struct snapshot *s;
    int rc = dw_dl_load(err);

    if (rc != 0)
        return rc;
    if (p->thread_count == 0) {
        p->threads = arena_alloc(a, 1, sizeof *p->threads);
        if (!p->threads)
            return err_nomem(err);
        p->threads[0] = (struct stack_thread){ .id = p->pid, .name = "" };
        p->thread_count = 1;
    }
    s = mem_calloc(1, sizeof *s);
    if (!s)
        return err_nomem(err);
    assert(thread < p->thread_count);
    s->pid = (pid_t)p->pid;
    s->tid = (pid_t)(thread > 0 ? p->threads[thread].id : p->pid);
    rc = take_apart(s, err);
    if (rc == 0)
        rc = unwind(a, s, &p->threads[thread], err);
    mem_free(s);
    return rc;
}

#else

int native_read(struct arena *a, struct stack_process *p, size_t thread,
                struct muster_error *err)
{
    (void)a;
    (void)p;
    (void)thread;
    return err_set(err, MUSTER_ENOTSUP, "this build reads no native frames");
}

#endif
