/* test_options.c - the command line, row by row: what is said, what it comes to. */
#include <stdio.h>

#include "base/buf.h"
#include "base/py/repr.h"
#include "launch/core/derive.h"
#include "launch/core/options.h"
#include "testing.h"

#define MAX_WORDS 16

/* Splits at blanks; "~" stands for a blank inside a word, "''" for an empty word. */
struct words {
    char text[512];
    char *at[MAX_WORDS + 1];
    size_t count;
};

static void split(struct words *w, const char *line)
{
    (void)snprintf(w->text, sizeof w->text, "%s", line);
    w->count = 0;
    for (char *p = strtok(w->text, " "); p; p = strtok(NULL, " ")) {
        if (strcmp(p, "''") == 0)
            *p = '\0';
        for (char *c = p; *c; c++)
            if (*c == '~')
                *c = ' ';
        w->at[w->count++] = p;
    }
    w->at[w->count] = NULL;
}

static enum options_fault parse(struct options *o, const char *line, const char *env,
                                bool launch, struct words *args, struct words *vars,
                                struct muster_error *err)
{
    split(args, line);
    split(vars, env ? env : "");
    const struct options_input in = { args->at, args->count, vars->at, launch };

    *err = (struct muster_error){ 0 };
    return options_parse(o, &in, err);
}

static const struct {
    const char *line, *error, *env;
    bool launch;
} refused[] = {
    { "",
      "the following arguments are required: training_script, training_script_args" },
    { "--",
      "the following arguments are required: training_script, training_script_args" },
    { "--bogus x.py", "unrecognized arguments: --bogus" },
    { "--nproc-per-nodes=2 x.py",
      "unrecognized arguments: --nproc-per-nodes=2\n--nproc-per-nodes: did you mean "
      "--nproc-per-node?" },
    { "--rdzv_bakend=c10d x.py --nnodez 1",
      "unrecognized arguments: --rdzv_bakend=c10d\n--rdzv_bakend: did you mean "
      "--rdzv-backend?" },
    { "--nnodes=two x.py",
      "--nnodes takes a number of nodes, or a range as in 2:4, and not 'two'" },
    { "x.py", "--nnodes takes a number of nodes, or a range as in 2:4, and not '1:2:3'",
      "PET_NNODES=1:2:3" },
    { "--bogus --zz=1 -q x.py", "unrecognized arguments: --bogus --zz=1 -q" },
    { "-standalone x.py", "unrecognized arguments: -standalone" },
    { "--use-env x.py", "unrecognized arguments: --use-env" },
    { "--nproc_per-node 2 x.py",
      "unrecognized arguments: --nproc_per-node\n--nproc_per-node: did you mean "
      "--nproc-per-node?" },
    { "--print-conf x.py", "unrecognized arguments: --print-conf\n--print-conf: did "
                           "you mean --print-config?" },
    { "--print-completion fish",
      "argument --print-completion/--print_completion: invalid choice: 'fish' (choose "
      "from 'bash', 'zsh', 'tcsh')" },
    { "--print-completion",
      "argument --print-completion/--print_completion: expected one argument" },
    { "x.py",
      "argument --rank-order/--rank_order: invalid choice: 'q' (choose from 'node', "
      "'given', 'slurm', 'index')",
      "MUSTER_RANK_ORDER=q" },
    { "--max 1 x.py",
      "ambiguous option: --max could match --max-restarts, --max_restarts" },
    { "--max=1 x.py",
      "ambiguous option: --max=1 could match --max-restarts, --max_restarts" },
    { "--v x.py", "ambiguous option: --v could match --virtual-local-rank, "
                  "--virtual_local_rank" },
    { "--max-restarts=a --max x.py",
      "ambiguous option: --max could match --max-restarts, --max_restarts" },
    { "--help --shut x.py", "ambiguous option: --shut could match --shutdown-timeout, "
                            "--shutdown_timeout" },
    { "--us x.py", "ambiguous option: --us could match --use-env, --use_env", NULL,
      true },
    { "--max-restarts=a x.py",
      "argument --max-restarts/--max_restarts: invalid int value: 'a'" },
    { "--max-restarts 1.5 x.py",
      "argument --max-restarts/--max_restarts: invalid int value: '1.5'" },
    { "--max-restarts 1__0 x.py",
      "argument --max-restarts/--max_restarts: invalid int value: '1__0'" },
    { "--max-restarts _1 x.py",
      "argument --max-restarts/--max_restarts: invalid int value: '_1'" },
    { "--max-restarts 0x1 x.py",
      "argument --max-restarts/--max_restarts: invalid int value: '0x1'" },
    { "--max-restarts= x.py",
      "argument --max-restarts/--max_restarts: invalid int value: ''" },
    { "--monitor-interval x x.py",
      "argument --monitor-interval/--monitor_interval: invalid float value: 'x'" },
    { "--role", "argument --role: expected one argument" },
    { "--role --standalone x.py", "argument --role: expected one argument" },
    { "--role -q x.py", "argument --role: expected one argument" },
    { "--role -- x.py", "argument --role: expected one argument" },
    { "-r", "argument -r/--redirects: expected one argument" },
    { "-mjson.tool", "argument -m/--module: ignored explicit argument 'json.tool'" },
    { "-m= x", "argument -m/--module: ignored explicit argument ''" },
    { "--standalone=1 x.py", "argument --standalone: ignored explicit argument '1'" },
    { "--no-python= x.py",
      "argument --no-python/--no_python: ignored explicit argument ''" },
    { "--start-method x x.py",
      "argument --start-method/--start_method: invalid choice: "
      "'x' (choose from 'spawn', 'fork', 'forkserver')" },
    { "--numa-binding it's x.py",
      "argument --numa-binding/--numa_binding: invalid choice: \"it's\" (choose from "
      "'node', 'socket', 'exclusive', 'core-complex')" },
    { "x.py", "argument --max-restarts/--max_restarts: invalid int value: 'x'",
      "PET_MAX_RESTARTS=x" },
    { "", "argument --master-port/--master_port: invalid int value: ''",
      "PET_MASTER_PORT=" },
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        struct options o;
        struct words args, vars;
        struct muster_error err;
        const enum options_fault fault = parse(&o, refused[i].line, refused[i].env,
                                               refused[i].launch, &args, &vars, &err);

        if (fault != OPTIONS_USAGE || strcmp(err.text, refused[i].error) != 0)
            fail_msg("%s: fault %d, said: %s", refused[i].line, fault, err.text);
    }
}

/* Values after parsing, as one line of the fields that matter here. */
static const struct {
    const char *line, *want, *env;
} accepted[] = {
    { "x.py", "1:1 1 0 role=default r=0 t=0 m=0 n=0 s=0 x.py" },
    { "x.py --nnodes 3 -h",
      "1:1 1 0 role=default r=0 t=0 m=0 n=0 s=0 x.py --nnodes 3 -h" },
    { "x.py --max 1", "1:1 1 0 role=default r=0 t=0 m=0 n=0 s=0 x.py --max 1" },
    { "--nnodes 2 --nnodes=3:4 x.py", "3:4 1 0 role=default r=0 t=0 m=0 n=0 s=0 x.py" },
    { "--nproc_per_node 2 --nproc-per-node=4 x.py",
      "1:1 4 0 role=default r=0 t=0 m=0 n=0 s=0 x.py" },
    { "--max- ~+1_0~ --stan x.py", "1:1 1 10 role=default r=0 t=0 m=0 n=0 s=1 x.py" },
    { "--nn 2 --ro a --re 3 --t 1 --mod x", "2 1 0 role=a r=3 t=1 m=1 n=0 s=0 x" },
    { "-mr3 mod -r1", "1:1 1 0 role=default r=3 t=0 m=1 n=0 s=0 mod -r1" },
    { "-m=r3 mod", "1:1 1 0 role=default r=3 t=0 m=1 n=0 s=0 mod" },
    { "-mr=3 mod", "1:1 1 0 role=default r==3 t=0 m=1 n=0 s=0 mod" },
    { "-mr 3 mod", "1:1 1 0 role=default r=3 t=0 m=1 n=0 s=0 mod" },
    { "-t=3 -r 1 x", "1:1 1 0 role=default r=1 t=3 m=0 n=0 s=0 x" },
    { "-t= -r0:1,1:2 x", "1:1 1 0 role=default r=0:1,1:2 t= m=0 n=0 s=0 x" },
    { "--role -1 x", "1:1 1 0 role=-1 r=0 t=0 m=0 n=0 s=0 x" },
    { "--role -.5 x", "1:1 1 0 role=-.5 r=0 t=0 m=0 n=0 s=0 x" },
    { "--role -a~b x", "1:1 1 0 role=-a b r=0 t=0 m=0 n=0 s=0 x" },
    { "--role - x", "1:1 1 0 role=- r=0 t=0 m=0 n=0 s=0 x" },
    { "--role '' x", "1:1 1 0 role= r=0 t=0 m=0 n=0 s=0 x" },
    { "-1 a", "1:1 1 0 role=default r=0 t=0 m=0 n=0 s=0 -1 a" },
    { "-- s.py a -- b", "1:1 1 0 role=default r=0 t=0 m=0 n=0 s=0 s.py a -- b" },
    { "s.py -- a", "1:1 1 0 role=default r=0 t=0 m=0 n=0 s=0 s.py a" },
    { "s.py -- -- a", "1:1 1 0 role=default r=0 t=0 m=0 n=0 s=0 s.py -- a" },
    { "-- s.py -- a", "1:1 1 0 role=default r=0 t=0 m=0 n=0 s=0 s.py -- a" },
    { "-- -- a", "1:1 1 0 role=default r=0 t=0 m=0 n=0 s=0 -- a" },
    { "-- --role", "1:1 1 0 role=default r=0 t=0 m=0 n=0 s=0 --role" },
    { "x", "1:1 4 0 role=e r=0 t=0 m=0 n=1 s=0 x",
      "PET_NPROC_PER_NODE=4 PET_ROLE=e PET_NO_PYTHON=-3" },
    { "--role b --max-restarts 2 x", "1:1 1 2 role=b r=0 t=0 m=0 n=0 s=0 x",
      "PET_ROLE=a PET_MAX_RESTARTS=x PET_STANDALONE=0 PET_NUMA_BINDING=q" },
    { "x", "1:1 1 0 role= r=2 t=0 m=0 n=0 s=1 x",
      "PET_ROLE= PET_REDIRECTS=2 PET_START_METHOD=bogus PET_STANDALONE=~1~" },
};

static void test_accepted(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(accepted); i++) {
        struct options o;
        struct words args, vars;
        struct muster_error err;
        char got[512];
        int n;

        if (parse(&o, accepted[i].line, accepted[i].env, false, &args, &vars, &err))
            fail_msg("%s: %s", accepted[i].line, err.text);
        n = snprintf(got, sizeof got, "%s %s %lld role=%s r=%s t=%s m=%d n=%d s=%d %s",
                     o.nnodes, o.nproc_per_node, (long long)o.max_restarts.value,
                     o.role, o.redirects, o.tee, o.module, o.no_python, o.standalone,
                     o.script);
        for (size_t k = 0; k < o.n_script_args; k++)
            n += snprintf(got + n, sizeof got - (size_t)n, " %s", o.script_args[k]);
        if (strcmp(got, accepted[i].want) != 0)
            fail_msg("%s:\n  want %s\n  got  %s", accepted[i].line, accepted[i].want,
                     got);
    }
}

/* What torch 2.15 added. */
static void test_since_torch_2_15(void **state)
{
    struct options o;
    struct words args, vars;
    struct muster_error err;

    (void)state;
    assert_int_equal(parse(&o, "x.py", NULL, false, &args, &vars, &err), OPTIONS_FINE);
    assert_string_equal(o.log_line_prefix_template, "");
    assert_null(o.print_completion);
    assert_int_equal(parse(&o, "--log-line-prefix-template ${rank}~ x.py",
                           "PET_LOG_LINE_PREFIX_TEMPLATE=a", false, &args, &vars, &err),
                     OPTIONS_FINE);
    assert_string_equal(o.log_line_prefix_template, "${rank} ");
    assert_int_equal(
        parse(&o, "x.py", "PET_LOG_LINE_PREFIX_TEMPLATE=a", false, &args, &vars, &err),
        OPTIONS_FINE);
    assert_string_equal(o.log_line_prefix_template, "a");
    /* It is acted on where it is met: nothing behind it counts, no script is needed. */
    assert_int_equal(parse(&o, "--print_completion=tcsh --max-restarts=a", NULL, false,
                           &args, &vars, &err),
                     OPTIONS_FINE);
    assert_string_equal(o.print_completion, "tcsh");
    assert_int_equal(
        parse(&o, "--bogus --print-completion zsh", NULL, false, &args, &vars, &err),
        OPTIONS_FINE);
    assert_string_equal(o.print_completion, "zsh");
}

static void test_variables_of_our_own_options(void **state)
{
    struct options o;
    struct words args, vars;
    struct muster_error err;

    (void)state;
    assert_int_equal(parse(&o, "x.py", "MUSTER_RANK_ORDER=index PET_RANK_ORDER=slurm",
                           false, &args, &vars, &err),
                     OPTIONS_FINE);
    assert_string_equal(o.rank_order, "index");
    assert_int_equal(parse(&o, "--rank-order given x.py", "MUSTER_RANK_ORDER=index",
                           false, &args, &vars, &err),
                     OPTIONS_FINE);
    assert_string_equal(o.rank_order, "given");
}

/* --warm has a value only behind "=": what follows is the script. */
static void test_optional_value(void **state)
{
    struct options o;
    struct words args, vars;
    struct muster_error err;

    (void)state;
    assert_int_equal(parse(&o, "--warm train.py a", NULL, false, &args, &vars, &err),
                     OPTIONS_FINE);
    assert_string_equal(o.warm, "");
    assert_string_equal(o.script, "train.py");
    assert_int_equal(
        parse(&o, "--warm=torch,numpy train.py", NULL, false, &args, &vars, &err),
        OPTIONS_FINE);
    assert_string_equal(o.warm, "torch,numpy");
    assert_int_equal(
        parse(&o, "train.py", "MUSTER_WARM=auto", false, &args, &vars, &err),
        OPTIONS_FINE);
    assert_string_equal(o.warm, "auto");
    assert_int_equal(parse(&o, "train.py", "MUSTER_WARM=", false, &args, &vars, &err),
                     OPTIONS_FINE);
    assert_null(o.warm);
    assert_int_equal(parse(&o, "train.py", NULL, false, &args, &vars, &err),
                     OPTIONS_FINE);
    assert_null(o.warm);
}

static void test_flag_variable_must_be_a_number(void **state)
{
    struct options o;
    struct words args, vars;
    struct muster_error err;

    (void)state;
    assert_int_equal(
        parse(&o, "--help", "PET_STANDALONE=yes", false, &args, &vars, &err),
        OPTIONS_VALUE);
    assert_memory_equal(err.text, "invalid literal for int() with base 10: 'yes'\n",
                        46);
    assert_int_equal(
        parse(&o, "--help --bogus", "PET_MAX_RESTARTS=x", false, &args, &vars, &err),
        OPTIONS_FINE);
    assert_true(o.help);
}

static const struct {
    const char *text;
    bool ok;
    double value;
} floats[] = {
    { "0.1", true, 0.1 },        { " 1_0.5 ", true, 10.5 },
    { "1.", true, 1 },           { ".5e1", true, 5 },
    { "-2E-1", true, -0.2 },     { "1e400", true, 1e308 * 10 },
    { "inf", true, 1e308 * 10 }, { "0x10", false, 0 },
    { "1_", false, 0 },          { "_1", false, 0 },
    { "1._5", false, 0 },        { "1e", false, 0 },
    { ".", false, 0 },           { "", false, 0 },
    { "1 2", false, 0 },         { "1e1_0", true, 1e10 },
};

static void test_float(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(floats); i++) {
        double v = 0;
        const bool ok = py_float(floats[i].text, &v);

        if (ok != floats[i].ok || (ok && v != floats[i].value))
            fail_msg("%s: %d %g", floats[i].text, ok, v);
    }
}

static void test_repr(void **state)
{
    static const char *const rows[][2] = {
        { "a", "'a'" },
        { "it's", "\"it's\"" },
        { "a'b\"", "'a\\'b\"'" },
        { "\n\t\\", "'\\n\\t\\\\'" },
        { "\x01\x7f", "'\\x01\\x7f'" },
        { "\xff", "'\\udcff'" },
        { "\xc3\xa9", "'\xc3\xa9'" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct buf b;

        buf_init(&b, SIZE_MAX);
        assert_int_equal(py_repr(&b, rows[i][0]), 0);
        assert_int_equal(buf_len(&b), strlen(rows[i][1]));
        assert_memory_equal(buf_data(&b), rows[i][1], buf_len(&b));
        buf_fini(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_since_torch_2_15),
        cmocka_unit_test(test_variables_of_our_own_options),
        cmocka_unit_test(test_optional_value),
        cmocka_unit_test(test_flag_variable_must_be_a_number),
        cmocka_unit_test(test_float),
        cmocka_unit_test(test_repr),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
