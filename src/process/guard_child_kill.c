/* guard_child_kill.c - the guard as executioner: signals to workers, to what they left
 * behind, and to all that descends from the guard. */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "process/guard_child.h"

#define AGAIN_MS 5
#define GIVE_UP_MS                                                                     \
    60000 /* Nothing but a process stuck in the kernel takes so long.                  \
           */

static bool is_worker(const struct guard_child *k, pid_t pid)
{
    for (size_t i = 0; i < k->count; i++)
        if (k->held[i].pid == pid)
            return true;
    return false;
}

static void signal_list(const struct proc_list *l, int sig)
{
    for (size_t i = 0; i < l->count; i++)
        kill(l->pids[i], sig);
}

/* One that is only just being started leads no group yet: then it gets it alone, and it
 * waits there until the program is loaded. */
static void signal_worker(const struct guarded_worker *w, int sig)
{
    if (!w->group || (kill(-w->pid, sig) < 0 && errno == ESRCH))
        kill(w->pid, sig);
}

void guard_child_signal(const struct guard_child *k, uint32_t id, int sig)
{
    for (size_t i = 0; i < k->count; i++)
        if (k->held[i].id == id)
            signal_worker(&k->held[i], sig);
}

void guard_child_kill_below(void)
{
    struct proc_list l = { 0 };
    proc_descendants(getpid(), &l); /* What it found before a failure counts too. */
    signal_list(&l, SIGKILL);
    proc_list_fini(&l);
}

/* Stuck in the kernel, most likely. SIGKILL waits there for each of them. */
void guard_child_give_up(struct guard_child *k)
{
    k->killing = false;
    k->count = 0;
    k->given_up.count = 0;
    (void)proc_children(getpid(), &k->given_up);
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

bool guard_child_only_given_up(const struct guard_child *k)
{
    struct proc_list now = { 0 };
    bool only = k->given_up.count > 0 && proc_children(getpid(), &now) == 0;

    for (size_t i = 0; only && i < now.count; i++)
        only = is_given_up(k, now.pids[i]);
    proc_list_fini(&now);
    return only;
}

void guard_child_signal_leftovers(const struct guard_child *k, int sig)
{
    struct proc_list top = { 0 };

    proc_children(getpid(), &top);
    for (size_t i = 0; i < top.count; i++) {
        if (is_worker(k, top.pids[i]))
            continue;
        struct proc_list below = { 0 };
        proc_descendants(top.pids[i], &below);
        kill(top.pids[i], sig);
        signal_list(&below, sig);
        proc_list_fini(&below);
    }
    proc_list_fini(&top);
}

bool guard_kill_strays(void)
{
    struct proc_list top = { 0 }, all = { 0 };
    const pid_t ours = getsid(0);
    bool found = false;

    proc_children(getpid(), &top);
    for (size_t i = 0; i < top.count; i++) {
        if (getsid(top.pids[i]) == ours || waitpid(top.pids[i], NULL, WNOHANG) > 0)
            continue; /* the caller's own; already dead */
        found = true;
        proc_descendants(top.pids[i], &all);
        kill(top.pids[i], SIGKILL);
    }
    signal_list(&all, SIGKILL);
    proc_list_fini(&all);
    proc_list_fini(&top);
    return found;
}

void guard_child_end(void)
{
    const int tries = GIVE_UP_MS / AGAIN_MS;

    for (int i = 0; i < tries; i++) {
        pid_t pid;
        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
            ;
        if (pid < 0)
            break; /* No child, so nothing below us. */
        guard_child_kill_below();
        nanosleep(&(struct timespec){ 0, i < 20 ? 500000L : AGAIN_MS * 1000000L },
                  NULL);
    }
    _exit(0);
}
