/* test_launch_api.c - muster_launch as a guest in a program: what it leaves as it was,
 * what a failing allocation costs, and NULL in every place of the public functions. */
#include "testing.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "muster/launch.h"
#include "muster/params.h"
#include "muster/rendezvous.h"
#include "muster/store.h"

static int launch(const char *command, struct muster_error *err)
{
    const char *const argv[] = { "sh", "-c", command, NULL };
    const struct muster_entry entry = { .argv = argv };
    struct muster_launch_config *c = NULL;
    int rc = muster_launch_config_new(&c, err);

    if (rc == 0)
        rc = muster_launch_config_set(c, "nproc-per-node", "2", err);
    if (rc == 0)
        rc = muster_launch(c, &entry, NULL, err);
    muster_launch_config_free(c);
    return rc;
}

/* ---- The program's own ---- */

static void own_handler(int sig)
{
    (void)sig;
}

static void handlers_are_as_they_were(void **state)
{
    static const int signals[] = { SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE, SIGXFSZ };
    struct sigaction own = { .sa_handler = own_handler, .sa_flags = SA_RESTART }, now;
    struct muster_error err;

    (void)state;
    sigaddset(&own.sa_mask, SIGUSR1);
    for (size_t i = 0; i < ARRAY_LEN(signals); i++)
        assert_int_equal(sigaction(signals[i], &own, NULL), 0);
    assert_int_equal(launch("exit 0", &err), 0);
    for (size_t i = 0; i < ARRAY_LEN(signals); i++) {
        assert_int_equal(sigaction(signals[i], NULL, &now), 0);
        assert_ptr_equal(now.sa_handler, own_handler);
        assert_true(now.sa_flags & SA_RESTART);
        assert_int_equal(sigismember(&now.sa_mask, SIGUSR1), 1);
        assert_true(signal(signals[i], SIG_DFL) != SIG_ERR);
    }
}

#define LAUNCHES 3

static char there[] =
    "/tmp/muster-launches-XXXXXX"; /* a file for each worker that runs */

static void *launch_on_a_thread(void *rc)
{
    struct muster_error err;
    char command[256];

    snprintf(command, sizeof command,
             "mktemp -p %s; until [ $(ls %s | wc -l) = %d ]; do sleep 0.02; done; "
             "sleep 0.$((RANK + 1))",
             there, there, 2 * LAUNCHES);
    *(int *)rc = launch(command, &err);
    return NULL;
}

static size_t count_workers(void)
{
    DIR *d = opendir(there);
    size_t n = 0;

    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void remove_workers(void)
{
    char command[64];

    snprintf(command, sizeof command, "rm -r %s", there);
    assert_int_equal(system(command), 0);
}

/* All of them run at once; the first to begin may be the first to end. Each begins when
 * the ones before wait for their workers: ASan's allocator does not survive a fork()
 * while another thread allocates. */
static void overlapping_launches_leave_nothing(void **state)
{
    struct sigaction own = { .sa_handler = own_handler }, now;
    pthread_t threads[LAUNCHES];
    int rcs[LAUNCHES], subreaper = -1;

    (void)state;
    assert_non_null(mkdtemp(there));
    assert_int_equal(sigaction(SIGPIPE, &own, NULL), 0);
    for (size_t i = 0; i < ARRAY_LEN(threads); i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, launch_on_a_thread, &rcs[i]),
                         0);
        while (count_workers() < 2 * (i + 1))
            usleep(20000);
    }
    for (size_t i = 0; i < ARRAY_LEN(threads); i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(rcs[i], 0);
    }
    assert_int_equal(sigaction(SIGPIPE, NULL, &now), 0);
    assert_ptr_equal(now.sa_handler, own_handler);
    assert_int_equal(prctl(PR_GET_CHILD_SUBREAPER, &subreaper), 0);
    assert_int_equal(subreaper, 0);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* No child is left either. */
    remove_workers();
    assert_true(signal(SIGPIPE, SIG_DFL) != SIG_ERR);
}

/* ---- The verdict ---- */

static void a_failure_is_told_as_facts(void **state)
{
    static const char *const argv[] = {
        "sh", "-c", "[ $RANK = 1 ] && { echo no luck >&2; exit 7; }; exec sleep 60",
        NULL
    };
    const struct muster_entry entry = { .argv = argv };
    struct muster_launch_config *c;
    struct muster_launch_result *r = NULL;
    struct muster_failure f;
    struct muster_error err;

    (void)state;
    assert_int_equal(muster_launch_config_new(&c, &err), 0);
    assert_int_equal(muster_launch_config_set(c, "nproc-per-node", "2", &err), 0);
    assert_int_equal(muster_launch_config_set(c, "redirects", "3", &err), 0);
    assert_int_equal(muster_launch(c, &entry, &r, &err), MUSTER_ECHILD);
    assert_true(muster_launch_failure(r, &f));
    assert_string_equal(f.cause, "exit code");
    assert_non_null(strstr(f.text, "7"));
    assert_string_equal(f.last_words, "no luck\n");
    assert_non_null(strstr(f.log, "stderr.log"));
    assert_true(f.host[0]);
    assert_true(f.rank == 1 && f.local_rank == 1 && f.exit_code == 7 && f.pid > 0);
    assert_true(f.restarts == 0 && f.restarts_allowed == 0 && f.time_us > 0);
    assert_non_null(strstr(muster_launch_story(r), "\"outcome\": \"failed\""));
    muster_launch_result_free(r);
    muster_launch_config_free(c);
}

/* ---- Memory ---- */

static void no_allocation_that_fails_ends_the_program(void **state)
{
    char *tmp = strdup(getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    unsigned failed = 0;

    (void)state;
    assert_non_null(tmp);
    (void)clearenv(); /* Each variable would be several allocations. */
    (void)setenv("PATH", "/bin:/usr/bin", 1);
    (void)setenv("TMPDIR", tmp, 1);
    free(tmp);
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct muster_error err = { 0 };
        int rc;

        (void)alarm(PATIENCE_MS / 1000); /* The launch itself takes care of SIGTERM. */
        rc = launch("exit 0", &err);
        failed += rc < 0;
        if (rc < 0)
            assert_true(err.text[0]);
    }
    (void)alarm(0);
    assert_true(failed > 20);
}

/* ---- NULL ---- */

static void nulls_of_launches(void **state)
{
    const char *const argv[] = { "true", NULL };
    const struct muster_entry entry = { .argv = argv };
    const struct muster_worker worker = { .result_fd = -1 };
    struct muster_failure failure;
    struct muster_launch_config *c;
    struct muster_error err;
    size_t size = 7;

    (void)state;
    assert_int_equal(muster_launch_config_new(NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_launch_config_new(&c, NULL), 0);
    assert_int_equal(muster_launch_config_set(NULL, "role", "x", &err), MUSTER_EINVAL);
    assert_int_equal(muster_launch_config_set(c, NULL, "x", &err), MUSTER_EINVAL);
    assert_int_equal(muster_launch_config_log(NULL, "INFO", &err), MUSTER_EINVAL);
    assert_int_equal(muster_launch_config_log(c, NULL, &err), MUSTER_EINVAL);
    assert_string_equal(err.text, "level is NULL");
    muster_launch_config_registry(NULL, NULL);
    assert_int_equal(muster_launch(NULL, &entry, NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_launch(c, NULL, NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_worker_return(NULL, "x", 1), MUSTER_EINVAL);
    assert_int_equal(muster_worker_return(&worker, NULL, 1), MUSTER_EINVAL);
    assert_int_equal(muster_launch_result_count(NULL), 0);
    assert_int_equal(muster_launch_result_rank(NULL, 0), -1);
    assert_null(muster_launch_result_bytes(NULL, 0, &size));
    assert_int_equal(size, 0);
    assert_null(muster_launch_result_bytes(NULL, 0, NULL));
    assert_string_equal(muster_launch_report(NULL), "");
    assert_string_equal(muster_launch_story(NULL), "");
    assert_false(muster_launch_failure(NULL, &failure));
    muster_launch_result_free(NULL);
    muster_launch_config_free(c);
    muster_launch_config_free(NULL);
}

static void nulls_of_parameters(void **state)
{
    struct muster_params *p;
    struct muster_error err;
    char host[8];
    int64_t n;
    int b;

    (void)state;
    assert_int_equal(muster_params_new("c10d", "", "r", 1, 1, NULL, NULL, &err),
                     MUSTER_EINVAL);
    assert_int_equal(muster_params_new(NULL, "", "r", 1, 1, NULL, &p, &err),
                     MUSTER_EINVAL);
    assert_int_equal(muster_params_new("c10d", NULL, NULL, 1, 1, NULL, &p, NULL), 0);
    assert_int_equal(muster_params_set(NULL, "k", "v", &err), MUSTER_EINVAL);
    assert_int_equal(muster_params_set(p, NULL, "v", &err), MUSTER_EINVAL);
    assert_int_equal(muster_params_set(p, "k", NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_params_set_int(NULL, "k", 1, &err), MUSTER_EINVAL);
    assert_int_equal(muster_params_set_int(p, NULL, 1, &err), MUSTER_EINVAL);
    assert_int_equal(muster_params_set_bool(NULL, "k", 1, &err), MUSTER_EINVAL);
    assert_int_equal(muster_params_set_bool(p, NULL, 1, &err), MUSTER_EINVAL);
    assert_int_equal(muster_params_parse(NULL, "k=v", &err), MUSTER_EINVAL);
    assert_int_equal(muster_params_parse(p, NULL, &err), 0);
    assert_null(muster_params_get(NULL, "k"));
    assert_null(muster_params_get(p, NULL));
    assert_int_equal(muster_params_get_as_int(NULL, "k", 1, &n, &err), MUSTER_EINVAL);
    assert_int_equal(muster_params_get_as_int(p, NULL, 1, &n, &err), MUSTER_EINVAL);
    assert_int_equal(muster_params_get_as_int(p, "k", 1, NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_params_get_as_bool(NULL, "k", 1, &b, &err), MUSTER_EINVAL);
    assert_int_equal(muster_params_get_as_bool(p, NULL, 1, &b, &err), MUSTER_EINVAL);
    assert_int_equal(muster_params_get_as_bool(p, "k", 1, NULL, &err), MUSTER_EINVAL);
    assert_string_equal(muster_params_backend(NULL), "");
    assert_string_equal(muster_params_endpoint(NULL), "");
    assert_string_equal(muster_params_run_id(NULL), "");
    assert_null(muster_params_local_addr(NULL));
    assert_int_equal(muster_params_min_nodes(NULL), 0);
    assert_int_equal(muster_params_max_nodes(NULL), 0);
    assert_int_equal(muster_endpoint_parse(NULL, 1, host, sizeof host, &b, &err),
                     MUSTER_EFULL); /* "localhost" */
    assert_int_equal(muster_endpoint_parse("h:1", 1, NULL, 9, &b, &err), MUSTER_EINVAL);
    assert_int_equal(muster_endpoint_parse("h:1", 1, host, sizeof host, NULL, &err),
                     MUSTER_EINVAL);
    muster_params_free(p);
}

static void nulls_of_rendezvous(void **state)
{
    static const struct muster_backend_ops no_functions = { 0 };
    static const struct muster_handler_ops no_handler = { 0 };
    struct muster_rendezvous_info info;
    struct muster_rendezvous *rdzv;
    struct muster_registry *r;
    struct muster_params *p;
    struct muster_error err;

    (void)state;
    assert_int_equal(muster_registry_new(NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_registry_new(&r, NULL), 0);
    assert_int_equal(muster_registry_register(NULL, "n", &no_functions, NULL, &err),
                     MUSTER_EINVAL);
    assert_int_equal(muster_registry_register(r, "n", NULL, NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_registry_register(r, "n", &no_functions, NULL, &err),
                     MUSTER_EINVAL);
    assert_string_equal(err.text, "the rendezvous backend 'n' has no function 'open'");
    assert_int_equal(
        muster_registry_register_handler(NULL, "n", &no_handler, NULL, &err),
        MUSTER_EINVAL);
    assert_int_equal(muster_registry_register_handler(r, "n", NULL, NULL, &err),
                     MUSTER_EINVAL);
    assert_int_equal(muster_registry_register_handler(r, NULL, &no_handler, NULL, &err),
                     MUSTER_EINVAL);
    assert_int_equal(muster_registry_has(NULL, "n"), 0);
    assert_int_equal(muster_registry_has(r, NULL), 0);

    assert_int_equal(muster_params_new("c10d", "", "r", 1, 1, NULL, &p, NULL), 0);
    assert_int_equal(muster_rendezvous_open(NULL, NULL, NULL, &rdzv, &err),
                     MUSTER_EINVAL);
    assert_int_equal(muster_rendezvous_open(p, NULL, NULL, NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_rendezvous_open(p, NULL, NULL, &rdzv, NULL), 0);
    assert_int_equal(muster_rendezvous_next(NULL, &info, &err), MUSTER_EINVAL);
    assert_int_equal(muster_rendezvous_next(rdzv, NULL, &err), MUSTER_EINVAL);
    muster_rendezvous_cancel(NULL);
    assert_int_equal(muster_rendezvous_is_closed(NULL), 0);
    assert_int_equal(muster_rendezvous_num_nodes_waiting(NULL), 0);
    assert_int_equal(muster_rendezvous_set_closed(NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_rendezvous_leave(NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_rendezvous_shutdown(NULL, &err), MUSTER_EINVAL);
    assert_string_equal(muster_rendezvous_run_id(NULL), "");
    assert_string_equal(muster_rendezvous_backend(NULL), "");
    assert_int_equal(muster_rendezvous_use_agent_store(NULL), 0);
    muster_rendezvous_free(rdzv);
    muster_rendezvous_free(NULL);
    muster_params_free(p);
    muster_registry_free(r);
}

static void nulls_of_opening_stores(void **state)
{
    struct muster_store_options o;
    struct muster_store *s, *t;
    struct muster_error err;

    (void)state;
    muster_store_options_init(NULL);
    muster_store_options_init(&o);
    o.serve = true;
    o.port = 0;
    assert_int_equal(muster_store_open_tcp(NULL, &s, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_open_tcp(&o, NULL, &err), MUSTER_EINVAL);
    o = (struct muster_store_options){ .listen_fd = -1 };
    assert_int_equal(muster_store_open_tcp(&o, &s, &err), MUSTER_EINVAL);
    assert_string_equal(err.text, "TCPStore world size cannot be 0"); /* not the host */
    assert_int_equal(muster_store_open_file(NULL, 1, 1, &s, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_open_file("/x", 1, 1, NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_open_hash(1000, NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_open_hash(1000, &s, NULL), 0);
    assert_int_equal(muster_store_open_prefix(NULL, "p", &t, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_open_prefix(s, NULL, &t, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_open_prefix(s, "p", NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_clone(NULL, &t, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_clone(s, NULL, &err), MUSTER_EINVAL);
    muster_store_set_timeout(NULL, 1);
    assert_int_equal(muster_store_timeout(NULL), 0);
    assert_string_equal(muster_store_name(NULL), "");
    assert_int_equal(muster_store_port(NULL), 0);
    muster_store_close(s);
    muster_store_close(NULL);
}

static void nulls_of_operations(void **state)
{
    const char *const keys[] = { "k" }, *const no_key[] = { NULL };
    const struct muster_bytes no_bytes[] = { { NULL, 3 } };
    struct muster_store *s;
    struct muster_error err;

    (void)state;
    assert_int_equal(muster_store_open_hash(1000, &s, NULL), 0);
    assert_int_equal(muster_store_set(NULL, "k", "v", 1, &err), MUSTER_EINVAL);
    assert_string_equal(err.text, "store is NULL");
    assert_int_equal(muster_store_set(s, NULL, "v", 1, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_set(s, "k", NULL, 1, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_set(s, "k", NULL, 0, NULL), 0);
    assert_int_equal(muster_store_get(NULL, "k", NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_get(s, NULL, NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_get(s, "k", NULL, NULL), 0);
    assert_int_equal(muster_store_add(NULL, "n", 1, NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_add(s, NULL, 1, NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_add(s, "n", 1, NULL, NULL), 0);
    assert_int_equal(muster_store_compare_set(s, NULL, "", 0, "v", 1, NULL, &err),
                     MUSTER_EINVAL);
    assert_int_equal(muster_store_compare_set(s, "c", NULL, 1, "v", 1, NULL, &err),
                     MUSTER_EINVAL);
    assert_int_equal(muster_store_compare_set(s, "c", "", 0, NULL, 1, NULL, &err),
                     MUSTER_EINVAL);
    assert_int_equal(muster_store_compare_set(s, "c", NULL, 0, "v", 1, NULL, NULL), 0);
    assert_int_equal(muster_store_append(s, NULL, "v", 1, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_append(s, "k", NULL, 1, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_delete(s, NULL, NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_delete(s, "x", NULL, NULL), 0);
    assert_int_equal(muster_store_check(NULL, keys, 1, NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_check(s, NULL, 1, NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_check(s, no_key, 1, NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_check(s, keys, 1, NULL, NULL), 0);
    assert_int_equal(muster_store_wait(s, NULL, 1, 1, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_multi_get(s, NULL, 1, NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_multi_get(s, keys, 1, NULL, NULL), 0);
    assert_int_equal(muster_store_multi_set(s, NULL, no_bytes, 1, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_multi_set(s, keys, NULL, 1, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_multi_set(s, keys, no_bytes, 1, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_num_keys(NULL, NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_num_keys(s, NULL, NULL), 0);
    assert_int_equal(muster_store_list_keys(NULL, NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_list_keys(s, NULL, NULL), 0);
    assert_int_equal(muster_store_barrier(s, NULL, 1, 1, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_queue_push(s, NULL, "v", 1, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_queue_push(s, "q", NULL, 1, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_queue_pop(s, NULL, false, NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_queue_len(s, NULL, NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_queue_len(s, "q", NULL, NULL), 0);
    muster_store_close(s);
}

/* Nobody would ever be there: torch's own barrier would return at once. */
static void a_barrier_of_nobody(void **state)
{
    struct muster_store *s;
    struct muster_error err;

    (void)state;
    assert_int_equal(muster_store_open_hash(1000, &s, NULL), 0);
    assert_int_equal(muster_store_barrier(s, "b", 0, 10, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_barrier(s, "b", -1, 10, &err), MUSTER_EINVAL);
    assert_non_null(strstr(err.text, "at least 1, not -1"));
    assert_int_equal(muster_store_barrier(s, "b", 1, 10, &err), 0);
    muster_store_close(s);
}

/* torch's words: people look for them. */
static void a_wait_in_memory_times_out_as_in_torch(void **state)
{
    const char *const keys[] = { "k" };
    struct muster_store *s;
    struct muster_error err;

    (void)state;
    assert_int_equal(muster_store_open_hash(1000, &s, NULL), 0);
    assert_int_equal(muster_store_wait(s, keys, 1, 5, &err), MUSTER_ETIMEDOUT);
    assert_memory_equal(err.text, "Wait timeout", 12);
    muster_store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(handlers_are_as_they_were),
        cmocka_unit_test(overlapping_launches_leave_nothing),
        cmocka_unit_test(a_failure_is_told_as_facts),
        cmocka_unit_test(no_allocation_that_fails_ends_the_program),
        cmocka_unit_test(nulls_of_launches),
        cmocka_unit_test(nulls_of_parameters),
        cmocka_unit_test(nulls_of_rendezvous),
        cmocka_unit_test(nulls_of_opening_stores),
        cmocka_unit_test(nulls_of_operations),
        cmocka_unit_test(a_barrier_of_nobody),
        cmocka_unit_test(a_wait_in_memory_times_out_as_in_torch),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
