/* options_table.c - every option, in the order in which torchrun declares them (which
 * is the order of its --help and of its "could match" messages). */
#include "launch/core/options.h"

#define FIELD(f) offsetof(struct options, f)

static const char *const start_methods[] = { "spawn", "fork", "forkserver", NULL };
static const char *const numa_bindings[] = { "node", "socket", "exclusive",
                                             "core-complex", NULL };

static const char *const shells[] = { "bash", "zsh", "tcsh", NULL };
static const char *const warm_values[] = { "[=MODULE,...|auto]", NULL };
static const char *const frameworks[] = { "jax",     "mpi",  "tf",     "horovod",
                                          "xgboost", "vllm", "sglang", NULL };
static const char *const on_failures[] = { "stop", "finish", NULL };
static const char *const failures[] = { "short", "torch", NULL };
static const char *const exit_code_kinds[] = { "torch", "cause", NULL };
static const char *const rank_orders[] = { "node", "given", "slurm", "index", NULL };

const struct option_spec options_table[] = {
    { "help", 'h', OPTION_HELP, OWNER_TORCH, false, NULL, NULL, FIELD(help),
      "Print this text and exit; -h prints the ten options that most jobs need." },
    { "nnodes", 0, OPTION_TEXT, OWNER_TORCH, true, "1:1", NULL, FIELD(nnodes),
      "How many nodes take part: a number, or a range MIN:MAX." },
    { "nproc-per-node", 0, OPTION_TEXT, OWNER_TORCH, true, "1", NULL,
      FIELD(nproc_per_node),
      "Workers on this node: a number, or cpu, gpu, xpu (as many as this machine has) "
      "or auto (accelerators if there are any, else CPUs)." },
    { "rdzv-backend", 0, OPTION_TEXT, OWNER_TORCH, true, "static", NULL,
      FIELD(rdzv_backend),
      "How the nodes find each other: static, c10d, etcd, etcd-v2 or etcd-v3." },
    { "rdzv-endpoint", 0, OPTION_TEXT, OWNER_TORCH, true, "", NULL,
      FIELD(rdzv_endpoint),
      "Where they meet: HOST or HOST:PORT; for etcd also a list, "
      "HOST:PORT,HOST:PORT." },
    { "rdzv-id", 0, OPTION_TEXT, OWNER_TORCH, true, "none", NULL, FIELD(rdzv_id),
      "Name of the job, the same on all nodes." },
    { "rdzv-conf", 0, OPTION_TEXT, OWNER_TORCH, true, "", NULL, FIELD(rdzv_conf),
      "More settings of the rendezvous: KEY=VALUE,KEY=VALUE,... (join_timeout, "
      "last_call_timeout, close_timeout, read_timeout, is_host, ...)." },
    { "standalone", 0, OPTION_FLAG, OWNER_TORCH, true, NULL, NULL, FIELD(standalone),
      "A job of its own on this machine: c10d on a free port and a random id, whatever "
      "--rdzv-backend, --rdzv-endpoint and --rdzv-id say." },
    { "max-restarts", 0, OPTION_INT, OWNER_TORCH, true, "0", NULL, FIELD(max_restarts),
      "How often the workers are started again after a failure before the job fails." },
    { "monitor-interval", 0, OPTION_FLOAT, OWNER_TORCH, true, "0.1", NULL,
      FIELD(monitor_interval),
      "Accepted and checked. The end of a worker is seen at once, without polling." },
    { "start-method", 0, OPTION_CHOICE, OWNER_TORCH, true, "spawn", start_methods,
      FIELD(start_method),
      "Accepted. Each --run-path worker gets an interpreter of its own." },
    { "event-log-handler", 0, OPTION_TEXT, OWNER_TORCH, true, "null", NULL,
      FIELD(event_log_handler),
      "Where events go: null, console (JSON lines on stderr), or file:PATH (JSON lines "
      "are appended)." },
    { "role", 0, OPTION_TEXT, OWNER_TORCH, true, "default", NULL, FIELD(role),
      "Role of this node's workers: ROLE_NAME, and part of the prefix of teed lines." },
    { "module", 'm', OPTION_FLAG, OWNER_TORCH, true, NULL, NULL, FIELD(module),
      "The script is the name of a Python module, as in python -m." },
    { "no-python", 0, OPTION_FLAG, OWNER_TORCH, true, NULL, NULL, FIELD(no_python),
      "The script is a program: run it without Python." },
    { "run-path", 0, OPTION_FLAG, OWNER_TORCH, true, NULL, NULL, FIELD(run_path),
      "Run the script by runpy under torch's error recorder, so that exceptions reach "
      "the report without a decorator. Comes before --no-python." },
    { "log-dir", 0, OPTION_TEXT, OWNER_TORCH, true, NULL, NULL, FIELD(log_dir),
      "Directory for log files; a directory named after the job is made in it." },
    { "redirects", 'r', OPTION_TEXT, OWNER_TORCH, true, "0", NULL, FIELD(redirects),
      "Streams that go to files instead of the console: 1 stdout, 2 stderr, 3 both, "
      "0 none; or one for each local rank, as in 0:3,1:2." },
    { "tee", 't', OPTION_TEXT, OWNER_TORCH, true, "0", NULL, FIELD(tee),
      "Streams that go to files and, line by line with a prefix, to the console; "
      "values as for --redirects." },
    { "log-line-prefix-template", 0, OPTION_TEXT, OWNER_TORCH, true, "", NULL,
      FIELD(log_line_prefix_template),
      "What teed lines begin with; ${role_name}, ${local_rank}, ${rank} and "
      "${hostname} "
      "in it are replaced. Else TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, else "
      "[${role_name}${local_rank}]:." },
    { "local-ranks-filter", 0, OPTION_TEXT, OWNER_TORCH, true, "", NULL,
      FIELD(local_ranks_filter),
      "Local ranks whose output the console shows, as in 0,1,2. Files are not "
      "affected." },
    { "duplicate-stdout-filters", 0, OPTION_LIST, OWNER_TORCH, true, NULL, NULL,
      FIELD(duplicate_stdout_filters),
      "Texts, between commas (two commas for one): teed stdout lines that contain one "
      "of them also go to filtered_stdout.log." },
    { "duplicate-stderr-filters", 0, OPTION_LIST, OWNER_TORCH, true, NULL, NULL,
      FIELD(duplicate_stderr_filters), "The same for stderr." },
    { "node-rank", 0, OPTION_INT, OWNER_TORCH, true, "0", NULL, FIELD(node_rank),
      "Rank of this node; static rendezvous only." },
    { "master-addr", 0, OPTION_TEXT, OWNER_TORCH, true, "127.0.0.1", NULL,
      FIELD(master_addr),
      "Address of node 0, a name or a numeric address; static rendezvous only." },
    { "master-port", 0, OPTION_INT, OWNER_TORCH, true, NULL, NULL, FIELD(master_port),
      "Port of node 0; static rendezvous only. 29500 if not given." },
    { "local-addr", 0, OPTION_TEXT, OWNER_TORCH, true, NULL, NULL, FIELD(local_addr),
      "Address of this node, as the others should use it." },
    { "logs-specs", 0, OPTION_TEXT, OWNER_TORCH, false, NULL, NULL, FIELD(logs_specs),
      "Python plug-ins for logging; there are none here, so every name is refused." },
    { "numa-binding", 0, OPTION_CHOICE, OWNER_TORCH, false, NULL, numa_bindings,
      FIELD(numa_binding),
      "Bind each worker to CPUs near its device: to those of the NUMA node, of the "
      "socket, to an equal share of the node's cores, or to one group of cores that "
      "share a cache." },
    { "signals-to-handle", 0, OPTION_TEXT, OWNER_TORCH, true,
      "SIGTERM,SIGINT,SIGHUP,SIGQUIT", NULL, FIELD(signals_to_handle),
      "Signals that are passed on to the workers and end the job in good order." },
    { "shutdown-timeout", 0, OPTION_INT, OWNER_TORCH, true, NULL, NULL,
      FIELD(shutdown_timeout),
      "Seconds that workers have to end after such a signal, or before a restart, "
      "until "
      "they are killed; else TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30." },
    { "virtual-local-rank", 0, OPTION_FLAG, OWNER_TORCH, true, NULL, NULL,
      FIELD(virtual_local_rank),
      "LOCAL_RANK is 0 for each worker and CUDA_VISIBLE_DEVICES (and "
      "HIP_VISIBLE_DEVICES, if it is set) holds its device alone." },
    { "print-completion", 0, OPTION_PRINT, OWNER_TORCH, false, NULL, shells,
      FIELD(print_completion),
      "Print a completion script for this shell and exit. See muster completion, which "
      "knows fish too." },
    { "use-env", 0, OPTION_FLAG, OWNER_LAUNCH, false, NULL, NULL, FIELD(use_env),
      "Do not pass --local-rank to the script, as it reads LOCAL_RANK." },
    { "rank-order", 0, OPTION_CHOICE, OWNER_MUSTER, true, NULL, rank_orders,
      FIELD(rank_order),
      "Which node of a c10d group gets which rank: by node name, as torchrun does; as "
      "given by --node-rank; by SLURM_NODEID; or by index, the number of a Kubernetes "
      "Job or StatefulSet pod. Has an effect only when all nodes run muster." },
    { "rdzv-serve", 0, OPTION_FLAG, OWNER_MUSTER, true, NULL, NULL, FIELD(rdzv_serve),
      "With --rdzv-backend=etcd-v3: the hosts that --rdzv-endpoint lists run an etcd "
      "for this job while it lasts. Of three hosts one may die, of five two." },
    { "metrics-handler", 0, OPTION_TEXT, OWNER_MUSTER, true, "null", NULL,
      FIELD(metrics_handler),
      "Where torch's metrics of the agent go: null, console (as torch's "
      "ConsoleMetricHandler prints them, on stdout), or file:PATH (JSON lines are "
      "appended)." },
    { "warm", 0, OPTION_OPTIONAL, OWNER_MUSTER, true, NULL, warm_values, FIELD(warm),
      "Import once per node, in an interpreter from which all workers of all attempts "
      "are forked: torch and what DDP needs, the modules that are named, or (auto) "
      "what this script imported the last time. Workers start within milliseconds, and "
      "otherwise as if python had started them." },
    { "for", 0, OPTION_CHOICE, OWNER_MUSTER, true, NULL, frameworks, FIELD(framework),
      "Also set what this framework needs beside torch's variables, and replace "
      "${rank} "
      "and the other names of --env in the program's arguments. mpi serves PMI-1 to "
      "programs of MPICH and Intel MPI; vllm and sglang get arguments. A variable or "
      "argument that you have set stays as it is." },
    { "env", 0, OPTION_EACH, OWNER_MUSTER, true, NULL, NULL, FIELD(env),
      "NAME=VALUE: a variable of the workers; may be given several times. ${rank}, "
      "${local_rank}, "
      "${node_rank}, ${nnodes}, ${world_size}, ${local_world_size}, ${master_addr}, "
      "${master_port}, ${hostname}, ${restart} and ${run_id} in it are replaced; $${ "
      "stands for ${." },
    { "env-file", 0, OPTION_TEXT, OWNER_MUSTER, true, NULL, NULL, FIELD(env_file),
      "A file with lines as for --env; those that begin with # are left out." },
    { "net", 0, OPTION_TEXT, OWNER_MUSTER, true, NULL, NULL, FIELD(net),
      "The workers' network: an interface (ib0), or a network (10.1.0.0/16) in which "
      "one "
      "has an address. NCCL, gloo and TensorPipe use it, unless NCCL_SOCKET_IFNAME, "
      "GLOO_SOCKET_IFNAME or TP_SOCKET_IFNAME is set. Without it, in jobs of several "
      "nodes, gloo and TensorPipe use the interface of --local-addr, or the one by "
      "which "
      "the nodes reach each other." },
    { "status-http", 0, OPTION_TEXT, OWNER_MUSTER, true, NULL, NULL, FIELD(status_http),
      "Serve a page that shows the job, and metrics for Prometheus, at ADDR:PORT "
      "(without ADDR: to this machine alone; port 0: any free one). `muster status "
      "--url` prints the link." },
    { "hang", 0, OPTION_TEXT, OWNER_MUSTER, true, NULL, NULL, FIELD(hang),
      "TIME[:report|restart|stop]: when no rank has made progress for TIME (90s, 10m, "
      "1h30m), report where each rank is and which one is the likely cause; then "
      "restart the workers or end the job, if asked to. Progress is output, writes to "
      "the "
      "store, ranks that come out of collectives, and --progress-file." },
    { "progress-file", 0, OPTION_TEXT, OWNER_MUSTER, true, NULL, NULL,
      FIELD(progress_file),
      "A file whose modification counts as progress, for --hang and for restarts by "
      "cause." },
    { "restart-grace", 0, OPTION_TEXT, OWNER_MUSTER, true, NULL, NULL,
      FIELD(restart_grace),
      "TIME (5s, 500ms, 1m) that the other workers have to end when one has failed or "
      "nodes come and go, before they are killed; else what --shutdown-timeout says, "
      "at most 30 seconds." },
    { "restart-policy", 0, OPTION_TEXT, OWNER_MUSTER, true, NULL, NULL,
      FIELD(restart_policy),
      "Restarts by cause: default, or rules CAUSE:stop|restart|free between commas, or "
      "a "
      "file of them; the first that fits counts, and those of default follow. Causes: "
      "an "
      "exception's class (ImportError, torch.OutOfMemoryError, ValueError@data.py:41), "
      "exit:N, signal:NAME, oom, hang, node, notice, check, any, repeat (the same "
      "failure "
      "at the same place in three attempts without progress). default: SyntaxError, "
      "ImportError, exit:2 and repeat stop; node and notice restart without being "
      "counted." },
    { "restart-budget", 0, OPTION_TEXT, OWNER_MUSTER, true, NULL, NULL,
      FIELD(restart_budget),
      "N/TIME (5/1h): at most N restarts of the job in any TIME, beside --max-restarts "
      "if "
      "that is given." },
    { "restart-backoff", 0, OPTION_TEXT, OWNER_MUSTER, true, NULL, NULL,
      FIELD(restart_backoff),
      "MIN..MAX (1s..60s): wait before a restart, doubled each time until there is "
      "progress, which is a change of --progress-file." },
    { "exit-codes", 0, OPTION_CHOICE, OWNER_MUSTER, true, "torch", exit_code_kinds,
      FIELD(exit_codes),
      "cause: exit with 75 if it is worth trying again (preempted, nodes lost), 93 if "
      "it "
      "is not, 124 after a hang, 137 out of memory, else 1; torch: 1 for all of "
      "them." },
    { "notice", 0, OPTION_TEXT, OWNER_MUSTER, true, NULL, NULL, FIELD(notice),
      "How it is told that this node is to go: signals with the time that is left then "
      "(SIGTERM:120s,SIGUSR1; without a time what --shutdown-timeout says), slurm (2 "
      "minutes before the end of the Slurm job, or slurm:TIME; and SIGTERM), or a "
      "command that exits with 0 then and may print how many seconds are left. All "
      "ranks of the job are told, and have until the deadline." },
    { "on-notice", 0, OPTION_TEXT, OWNER_MUSTER, true, NULL, NULL, FIELD(on_notice),
      "How the ranks are told of it: a signal (SIGTERM if not given), or a command "
      "that "
      "is run once on each node. MUSTER_NOTICE_FILE and muster.deadline() tell it, "
      "too." },
    { "notify", 0, OPTION_LIST, OWNER_MUSTER, true, NULL, NULL, FIELD(notify),
      "Tell others of restarts, hangs, notices and the end: URLs that get a JSON "
      "object "
      "with a text by POST, and commands that get it on stdin; several between commas "
      "(two commas for one). Tried for a minute, and never waited for." },
    { "log-attempts", 0, OPTION_INT, OWNER_MUSTER, true, NULL, NULL,
      FIELD(log_attempts),
      "Keep the log directories of the first attempt and of the last N; else all in "
      "--log-dir, and 100 where it is not given." },
    { "token-file", 0, OPTION_TEXT, OWNER_MUSTER, true, NULL, NULL, FIELD(token_file),
      "File with the job's secret, the same on all nodes, mode 0600: only nodes that "
      "hold it can join, and only their workers reach the store. MUSTER_TOKEN may hold "
      "the secret itself." },
    { "token-optional", 0, OPTION_FLAG, OWNER_MUSTER, true, NULL, NULL,
      FIELD(token_optional),
      "Also admit nodes of torchrun, which cannot prove that they hold the secret. "
      "Anybody who can reach the ports can then do what those nodes can." },
    { "encrypt", 0, OPTION_FLAG, OWNER_MUSTER, true, NULL, NULL, FIELD(encrypt),
      "Encrypt the traffic of the nodes and of their workers' store (TLS 1.3 with the "
      "job's secret). MASTER_ADDR is then 127.0.0.1, and MUSTER_MASTER_ADDR has the "
      "real address." },
    { "on-failure", 0, OPTION_CHOICE, OWNER_MUSTER, true, "stop", on_failures,
      FIELD(on_failure),
      "What the workers of this node do when the job has failed for good on another "
      "one: stop at once, or finish by themselves, as with torchrun." },
    { "failure", 0, OPTION_CHOICE, OWNER_MUSTER, true, NULL, failures, FIELD(failure),
      "How a failure is told: in a few short lines, as on a terminal, or also with "
      "torchrun's report and its line for each worker, as in pipes and files." },
    { "report", 0, OPTION_TEXT, OWNER_MUSTER, true, NULL, NULL, FIELD(report),
      "File for the history of the job as JSON: nodes, rounds, restarts and their "
      "causes, the verdict. Written after each restart and at the end; the same on "
      "every node." },
    { "print-config", 0, OPTION_FLAG, OWNER_MUSTER, false, NULL, NULL,
      FIELD(print_config),
      "Print what the command line and the environment amount to as JSON, start "
      "nothing, and exit." },
};
const size_t options_count = ARRAY_LEN(options_table);
_Static_assert(ARRAY_LEN(options_table) <= 64, "options.c has a bit for each");
