/* start_watch.c - see start_watch.h. */
#include "warm/start_watch.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "warm/core/warm_core.h"

#define LOOK_MS    250
#define GIVE_UP_MS 60000

/* 1: it has a socket; 0: not yet; -1: it cannot be looked at. */
static int has_socket(pid_t pid)
{
    char path[300], link[64];
    int found = 0;

    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    if (!dir)
        return -1;
    for (struct dirent *e; !found && (e = readdir(dir));) {
        snprintf(path, sizeof path, "/proc/%d/fd/%s", (int)pid, e->d_name);
        const ssize_t n = readlink(path, link, sizeof link - 1);
        found = n > 7 && strncmp(link, "socket:", 7) == 0;
    }
    closedir(dir);
    return found;
}

static void start_watch_on_timer(uv_timer_t *timer)
{
    struct start_watch *w = timer->data;
    const uint64_t ms = uv_now(timer->loop) - w->began_ms;
    const int found = has_socket(w->pid);
    struct warm_text text;

    if (found == 0 && ms < GIVE_UP_MS)
        return;
    uv_timer_stop(timer);
    if (found != 1)
        return;
    warm_hint(ms, &text);
    if (text.level == WARM_QUIET)
        return;
    w->notified = true;
    log_line(w->log, LOG_WARN, AT_WARM, "%s", text.text);
}

void start_watch_init(struct start_watch *w, uv_loop_t *loop, const struct log *log)
{
    *w = (struct start_watch){ .log = log };
    uv_timer_init(loop, &w->timer);
    w->timer.data = w;
}

void start_watch_begin(struct start_watch *w, pid_t pid)
{
    if (w->notified)
        return;
    w->pid = pid;
    w->began_ms = uv_now(w->timer.loop);
    uv_timer_start(&w->timer, start_watch_on_timer, LOOK_MS, LOOK_MS);
}

void start_watch_stop(struct start_watch *w)
{
    uv_timer_stop(&w->timer);
}

void start_watch_close(struct start_watch *w)
{
    uv_close((uv_handle_t *)&w->timer, NULL);
}
