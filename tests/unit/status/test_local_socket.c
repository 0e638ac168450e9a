/* test_local_socket.c - the agent's own socket: answers now and later, refusals, askers
 * that go, lines that are too long, a second one in the same process, a stopped agent
 * beside a live one, another user. The agents are forked children. */
#include "testing.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "loop/clock.h"
#include "status/local_socket.h"

/* --- an agent in a child ---------------------------------------------------------- */

struct later {
    uv_timer_t timer;
    struct local_request *r;
};

static void on_later(uv_timer_t *timer)
{
    struct later *l = CONTAINER_OF(timer, struct later, timer);

    local_request_answer_json(l->r, json_pack("{s:s}", "when", "later"));
    uv_close((uv_handle_t *)timer, (uv_close_cb)free);
}

static void on_echo(void *ctx, struct local_request *r, const json_t *body)
{
    (void)ctx;
    local_request_answer_json(r, json_deep_copy(body));
}

static void on_slow(void *ctx, struct local_request *r, const json_t *body)
{
    struct later *l = calloc(1, sizeof *l);

    (void)body;
    l->r = r;
    uv_timer_init(ctx, &l->timer);
    uv_timer_start(&l->timer, on_later, 50, 0);
}

static void on_text(void *ctx, struct local_request *r, const json_t *body)
{
    const json_int_t n = json_integer_value(json_object_get(body, "count"));
    struct buf b;
    int rc;

    (void)ctx;
    buf_init(&b, SIZE_MAX);
    rc = buf_u8(&b, '[');
    for (json_int_t i = 0; rc == 0 && i < n; i++)
        rc = buf_append_str(&b, i ? ",1234567" : "1234567");
    rc = rc ? rc : buf_u8(&b, ']');
    local_request_answer(r, &b, rc);
}

static void on_quit(void *ctx, struct local_request *r, const json_t *body)
{
    (void)body;
    local_request_answer_json(r, json_true());
    uv_stop(ctx);
}

static void register_all(struct local_socket *s, uv_loop_t *loop)
{
    assert_int_equal(local_socket_register(s, "echo", on_echo, NULL), 0);
    assert_int_equal(local_socket_register(s, "slow", on_slow, loop), 0);
    assert_int_equal(local_socket_register(s, "text", on_text, NULL), 0);
    assert_int_equal(local_socket_register(s, "quit", on_quit, loop), 0);
    assert_int_equal(local_socket_register(s, "echo", on_echo, NULL), MUSTER_EEXIST);
}

static void on_parent_gone(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    uv_stop(poll->loop);
}

struct agent {
    pid_t pid;
    int hold; /* the agent ends when a byte comes, or when all ends are closed */
};

static struct agent start(void)
{
    int ready[2], hold[2];
    char byte = 0;

    assert_int_equal(pipe(ready) | pipe(hold), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        struct local_socket *s = NULL;
        struct muster_error err;
        uv_loop_t loop;
        uv_poll_t poll;

        close(hold[1]);
        uv_loop_init(&loop);
        if (local_socket_open(&loop, &s, &err) != 0)
            _exit(9);
        register_all(s, &loop);
        uv_poll_init(&loop, &poll, hold[0]);
        uv_poll_start(&poll, UV_READABLE | UV_DISCONNECT, on_parent_gone);
        (void)!write(ready[1], "x", 1);
        uv_run(&loop, UV_RUN_DEFAULT);
        local_socket_close(s);
        uv_close((uv_handle_t *)&poll, NULL);
        uv_run(&loop, UV_RUN_DEFAULT);
        _exit(uv_loop_close(&loop) == 0 ? 0 : 8);
    }
    close(hold[0]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    return (struct agent){ pid, hold[1] };
}

static void finish(struct agent a)
{
    int status = -1;

    assert_int_equal(write(a.hold, "x", 1), 1);
    close(a.hold);
    assert_int_equal(waitpid(a.pid, &status, 0), a.pid);
    assert_int_equal(status, 0);
}

static struct local_call call_of(struct agent a)
{
    return (struct local_call){ .name = { .uid = (uint32_t)geteuid(),
                                          .pid = (int32_t)a.pid } };
}

static struct local_call ask(struct agent a, const char *request, uint64_t timeout_ms)
{
    struct local_call c = call_of(a);
    struct muster_error err;
    json_t *body = json_loads(request, 0, NULL);

    assert_non_null(body);
    assert_int_equal(local_socket_ask(body, &c, 1, timeout_ms, &err), 0);
    json_decref(body);
    return c;
}

/* --- tests ------------------------------------------------------------------------ */

static void answers_now_and_later(void **state)
{
    const struct agent a = start();
    struct local_call c =
        ask(a, "{\"ask\": \"echo\", \"x\": \"\\u00e9\\n\"}", PATIENCE_MS);

    (void)state;
    assert_non_null(c.answer);
    assert_string_equal(json_string_value(json_object_get(c.answer, "x")),
                        "\xc3\xa9\n");
    local_calls_fini(&c, 1);

    c = ask(a, "{\"ask\": \"slow\"}", PATIENCE_MS);
    assert_string_equal(json_string_value(json_object_get(c.answer, "when")), "later");
    local_calls_fini(&c, 1);

    c = ask(a, "{\"ask\": \"text\", \"count\": 1000000}", PATIENCE_MS); /* 8 MB */
    assert_int_equal(json_array_size(c.answer), 1000000);
    local_calls_fini(&c, 1);
    finish(a);
}

static void refuses_with_a_sentence(void **state)
{
    static const char *const rows[][2] = {
        { "{\"ask\": \"nothing\"}", "cannot answer \"nothing\"" },
        { "{\"ask\": 7}", "JSON object" },
        { "{}", "JSON object" },
        { "[1]", "JSON object" },
    };
    const struct agent a = start();

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct local_call c = ask(a, rows[i][0], PATIENCE_MS);

        assert_null(c.answer);
        assert_int_equal(c.error.code, MUSTER_ENOTSUP);
        assert_non_null(strstr(c.error.text, rows[i][1]));
    }
    finish(a);
}

static int connect_to(uid_t uid, struct agent a)
{
    const struct local_name name = { (uint32_t)uid, (int32_t)a.pid, 0 };
    struct sockaddr_un sa = { .sun_family = AF_UNIX };
    const size_t n = local_name_print(&name, sa.sun_path + 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    assert_int_equal(
        connect(fd, (struct sockaddr *)&sa,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n)),
        0);
    return fd;
}

static void takes_several_lines_in_pieces(void **state)
{
    const struct agent a = start();
    const char *text = "{\"ask\": \"slow\"}\n{\"ask\": \"echo\"}\nnot json\n";
    const int fd = connect_to(geteuid(), a);
    char got[512] = "";
    size_t n = 0;

    (void)state;
    for (const char *p = text; *p; p++)
        assert_int_equal(write(fd, p, 1), 1);
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    for (ssize_t k; (k = read(fd, got + n, sizeof got - 1 - n)) > 0;)
        n += (size_t)k;
    assert_string_equal(got, "{\"ok\": {\"when\": \"later\"}}\n"
                             "{\"ok\": {\"ask\": \"echo\"}}\n"
                             "{\"error\": \"a request is a JSON object with a text "
                             "\\\"ask\\\"\"}\n");
    close(fd);
    finish(a);
}

static void closes_on_an_endless_line(void **state)
{
    const struct agent a = start();
    const int fd = connect_to(geteuid(), a);
    static const char spaces[4096];
    size_t sent = 0;
    char byte;

    (void)state;
    for (ssize_t k; sent < 1 << 20; sent += (size_t)k)
        if ((k = send(fd, spaces, sizeof spaces, MSG_NOSIGNAL)) < 0)
            break;
    assert_true(read(fd, &byte, 1) <= 0);
    close(fd);
    struct local_call c = ask(a, "{\"ask\": \"echo\"}", PATIENCE_MS);
    assert_non_null(c.answer);
    local_calls_fini(&c, 1);
    finish(a);
}

static void outlives_askers_that_go(void **state)
{
    const struct agent a = start();

    (void)state;
    for (int i = 0; i < 40; i++) {
        const int fd = connect_to(geteuid(), a);

        assert_true(write(fd, "{\"ask\": \"slow\"}\n", 16) == 16);
        close(fd); /* before the answer */
    }
    struct local_call c = { .answer = NULL };
    for (int i = 0; i < 30000 && !c.answer; i++) { /* The first 32 hold all places. */
        c = ask(a, "{\"ask\": \"echo\"}", PATIENCE_MS);
        usleep(10000);
    }
    assert_non_null(c.answer);
    local_calls_fini(&c, 1);
    finish(a); /* while some wait still: nothing is left open */
}

static void a_stopped_one_does_not_delay_the_others(void **state)
{
    const struct agent a = start(), b = start();
    struct local_call calls[] = { call_of(a), call_of(b) };
    struct muster_error err;
    json_t *body = json_pack("{s:s}", "ask", "echo");

    (void)state;
    assert_int_equal(kill(a.pid, SIGSTOP), 0);
    assert_int_equal(waitpid(a.pid, NULL, WUNTRACED), a.pid);
    const uint64_t began = clock_mono_ms();
    assert_int_equal(local_socket_ask(body, calls, 2, 1000, &err), 0);
    assert_in_range(clock_mono_ms() - began, 1000, 10000);
    assert_null(calls[0].answer);
    assert_int_equal(calls[0].error.code, MUSTER_ETIMEDOUT);
    assert_non_null(strstr(calls[0].error.text, "is it stopped?"));
    assert_non_null(calls[1].answer);
    local_calls_fini(calls, 2);
    json_decref(body);
    assert_int_equal(kill(a.pid, SIGCONT), 0);
    finish(a);
    finish(b);
}

static bool listed(pid_t pid, uint32_t number)
{
    const uint32_t uid = (uint32_t)geteuid();
    struct local_name *names = NULL;
    struct muster_error err;
    size_t count = 0;
    bool found = false;

    assert_int_equal(local_socket_list(&uid, &names, &count, &err), 0);
    for (size_t i = 0; i < count; i++)
        found |= names[i].pid == (int32_t)pid && names[i].number == number;
    mem_free(names);
    return found;
}

static void is_listed_while_it_lives(void **state)
{
    const struct agent a = start();

    (void)state;
    assert_true(listed(a.pid, 0));
    finish(a);
    assert_false(listed(a.pid, 0));
    struct local_call c = ask(a, "{\"ask\": \"echo\"}", PATIENCE_MS);
    assert_int_equal(c.error.code, MUSTER_ENOENT);
}

static void two_in_one_process_have_two_names(void **state)
{
    struct local_socket *s[2] = { NULL, NULL };
    struct muster_error err;
    uv_loop_t loop;

    (void)state;
    uv_loop_init(&loop);
    assert_int_equal(local_socket_open(&loop, &s[0], &err), 0);
    assert_int_equal(local_socket_open(&loop, &s[1], &err), 0);
    assert_true(listed(getpid(), 0) && listed(getpid(), 1));
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0); /* They keep no loop alive. */
    local_socket_close(s[0]);
    local_socket_close(s[1]);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
}

/* As root, another user is a child that has given it up. */
static void other_users_are_strangers(void **state)
{
    const struct agent a = start();
    int status = -1;

    (void)state;
    if (geteuid() != 0) {
        finish(a);
        skip();
    }
    const pid_t pid = fork();
    if (pid == 0) {
        char byte;

        if (setresuid(65534, 65534, 65534) != 0)
            _exit(1);
        struct local_call c = { .name = { 0, (int32_t)a.pid, 0 } };
        json_t *body = json_pack("{s:s}", "ask", "echo");
        struct muster_error err;
        if (local_socket_ask(body, &c, 1, PATIENCE_MS, &err) != 0 || c.answer ||
            c.error.code != MUSTER_EACCES)
            _exit(2); /* The asker would not speak to root's agent, */
        const int fd = connect_to(0, a);
        (void)!write(fd, "{\"ask\": \"echo\"}\n", 16);
        if (read(fd, &byte, 1) > 0)
            _exit(3); /* and the agent does not speak to another user's asker. */
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    finish(a);
}

static void opens_without_memory_or_not_at_all(void **state)
{
    uv_loop_t loop;

    (void)state;
    uv_loop_init(&loop);
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct local_socket *s = NULL;
        struct muster_error err;
        const int rc = local_socket_open(&loop, &s, &err);

        assert_int_equal(rc, failing_rc(&f));
        local_socket_close(s);
        uv_run(&loop, UV_RUN_DEFAULT);
    }
    assert_int_equal(uv_loop_close(&loop), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_now_and_later),
        cmocka_unit_test(refuses_with_a_sentence),
        cmocka_unit_test(takes_several_lines_in_pieces),
        cmocka_unit_test(closes_on_an_endless_line),
        cmocka_unit_test(outlives_askers_that_go),
        cmocka_unit_test(a_stopped_one_does_not_delay_the_others),
        cmocka_unit_test(is_listed_while_it_lives),
        cmocka_unit_test(two_in_one_process_have_two_names),
        cmocka_unit_test(other_users_are_strangers),
        cmocka_unit_test(opens_without_memory_or_not_at_all),
    };

    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
