/* guard_child_kill.c - the guard as executioner: signals to workers, to what they left
 * behind, and to all that descends from the guard. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "loop/remove_tree.h"
#include "process/guard_child.h"

#define AGAIN_MS   5
#define GIVE_UP_MS 60000 /* Only a process stuck in the kernel takes that long. */
#define SERVICES_MS                                                                    \
    2000 /* Services go last, but do not wait longer for the rest to end. */

static bool is_worker(const struct guard_child *k, pid_t pid)
{
    for (size_t i = 0; i < k->count; i++)
        if (k->held[i].pid == pid)
            return true;
    return false;
}

/* A stopped process takes no signal but SIGKILL until it goes on: asked to end, it
 * would sit there for as long as it is given. */
static void wake(pid_t pid, pid_t to, int sig)
{
    if (sig != SIGKILL && proc_state(pid, NULL) == 'T')
        kill(to, SIGCONT);
}

static void signal_list(const struct proc_list *l, int sig)
{
    for (size_t i = 0; i < l->count; i++)
        if (kill(l->pids[i], sig) == 0)
            wake(l->pids[i], l->pids[i], sig);
}

/* One that is only just being started leads no group yet: then it gets it alone, and it
 * waits there until the program is loaded. */
static void signal_worker(const struct guarded_worker *w, int sig)
{
    const bool all = w->group && kill(-w->pid, sig) == 0;

    if (!all && (!w->group || errno == ESRCH))
        kill(w->pid, sig);
    wake(w->pid, all ? -w->pid : w->pid, sig);
}

void guard_child_signal(struct guard_child *k, uint32_t id, int sig)
{
    for (size_t i = k->count; i-- > 0;) {
        if (k->held[i].id != id)
            continue;
        if (k->held[i].pid == 0)
            guard_child_cancel(k, i, sig);
        else
            signal_worker(&k->held[i], sig);
    }
}

void guard_child_pass_on(const struct guard_child *k, uint32_t id, int sig)
{
    for (size_t i = 0; i < k->count; i++) {
        const struct guarded_worker *w = &k->held[i];

        if (w->id == id && w->pid != 0 && proc_catches(w->pid, sig))
            kill(w->pid, sig);
    }
}

/* To those children of ours that are neither workers nor services, and to all below
 * them; workers too, if asked for. */
static void signal_below(const struct guard_child *k, bool workers, int sig)
{
    struct proc_list top = { 0 };

    proc_children(getpid(), &top); /* What it found before a failure counts too. */
    for (size_t i = 0; i < top.count; i++) {
        struct proc_list below = { 0 };

        if (guard_child_is_service(k, top.pids[i]) ||
            (!workers && is_worker(k, top.pids[i])))
            continue;
        proc_descendants(top.pids[i], &below);
        kill(top.pids[i], sig);
        wake(top.pids[i], top.pids[i], sig);
        signal_list(&below, sig);
        proc_list_fini(&below);
    }
    proc_list_fini(&top);
}

void guard_child_kill_below(const struct guard_child *k)
{
    signal_below(k, true, SIGKILL);
}

void guard_child_signal_leftovers(const struct guard_child *k, int sig)
{
    signal_below(k, false, sig);
}

/* They are most likely stuck in the kernel. SIGKILL is pending for each of them. */
void guard_child_give_up(struct guard_child *k)
{
    k->killing = false;
    k->count = 0;
    k->given_up.count = 0;
    (void)proc_children(getpid(), &k->given_up);
    for (size_t i = 0; i < k->service_count; i++)
        guard_child_forget(k, k->services[i].pid);
}

void guard_child_forget(struct guard_child *k, pid_t pid)
{
    for (size_t i = 0; i < k->given_up.count; i++)
        if (k->given_up.pids[i] == pid)
            k->given_up.pids[i--] = k->given_up.pids[--k->given_up.count];
}

static bool is_given_up(const struct guard_child *k, pid_t pid)
{
    for (size_t i = 0; i < k->given_up.count; i++)
        if (k->given_up.pids[i] == pid)
            return true;
    return false;
}

bool guard_child_is_empty(const struct guard_child *k)
{
    struct proc_list now = { 0 };
    bool empty = (k->given_up.count > 0 || k->service_count > 0) &&
                 proc_children(getpid(), &now) == 0;

    for (size_t i = 0; empty && i < now.count; i++)
        empty = is_given_up(k, now.pids[i]) || guard_child_is_service(k, now.pids[i]);
    proc_list_fini(&now);
    return empty;
}

/* Reaps what has ended; a service is forgotten once it is gone. False: no child is
 * left, so nothing is below us. */
static bool reap_some(struct guard_child *k)
{
    pid_t pid;

    while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
        for (size_t i = 0; i < k->service_count; i++)
            if (k->services[i].pid == pid)
                k->services[i] = k->services[--k->service_count];
    return pid == 0;
}

void guard_child_end(struct guard_child *k)
{
    const int tries = GIVE_UP_MS / AGAIN_MS;

    k->given_up.count = 0;
    for (size_t i = 0; i < k->count; i++)
        if (k->held[i].go >= 0)
            close(k->held[i].go); /* One that is just being forked exits then. */
    for (int i = 0; i < tries && reap_some(k); i++) {
        if (guard_child_is_empty(k) || i > SERVICES_MS / AGAIN_MS)
            k->service_count = 0; /* From now on services are killed like all others. */
        guard_child_kill_below(k);
        nanosleep(&(struct timespec){ 0, i < 20 ? 500000L : AGAIN_MS * 1000000L },
                  NULL);
    }
    if (k->tidy && *k->tidy)
        (void)remove_empty_dirs(AT_FDCWD, k->tidy);
    _exit(0);
}
