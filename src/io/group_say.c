/* group_say.c - what the agent says while it works, in torchrun's words. */
#include <signal.h>

#include "io/group_int.h"
#include "io/where.h"

static const struct agent_worker *worker_of(const struct agent *a,
                                            const struct group_fx *fx)
{
    return &a->workers[fx->worker];
}

void agent_say(struct agent *a, const struct group_fx *fx)
{
    const struct notes *n = a->opts.notes;

    switch (fx->kind) {
    case GROUP_FX_SAY_SIGNAL:
        note(n, NOTE_WARN, AT_DEATH_SIGNAL,
             "Received %d death signal, shutting down workers", fx->sig);
        break;
    case GROUP_FX_SIGNAL:
        if (worker_of(a, fx)->pid == 0) /* It never came to be. */
            break;
        note(n, NOTE_WARN, AT_CLOSING, "Sending process %d closing signal %s",
             (int)worker_of(a, fx)->pid, agent_signal_name(fx->sig));
        break;
    case GROUP_FX_SAY_KILL:
        note(n, NOTE_WARN, AT_KILLING,
             "Unable to shutdown process %d via %d, forcefully exiting via %d",
             (int)worker_of(a, fx)->pid, fx->sig, SIGKILL);
        break;
    case GROUP_FX_SAY_ABANDONED:
        note(n, NOTE_ERROR, AT_ABANDONED,
             "Process %d did not exit after SIGKILL within %us; abandoning and "
             "continuing teardown. Worker may be in uninterruptible kernel sleep (e.g. "
             "wedged on GPU/NIC); host may need to be recycled.",
             (int)worker_of(a, fx)->pid, GROUP_REAP_MS / 1000);
        break;
    case GROUP_FX_SAY_FAILED:
        agent_failed(a);
        break;
    case GROUP_FX_SAY_BARRIER:
        note(n, NOTE_WARN, AT_BARRIER_SIGNAL, "Got termination signal: %d", fx->sig);
        break;
    case GROUP_FX_SAY_NO_BARRIER:
        note(n, NOTE_ERROR, AT_BARRIER_ERROR,
             "Error waiting on exit barrier. Elapsed: %.2f seconds\n%s",
             (double)(uv_hrtime() - a->phase_began_ns) / 1e9,
             a->fatal.code   ? a->fatal.text
             : a->run_closed ? "Another node has closed the run: it failed, or was "
                               "ended. Its log tells why."
                             : "Another node was lost.");
        break;
    case GROUP_FX_SAY_SUCCEEDED:
    case GROUP_FX_SAY_TERMINATED:
    case GROUP_FX_JOIN:
    case GROUP_FX_CANCEL_JOIN:
    case GROUP_FX_ASSIGN:
    case GROUP_FX_START:
    case GROUP_FX_LEFTOVERS:
    case GROUP_FX_KILL_ALL:
    case GROUP_FX_DRAIN:
    case GROUP_FX_BARRIER:
    case GROUP_FX_LEAVE:
    case GROUP_FX_FINISH:
        break;
    }
}
