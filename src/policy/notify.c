/* notify.c - see notify.h. */
#include "policy/notify.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "loop/file.h"
#include "net/curl_dl.h"
#include "process/proc.h"

#define LINE_MAX_BYTES 65536u
#define AT_ONCE        64  /* deliveries under way */
#define FOR_S          60  /* that one is tried */
#define TRY_S          10L /* for one answer */

static bool is_url(const char *target)
{
    return strncmp(target, "http://", 7) == 0 || strncmp(target, "https://", 8) == 0;
}

static size_t ignore_answer(char *data, size_t size, size_t count, void *ctx)
{
    (void)data;
    (void)ctx;
    return size * count;
}

/* True: it is done with, and *status may say that the server did not want it. */
static bool post(const char *url, struct span json, long *status)
{
    struct curl_slist *headers =
        curl_slist_append(NULL, "Content-Type: application/json");
    CURL *curl = curl_easy_init();

    if (!curl || !headers)
        return false;
    (void)curl_easy_setopt(curl, CURLOPT_URL, url);
    (void)curl_easy_setopt(curl, CURLOPT_POSTFIELDS, json.p);
    (void)curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, (long)json.n);
    (void)curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    (void)curl_easy_setopt(curl, CURLOPT_TIMEOUT, TRY_S);
    (void)curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, ignore_answer);
    const bool sent = curl_easy_perform(curl) == CURLE_OK;

    (void)curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, status);
    curl_easy_cleanup(curl);
    curl_slist_free_all(headers);
    /* What the server understood and refused will not be better the next time. */
    return sent && *status != 429 && *status < 500;
}

static bool hand_over(const char *command, struct span json)
{
    int ends[2], status = -1;

    if (pipe(ends) < 0)
        return false;
    const pid_t pid = fork();
    if (pid == 0) {
        (void)dup2(ends[0], STDIN_FILENO);
        close(ends[0]);
        close(ends[1]);
        (void)execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    close(ends[0]);
    (void)file_write_all(ends[1], json);
    close(ends[1]);
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

/* What a delivery, in a process of its own, says to the agent if it fails. */
static struct {
    int fd;
    char text[NOTIFY_WORD_MAX];
} word;

/* Not its URL or command, which may hold a password. */
static void set_word(size_t target, const char *event, const char *why)
{
    (void)snprintf(word.text, sizeof word.text, "target %zu was not told of the %s: %s",
                   target + 1, event, why);
}

static void give_up(int sig)
{
    (void)sig;
    (void)send(word.fd, word.text, strlen(word.text), MSG_DONTWAIT | MSG_NOSIGNAL);
    _exit(1);
}

static void deliver(const char *target, size_t number, const char *event,
                    struct span json)
{
    unsigned pause = 1;
    long status = 0;
    char why[64];

    set_word(number, event, "libcurl cannot be loaded");
    if (is_url(target) && curl_dl_load(NULL) < 0)
        give_up(0);
    set_word(number, event, "a minute of attempts has failed");
    (void)signal(SIGALRM, give_up);
    (void)alarm(FOR_S + TRY_S);
    for (unsigned waited = 0; waited < FOR_S; waited += pause, pause *= 2) {
        if (is_url(target) ? post(target, json, &status) : hand_over(target, json)) {
            if (status < 400)
                return;
            (void)snprintf(why, sizeof why, "the server answered with status %ld",
                           status);
            set_word(number, event, why);
            break;
        }
        (void)sleep(pause);
    }
    give_up(0);
}

static void deliver_to_all(const struct text_list *targets, const char *event,
                           struct span json)
{
    static int running;

    while (running > 0 && waitpid(-1, NULL, WNOHANG) > 0)
        running--;
    for (size_t i = 0; i < targets->count; i++) {
        const pid_t pid = running < AT_ONCE ? fork() : -1;

        if (pid == 0) {
            deliver(targets->items[i], i, event, json);
            _exit(0);
        }
        running += pid > 0;
    }
}

static void serve(int fd, const struct text_list *targets)
{
    char *room = mem_alloc(LINE_MAX_BYTES);
    ssize_t n;

    if (!room)
        return;
    word.fd = fd;
    while ((n = recv(fd, room, LINE_MAX_BYTES, 0)) > 0 || (n < 0 && errno == EINTR)) {
        char *json = n > 0 ? memchr(room, ' ', (size_t)n) : NULL;

        if (!json)
            continue;
        *json++ = '\0';
        deliver_to_all(targets, room, span_of(json, (size_t)(room + n - json)));
    }
    mem_free(room);
}

/* What the terminal or the batch system does to the job is not meant for it; and
 * whoever reads the job's output must not wait for it. */
static void detach(int keep)
{
    const int none = open("/dev/null", O_RDWR);

    (void)setsid();
    (void)signal(SIGHUP, SIG_IGN);
    (void)signal(SIGINT, SIG_IGN);
    (void)signal(SIGPIPE, SIG_IGN);
    for (int fd = 0; fd <= 2; fd++)
        (void)dup2(none, fd);
    if (keep > 3)
        proc_close_range(3, (unsigned)keep - 1);
    proc_close_range((unsigned)MAX_OF(keep, 2) + 1, ~0U);
}

int notify_start(const struct text_list *targets)
{
    int ends[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
        return -1;
    const pid_t pid = fork();

    if (pid == 0) {
        if (fork() == 0) { /* not a child of the job's */
            detach(ends[1]);
            serve(ends[1], targets);
        }
        _exit(0);
    }
    close(ends[1]);
    if (pid < 0 || waitpid(pid, NULL, 0) != pid) {
        close(ends[0]);
        return -1;
    }
    return ends[0];
}

void notify_send(int fd, struct span line)
{
    (void)send(fd, line.p, MIN_OF(line.n, LINE_MAX_BYTES), MSG_DONTWAIT | MSG_NOSIGNAL);
}
