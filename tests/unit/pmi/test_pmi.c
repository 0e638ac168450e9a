/* test_pmi.c - the PMI-1 server: each command and its answer, two nodes that exchange
 * their pairs in a barrier, and lines that are no PMI. */
#include "pmi/core/pmi.h"

#include <stdio.h>

#include "testing.h"

static struct pmi_core *node(int64_t workers, int64_t nodes)
{
    const struct pmi_place place = { .workers = workers,
                                     .nodes = nodes,
                                     .world_size = workers * nodes,
                                     .name = "kvs_1",
                                     .mapping = "(vector,(0,2,2))" };
    struct pmi_core *p = NULL;

    assert_int_equal(pmi_core_new(&place, &p), 0);
    return p;
}

/* What the server says to the worker; "" if nothing. Effects go to *kinds, a letter
 * each. */
static const char *say(struct pmi_core *p, int64_t worker, const char *text,
                       char *kinds)
{
    static char out[8192];
    struct pmi_fx_list fx = { 0 };
    size_t n = 0;

    assert_int_equal(pmi_bytes(p, worker, span_str(text), &fx), 0);
    for (size_t i = 0; i < fx.count; i++)
        kinds[n++] = "sgad"[fx.items[i].kind];
    kinds[n] = '\0';
    pmi_fx_fini(&fx);
    struct buf *b = pmi_output(p, worker);
    (void)snprintf(out, sizeof out, "%.*s", (int)buf_len(b),
                   buf_len(b) ? (const char *)buf_data(b) : "");
    buf_clear(b);
    return out;
}

static const struct {
    const char *says, *hears, *kinds;
} rows[] = {
    { "cmd=init pmi_version=1 pmi_subversion=1\n",
      "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n", "s" },
    { "cmd=get_maxes\n",
      "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024 rc=0\n", "s" },
    { "cmd=get_my_kvsname\n", "cmd=my_kvsname kvsname=kvs_1 rc=0\n", "s" },
    { "cmd=get_appnum\n", "cmd=appnum appnum=0 rc=0\n", "s" },
    { "cmd=get_universe_size\n", "cmd=universe_size size=1 rc=0\n", "s" },
    { "cmd=get kvsname=kvs_1 key=PMI_process_mapping\n",
      "cmd=get_result rc=0 msg=success value=(vector,(0,2,2))\n", "s" },
    { "cmd=put kvsname=kvs_1 key=a value=1\n", "cmd=put_result rc=0 msg=success\n",
      "s" },
    { "cmd=put kvsname=kvs_1 key=a value=b c=d key=x\n",
      "cmd=put_result rc=0 msg=success\n", "s" },
    { "cmd=get kvsname=kvs_1 key=a\n",
      "cmd=get_result rc=0 msg=success value=b c=d key=x\n", "s" },
    { "cmd=get kvsname=kvs_1 key=x\n",
      "cmd=get_result rc=-1 msg=key_x_not_found value=unknown\n", "s" },
    { "cmd=get kvsname=other key=a\n",
      "cmd=get_result rc=-1 msg=key__not_found value=unknown\n", "s" },
    { "cmd=put kvsname=other key=a value=1\n",
      "cmd=put_result rc=-1 msg=no_such_kvsname\n", "s" },
    { "cmd=put kvsname=kvs_1 key= value=1\n",
      "cmd=put_result rc=-1 "
      "msg=no_key_and_value_of_a_length_that_get_maxes_has_told\n",
      "s" },
    { "cmd=barrier_in\n", "cmd=barrier_out rc=0\n", "ss" },
    { "cmd=lookup_name service=x\n", "cmd=lookup_result rc=-1 msg=not_supported\n",
      "s" },
    { "mcmd=spawn\nnprocs=1\nexecname=x\nendcmd\n",
      "cmd=spawn_result rc=-1 msg=not_supported\n", "s" },
    { "cmd=abort exitcode=7\n", "", "a" },
    { "cmd=abort\n", "", "a" },
    { "cmd=finalize\n", "cmd=finalize_ack rc=0\n", "s" },
};

static void one_worker_asks_for_everything(void **state)
{
    (void)state;
    for (int bytewise = 0; bytewise < 2; bytewise++) {
        struct pmi_core *p = node(1, 1);

        for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
            const char *heard = "";
            char kinds[16] = "", one[2] = "";

            for (const char *c = rows[i].says; bytewise && c[1]; c++) {
                one[0] = *c;
                heard = say(p, 0, one, kinds);
                assert_string_equal(kinds, "");
            }
            heard = say(p, 0, bytewise ? "\n" : rows[i].says, kinds);
            if (strcmp(heard, rows[i].hears) != 0 || strcmp(kinds, rows[i].kinds) != 0)
                fail_msg("%s: heard \"%s\", effects %s", rows[i].says, heard, kinds);
        }
        assert_false(pmi_is_speaking(p, 0));
        pmi_core_free(p);
    }
}

static void the_code_of_an_abort_is_told(void **state)
{
    struct pmi_core *p = node(2, 1);
    struct pmi_fx_list fx = { 0 };
    char kinds[16];

    (void)state;
    (void)say(p, 1, "cmd=init pmi_version=1 pmi_subversion=1\n", kinds);
    assert_true(pmi_is_speaking(p, 1) && !pmi_is_speaking(p, 0));
    assert_int_equal(pmi_bytes(p, 1, span_str("cmd=abort exitcode=42\n"), &fx), 0);
    assert_int_equal(fx.count, 1);
    assert_int_equal(fx.items[0].kind, PMI_ABORT);
    assert_int_equal(fx.items[0].worker, 1);
    assert_int_equal(fx.items[0].code, 42);
    pmi_fx_fini(&fx);
    pmi_core_free(p);
}

/* One that exits while it speaks leaves the others in their barrier. */
static void who_has_still_to_say_finalize(void **state)
{
    static const struct {
        const char *says;
        bool speaks;
    } lines[] = {
        { "", false },
        { "cmd=init pmi_version=2\n", false }, /* was refused */
        { "cmd=init pmi_version=1\n", true },
        { "cmd=init pmi_version=1\ncmd=barrier_in\n", true },
        { "cmd=init pmi_version=1\ncmd=finalize", true }, /* no whole line */
        { "cmd=init pmi_version=1\ncmd=finalize\n", false },
        { "cmd=init pmi_version=1\ncmd=what\n", false }, /* is not heard any more */
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        struct pmi_core *p = node(2, 1);
        char kinds[16];

        (void)say(p, 1, lines[i].says, kinds);
        if (pmi_is_speaking(p, 1) != lines[i].speaks || pmi_is_speaking(p, 0))
            fail_msg("%s", lines[i].says);
        pmi_core_free(p);
    }
}

static void two_nodes_exchange_their_pairs(void **state)
{
    struct pmi_core *nodes[2] = { node(2, 2), node(2, 2) };
    struct pmi_fx_list fx = { 0 };
    struct text_list texts = { 0 };
    char kinds[16], line[64];

    (void)state;
    for (int n = 0; n < 2; n++)
        for (int w = 0; w < 2; w++) {
            (void)say(nodes[n], w, "cmd=init pmi_version=1\n", kinds);
            (void)snprintf(line, sizeof line,
                           "cmd=put kvsname=kvs_1 key=n%dw%d value=v %d\n", n, w,
                           10 * n + w);
            (void)say(nodes[n], w, line, kinds);
            assert_string_equal(say(nodes[n], w, "cmd=barrier_in\n", kinds), "");
            assert_string_equal(kinds, w == 0 ? "" : "g"); /* Not before the last. */
        }
    for (int n = 0; n < 2; n++) {
        const struct span s = pmi_exchange(nodes[n]);

        assert_int_equal(text_list_add(&texts, (const char *)s.p, s.n), 0);
    }
    assert_string_equal(texts.items[1], "n1w0 v 10\nn1w1 v 11\n");
    assert_int_equal(pmi_gathered(nodes[0], &texts, &fx), 0);
    assert_int_equal(fx.count, 2);
    pmi_fx_fini(&fx);
    buf_clear(pmi_output(nodes[0], 1));
    assert_string_equal(say(nodes[0], 1, "cmd=get kvsname=kvs_1 key=n1w0\n", kinds),
                        "cmd=get_result rc=0 msg=success value=v 10\n");
    assert_int_equal(pmi_exchange(nodes[0]).n, 0);
    text_list_fini(&texts);
    pmi_core_free(nodes[0]);
    pmi_core_free(nodes[1]);
}

static void what_is_no_pmi_is_dropped(void **state)
{
    static char long_line[PMI_LINE_MOST + 2];
    const struct {
        const char *text;
        const char *kinds;
    } bad[] = {
        { "hello\n", "d" },
        { "\n", "d" },
        { "cmd=get_maxes\n", "d" }, /* before init */
        { "cmd=init pmi_version=1\ncmd=what\n", "d" },
        { long_line, "d" },
        { "hello\ncmd=init pmi_version=1\n", "d" }, /* Nothing is heard after it. */
    };

    (void)state;
    memset(long_line, 'x', sizeof long_line - 1);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct pmi_core *p = node(1, 1);
        char kinds[16];

        (void)say(p, 0, bad[i].text, kinds);
        assert_string_equal(kinds, bad[i].kinds);
        pmi_core_free(p);
    }
}

/* The pairs of another node may be anything. */
static void pairs_from_outside_are_checked(void **state)
{
    char long_key[PMI_KEY_MOST + 10], kinds[16];
    struct text_list texts = { 0 };
    struct pmi_fx_list fx = { 0 };
    struct pmi_core *p = node(1, 2);

    (void)state;
    memset(long_key, 'k', sizeof long_key - 1);
    memcpy(long_key + sizeof long_key - 4, " v", 3);
    (void)say(p, 0, "cmd=init pmi_version=1\ncmd=barrier_in\n", kinds);
    assert_string_equal(kinds, "gs");
    (void)text_list_add(&texts, "", 0);
    (void)text_list_add(&texts, "\n\n x\nnovalue\ngood 1", 19);
    (void)text_list_add(&texts, long_key, strlen(long_key));
    assert_int_equal(pmi_gathered(p, &texts, &fx), 0);
    pmi_fx_fini(&fx);
    buf_clear(pmi_output(p, 0));
    assert_string_equal(say(p, 0, "cmd=get kvsname=kvs_1 key=good\n", kinds),
                        "cmd=get_result rc=0 msg=success value=1\n");
    assert_string_equal(
        say(p, 0, "cmd=get kvsname=kvs_1 key=novalue\n", kinds),
        "cmd=get_result rc=-1 msg=key_novalue_not_found value=unknown\n");
    text_list_fini(&texts);
    pmi_core_free(p);
}

static void out_of_memory(void **state)
{
    (void)state;
    for (struct failing f = failing_first(); failing_next(&f);) {
        const struct pmi_place place = { 1, 1, 1, "kvs_1", "m" };
        struct pmi_core *p = NULL;
        struct pmi_fx_list fx = { 0 };
        int rc = pmi_core_new(&place, &p);

        for (size_t i = 0; rc == 0 && i < ARRAY_LEN(rows); i++)
            rc = pmi_bytes(p, 0, span_str(rows[i].says), &fx);
        assert_int_equal(rc, failing_rc(&f));
        pmi_fx_fini(&fx);
        pmi_core_free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_worker_asks_for_everything),
        cmocka_unit_test(the_code_of_an_abort_is_told),
        cmocka_unit_test(who_has_still_to_say_finalize),
        cmocka_unit_test(two_nodes_exchange_their_pairs),
        cmocka_unit_test(what_is_no_pmi_is_dropped),
        cmocka_unit_test(pairs_from_outside_are_checked),
        cmocka_unit_test(out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
