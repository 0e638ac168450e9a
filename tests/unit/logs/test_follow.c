/* test_follow.c - files followed to consoles that are slow, stuck or gone, with and
 * without inotify. The consoles are pipes, the test writes the files. What is awaited
 * is awaited as an event: only a failure takes its time. */
#include "logs/follow.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/buf.h"
#include "testing.h"

#define TICK_MS 5

/* --- inotify that can be used up, in the place of libc's -------------------------- */

static int init_errno; /* what inotify_init1 fails with; 0: it does not */
static int watch_errno, watches_left; /* inotify_add_watch, after so many */

int inotify_init1(int flags)
{
    errno = init_errno;
    return init_errno ? -1 : (int)syscall(SYS_inotify_init1, flags);
}

int inotify_add_watch(int fd, const char *path, uint32_t mask)
{
    errno = watch_errno;
    if (watch_errno && watches_left-- <= 0)
        return -1;
    return (int)syscall(SYS_inotify_add_watch, fd, path, mask);
}

/* --- two consoles, two files, a copy ---------------------------------------------- */

enum { OUT, ERR, COPY };

struct rig {
    uv_loop_t loop;
    uv_timer_t tick;
    struct tails *tails;
    int consoles[2];     /* the ends that a reader has; -1: it is gone */
    bool stuck[2];       /* its reader does not read */
    struct buf shown[2]; /* what readers have seen */
    char dir[64];
    int files[3];
    unsigned troubles, blinds, drains;
    int trouble_errnum, blind_errnum;
};

static void on_error(void *ctx, const char *name, int errnum)
{
    struct rig *r = ctx;

    assert_string_equal(name, "default0");
    r->troubles++;
    r->trouble_errnum = errnum;
}

static void on_blind(void *ctx, unsigned every_ms, int errnum)
{
    struct rig *r = ctx;

    assert_int_equal(every_ms, 100);
    r->blinds++;
    r->blind_errnum = errnum;
}

static void on_drained(void *ctx)
{
    struct rig *r = ctx;
    r->drains++;
}

static void on_tick(uv_timer_t *timer)
{
    (void)timer; /* uv_run returns, that is all. */
}

/* tails_open, with our pipes as stdout and stderr while it opens them. */
static int open_tails(struct rig *r)
{
    const struct tails_opts opts = { &r->loop, on_error, on_blind, r };
    int before[2], rc;

    fflush(NULL);
    for (int i = 0; i < 2; i++) {
        int ends[2];
        assert_int_equal(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
        before[i] = dup(STDOUT_FILENO + i);
        assert_true(dup2(ends[1], STDOUT_FILENO + i) >= 0);
        close(ends[1]);
        r->consoles[i] = ends[0];
    }
    rc = tails_open(&opts, &r->tails, NULL);
    for (int i = 0; i < 2; i++) {
        assert_true(dup2(before[i], STDOUT_FILENO + i) >= 0);
        close(before[i]);
    }
    return rc;
}

static const char *path_of(const struct rig *r, int which)
{
    static char path[128];

    (void)snprintf(path, sizeof path, "%s/%d", r->dir, which);
    return path;
}

static int rig_open(struct rig *r)
{
    *r = (struct rig){ 0 };
    signal(SIGPIPE, SIG_IGN);
    (void)snprintf(r->dir, sizeof r->dir, "/tmp/muster-tail-XXXXXX");
    assert_non_null(mkdtemp(r->dir));
    for (int i = 0; i < 3; i++)
        r->files[i] = open(path_of(r, i), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    buf_init(&r->shown[OUT], SIZE_MAX);
    buf_init(&r->shown[ERR], SIZE_MAX);
    uv_loop_init(&r->loop);
    uv_timer_init(&r->loop, &r->tick);
    uv_timer_start(&r->tick, on_tick, TICK_MS, TICK_MS);
    return open_tails(r);
}

static int follow(struct rig *r, int which, int copy_fd)
{
    static char *const needles[] = { (char *)"zz" };
    const struct tail_spec spec = { .path = path_of(r, which),
                                    .name = "default0",
                                    .prefix = span_str("P:"),
                                    .is_stderr = which == ERR,
                                    .needles = needles,
                                    .needle_count = 1,
                                    .copy_fd = copy_fd };
    return tails_add(r->tails, &spec, NULL);
}

static void rig_close(struct rig *r)
{
    tails_close(r->tails);
    uv_close((uv_handle_t *)&r->tick, NULL);
    uv_run(&r->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&r->loop), 0);
    for (int i = 0; i < 3; i++) {
        close(r->files[i]);
        unlink(path_of(r, i));
    }
    rmdir(r->dir);
    for (int i = 0; i < 2; i++) {
        if (r->consoles[i] >= 0)
            close(r->consoles[i]);
        buf_fini(&r->shown[i]);
    }
}

static void say(struct rig *r, int which, const char *text)
{
    assert_int_equal(write(r->files[which], text, strlen(text)), (ssize_t)strlen(text));
}

/* One turn of the loop, then of the readers. */
static void turn(struct rig *r)
{
    static char chunk[64 << 10];
    ssize_t n;

    uv_run(&r->loop, UV_RUN_ONCE);
    for (int i = 0; i < 2; i++)
        while (r->consoles[i] >= 0 && !r->stuck[i] &&
               (n = read(r->consoles[i], chunk, sizeof chunk)) > 0)
            assert_int_equal(buf_append(&r->shown[i], chunk, (size_t)n), 0);
}

static bool has_shown(const struct rig *r, int which, const char *text)
{
    const struct span s = buf_span(&r->shown[which]);
    return s.n == strlen(text) && memcmp(s.p, text, s.n) == 0;
}

static void until_shown(struct rig *r, int which, const char *text)
{
    const uint64_t by = uv_hrtime() + PATIENCE_MS * UINT64_C(1000000);

    while (!has_shown(r, which, text)) {
        if (uv_hrtime() > by)
            fail_msg("console %d never showed %s but %.*s", which, text,
                     (int)buf_len(&r->shown[which]),
                     (const char *)buf_data(&r->shown[which]));
        turn(r);
    }
}

static void until_copied(struct rig *r, const char *text)
{
    const uint64_t by = uv_hrtime() + PATIENCE_MS * UINT64_C(1000000);
    char copy[128] = "";

    while (strcmp(copy, text) != 0) {
        if (uv_hrtime() > by)
            fail_msg("the copy is %s, never %s", copy, text);
        turn(r);
        const ssize_t n = pread(r->files[COPY], copy, sizeof copy - 1, 0);
        copy[MAX_OF(n, 0)] = '\0';
    }
}

static void drain(struct rig *r)
{
    const uint64_t by = uv_hrtime() + PATIENCE_MS * UINT64_C(1000000);
    const unsigned before = r->drains;

    tails_drain(r->tails, on_drained, r);
    while (r->drains == before) {
        if (uv_hrtime() > by)
            fail_msg("the files are never shown in full");
        turn(r);
    }
}

/* --- no inotify ------------------------------------------------------------------- */

static void without_inotify(void **state)
{
    struct rig r;

    (void)state;
    init_errno = EMFILE;
    assert_int_equal(rig_open(&r), 0);
    init_errno = 0;
    assert_int_equal(r.blinds, 1);
    assert_int_equal(r.blind_errnum, EMFILE);
    assert_int_equal(follow(&r, OUT, -1), 0);
    assert_int_equal(follow(&r, ERR, -1), 0);
    say(&r, OUT, "one\n");
    until_shown(&r, OUT, "P:one\n");
    say(&r, ERR, "half");
    until_shown(&r, ERR, "P:half");
    say(&r, OUT, "two\n");
    until_shown(&r, OUT, "P:one\nP:two\n");
    drain(&r);
    assert_int_equal(r.troubles, 0);
    rig_close(&r);
}

/* The second file of two cannot be watched: both are shown, and so are those of the
 * next attempt. It is said once. */
static void without_watches(void **state)
{
    struct rig r;

    (void)state;
    watch_errno = ENOSPC;
    watches_left = 1;
    assert_int_equal(rig_open(&r), 0);
    assert_int_equal(follow(&r, OUT, -1), 0);
    assert_int_equal(r.blinds, 0);
    assert_int_equal(follow(&r, ERR, -1), 0);
    assert_int_equal(r.blinds, 1);
    assert_int_equal(r.blind_errnum, ENOSPC);
    say(&r, ERR, "err\n");
    until_shown(&r, ERR, "P:err\n");
    say(&r, OUT, "out\n");
    until_shown(&r, OUT, "P:out\n");
    drain(&r);
    assert_int_equal(follow(&r, OUT, -1), 0);
    until_shown(&r, OUT, "P:out\nP:out\n");
    say(&r, OUT, "more\n");
    until_shown(&r, OUT, "P:out\nP:out\nP:more\n");
    assert_int_equal(r.blinds, 1);
    watch_errno = 0;
    rig_close(&r);
}

/* --- one of two readers ----------------------------------------------------------- */

/* `| head -1`: the copy goes on to the end, and it is said once. */
static void console_gone(void **state)
{
    struct rig r;

    (void)state;
    assert_int_equal(rig_open(&r), 0);
    assert_int_equal(follow(&r, OUT, r.files[COPY]), 0);
    say(&r, OUT, "zz1\nno\n");
    until_shown(&r, OUT, "P:zz1\nP:no\n");
    close(r.consoles[OUT]);
    r.consoles[OUT] = -1;
    say(&r, OUT, "zz2\n");
    until_copied(&r, "P:zz1\nP:zz2\n");
    say(&r, OUT, "zz3\nno\n");
    until_copied(&r, "P:zz1\nP:zz2\nP:zz3\n");
    say(&r, OUT, "zz4"); /* without an end */
    drain(&r);
    until_copied(&r, "P:zz1\nP:zz2\nP:zz3\nP:zz4");
    assert_int_equal(r.troubles, 1);
    assert_int_equal(r.trouble_errnum, EPIPE);
    rig_close(&r);
}

static void copy_gone(void **state)
{
    const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    struct rig r;

    (void)state;
    assert_true(full >= 0);
    assert_int_equal(rig_open(&r), 0);
    assert_int_equal(follow(&r, OUT, full), 0);
    say(&r, OUT, "zz1\n");
    until_shown(&r, OUT, "P:zz1\n");
    say(&r, OUT, "zz2\n");
    until_shown(&r, OUT, "P:zz1\nP:zz2\n");
    drain(&r);
    assert_int_equal(r.troubles, 1);
    assert_int_equal(r.trouble_errnum, ENOSPC);
    rig_close(&r);
    close(full);
}

/* A progress bar of dots is seen before its line ends. */
static void growing_line(void **state)
{
    size_t dots = 0, seen = 0;
    struct rig r;

    (void)state;
    assert_int_equal(rig_open(&r), 0);
    assert_int_equal(follow(&r, OUT, -1), 0);
    while (buf_len(&r.shown[OUT]) == 0) {
        if (dots == PATIENCE_MS / TICK_MS)
            fail_msg("nothing shown of a line of %zu dots", dots);
        say(&r, OUT, ".");
        dots++;
        for (const uint64_t began = uv_now(&r.loop); uv_now(&r.loop) == began;)
            turn(&r);
    }
    say(&r, OUT, "\n");
    drain(&r);
    for (size_t i = 0; i < buf_len(&r.shown[OUT]); i++)
        seen += buf_data(&r.shown[OUT])[i] == '.';
    assert_int_equal(seen, dots);
    rig_close(&r);
}

/* --- a reader that does not read -------------------------------------------------- */

#define LINES 40000

/* Nobody reads stderr: stdout goes on, and of stderr nothing is torn or lost once
 * somebody does. */
static void one_stuck(void **state)
{
    struct buf want, lines;
    int waiting = 0;
    struct rig r;

    (void)state;
    buf_init(&want, SIZE_MAX);
    buf_init(&lines, SIZE_MAX);
    for (int i = 0; i < LINES; i++) {
        assert_int_equal(buf_printf(&lines, "stuck in line %d\n", i), 0);
        assert_int_equal(buf_printf(&want, "P:stuck in line %d\n", i), 0);
    }
    assert_int_equal(rig_open(&r), 0);
    assert_int_equal(follow(&r, OUT, -1), 0);
    assert_int_equal(follow(&r, ERR, -1), 0);
    r.stuck[ERR] = true;
    assert_int_equal(write(r.files[ERR], buf_data(&lines), buf_len(&lines)),
                     (ssize_t)buf_len(&lines));
    while (waiting == 0) {
        turn(&r);
        assert_int_equal(ioctl(r.consoles[ERR], FIONREAD, &waiting), 0);
    }
    /* For longer than an unfinished line is held. */
    const uint64_t until = uv_now(&r.loop) + 300;
    for (int i = 0; i < 5 || uv_now(&r.loop) < until; i++) {
        buf_clear(&r.shown[OUT]);
        say(&r, OUT, "on\n");
        until_shown(&r, OUT, "P:on\n");
    }
    buf_clear(&r.shown[OUT]);
    say(&r, OUT, "last");
    tails_drain(r.tails, on_drained, &r);
    until_shown(&r, OUT, "P:last");
    assert_int_equal(r.drains, 0);
    assert_int_equal(buf_len(&r.shown[ERR]), 0);
    r.stuck[ERR] = false;
    drain(&r);
    assert_int_equal(buf_len(&r.shown[ERR]), buf_len(&want));
    assert_memory_equal(buf_data(&r.shown[ERR]), buf_data(&want), buf_len(&want));
    rig_close(&r);
    buf_fini(&want);
    buf_fini(&lines);
}

static void no_memory(void **state)
{
    (void)state;
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct rig r;
        int rc = rig_open(&r);
        if (rc == 0)
            rc = follow(&r, OUT, -1);
        assert_int_equal(rc, failing_rc(&f));
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_inotify), cmocka_unit_test(without_watches),
        cmocka_unit_test(console_gone),    cmocka_unit_test(copy_gone),
        cmocka_unit_test(growing_line),    cmocka_unit_test(one_stuck),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
