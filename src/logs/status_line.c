/* status_line.c - the one line at the bottom of a terminal; see log_writer.h. */
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/escape.h"
#include "base/text_list.h"
#include "logs/log_writer.h"

#define BACK  "\033[A\r\033[K" /* to the line above, and empty it */
#define CYAN  "\033[36m"
#define PLAIN "\033[0m"

void log_writer_on_screen(struct log_writer *w, struct log_screen *screen,
                          char *const *envp)
{
    const char *term = env_get(envp, "TERM"), *plain = env_get(envp, "NO_COLOR");
    const bool lines = isatty(w->fd) && term && *term && strcmp(term, "dumb") != 0;

    *screen =
        (struct log_screen){ .lines = lines, .colours = lines && !(plain && *plain) };
    w->screen = screen;
}

void log_writer_set_brief(struct log_writer *w, const char *failure)
{
    const bool more = w->format || MIN_OF(w->log.least, w->log.torch_least) < LOG_WARN;

    w->screen->brief =
        failure ? strcmp(failure, "short") == 0 : w->screen->lines && !more;
}

/* A line that wraps could not be taken back. */
static int width(int fd)
{
    struct winsize size;

    return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col - 1 : 79;
}

void status_line(const struct log_writer *w, const char *text)
{
    struct log_screen *s = w->screen;
    struct pollfd ready = { .fd = w->fd, .events = POLLOUT };
    char clean[1024] = ""; /* Names of nodes come from strangers. */
    struct buf b;

    if (w->fd < 0 || !s || !s->lines || (!text && !s->shown))
        return;
    if (text)
        escape_text(clean, sizeof clean, span_str(text));
    buf_init(&b, SIZE_MAX);
    /* Ends in a newline, so that a shell's prompt has its own line even if we are
     * killed. A terminal that takes nothing right now does not get the line. */
    if (buf_append_str(&b, s->shown ? BACK : "") == 0 &&
        (!text || buf_printf(&b, "%s%.*s%s\n", s->colours ? CYAN : "", width(w->fd),
                             clean, s->colours ? PLAIN : "") == 0) &&
        poll(&ready, 1, 0) == 1 && write(w->fd, buf_data(&b), buf_len(&b)) > 0)
        s->shown = text != NULL;
    buf_fini(&b);
}
