/* test_rank_exchange.c - role_info and assigned_ranks, byte for byte as torch's. */
#include "testing.h"

#include <stdio.h>

#include "rendezvous/core/rank_exchange.h"

static void texts(void **state)
{
    struct buf b;
    (void)state;
    buf_init(&b, SIZE_MAX);
    role_info_print(&b, "default", 0, 1);
    role_info_print(&b, "a\"\xc3\xa9\n\xff\xf0\x9f\x98\x80\x7f", 12, 8);
    rank_range_print(&b, &(struct rank_range){ 1, 3, 0, 2 });
    buf_u8(&b, 0);
    assert_string_equal(
        (const char *)buf_data(&b),
        "{\"role\": \"default\", \"rank\": 0, \"local_world_size\": 1}"
        "{\"role\": \"a\\\"\\u00e9\\n\\udcff\\ud83d\\ude00\\u007f\", \"rank\": 12, "
        "\"local_world_size\": 8}[1, 3, 0, 2]");
    buf_fini(&b);
}

static void parsed(void **state)
{
    struct role_info r = { 0 };
    struct rank_range g;
    (void)state;
    assert_int_equal(
        role_info_parse(
            &r, span_str("{\"rank\":4,\"role\":\"x\",\"local_world_size\":2}"), NULL),
        0);
    assert_string_equal(r.role, "x");
    assert_int_equal(r.rank, 4);
    role_info_fini(&r);
    assert_int_equal(/* --role from bytes that are no UTF-8, as all agents write it */
                     role_info_parse(&r,
                                     span_str("{\"role\": \"\\udce9\", \"rank\": 0, "
                                              "\"local_world_size\": 1}"),
                                     NULL),
                     0);
    assert_string_equal(r.role, "\\udce9");
    role_info_fini(&r);
    assert_int_equal(rank_range_parse(&g, span_str("[4, 8, 2, 4]"), NULL), 0);
    assert_int_equal(g.role_world_size, 4);

    static const char *const bad_roles[] = {
        "",
        "{",
        "[]",
        "{\"role\": 1, \"rank\": 0, \"local_world_size\": 1}",
        "{\"role\": \"a\", \"rank\": 0}",
        "{\"role\":\"a\",\"rank\":0,\"local_world_size\":0}",
        "{\"role\":\"a\",\"rank\":0,\"local_world_size\":99999999999999}",
    };
    for (size_t i = 0; i < ARRAY_LEN(bad_roles); i++)
        assert_int_equal(role_info_parse(&r, span_str(bad_roles[i]), NULL),
                         MUSTER_EPROTO);
    static const char *const bad_ranges[] = {
        "",
        "[1,2,3]",
        "[1,2,3,4,5]",
        "[1,2,3,\"4\"]",
        "[-1,2,3,4]",
        "{}",
        "[1.5,2,3,4]",
        /* ranks that no world has */
        "[8, 8, 0, 8]",
        "[0, 8, 3, 3]",
        "[0, 2, 0, 3]",
        "[0, 0, 0, 0]",
    };
    for (size_t i = 0; i < ARRAY_LEN(bad_ranges); i++)
        assert_int_equal(rank_range_parse(&g, span_str(bad_ranges[i]), NULL),
                         MUSTER_EPROTO);
}

/* Roles interleaved: global ranks follow the agents, role ranks their own kind. */
static void assigned(void **state)
{
    const struct role_info infos[] = { { (char *)"a", 0, 1 },
                                       { (char *)"b", 1, 2 },
                                       { (char *)"a", 2, 3 } };
    struct rank_range out[3];
    (void)state;
    assert_int_equal(ranks_assign(infos, 3, out, NULL), 0);
    const struct rank_range want[] = { { 0, 6, 0, 4 }, { 1, 6, 0, 2 }, { 3, 6, 1, 4 } };
    assert_memory_equal(out, want, sizeof want);

    const struct role_info liar[] = { { (char *)"a", 1, 1 } };
    assert_int_equal(ranks_assign(liar, 1, out, NULL), MUSTER_EPROTO);

    const struct rank_range same = ranks_identical(2, 4, 8);
    assert_memory_equal(&same, (&(struct rank_range){ 16, 32, 16, 32 }), sizeof same);
}

/* Rank 0 may be anybody's: what it assigns has to have room for our workers. */
static void assigned_too_few(void **state)
{
    static const struct {
        const char *ranks;
        enum dialogue_fx_kind end;
    } rows[] = {
        { "[2, 4, 2, 4]", DIALOGUE_DONE },
        { "[2, 4, 0, 2]", DIALOGUE_DONE },
        { "[3, 4, 2, 4]", DIALOGUE_FAILED },
        { "[2, 4, 0, 1]", DIALOGUE_FAILED },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct rank_exchange x = { .role = "a", .rank = 1, .world = 2, .nproc = 2 };
        const struct c10d_reply reply = { .op = C10D_GET,
                                          .value = span_str(rows[i].ranks) };
        struct dialogue_event ev = { .kind = DIALOGUE_BEGIN };
        struct dialogue_fx fx = { .kind = DIALOGUE_NOTHING };

        dialogue_init(&x.dialogue);
        assert_int_equal(rank_exchange_step(&x.dialogue, &ev, &fx), 0);
        ev = (struct dialogue_event){ .kind = DIALOGUE_ANSWER, .reply = &reply };
        assert_int_equal(rank_exchange_step(&x.dialogue, &ev, &fx), 0);
        assert_int_equal(fx.kind, rows[i].end);
        dialogue_fini(&x.dialogue);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts),
        cmocka_unit_test(parsed),
        cmocka_unit_test(assigned),
        cmocka_unit_test(assigned_too_few),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
