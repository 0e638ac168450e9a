"""Our command line against torchrun's own parser and its own checks, in-process.

Nothing is started: torch's `elastic_launch` is replaced by one that keeps what it was
given, and ours is asked with --print-config. Both are fed the same words and variables,
first chosen ones, then some thousand at random from a fixed seed.
"""
from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch.distributed.launch as torch_launch
import torch.distributed.run as torch_run
from torch.distributed.argparse_util import env as env_action
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.launcher.api import _get_addr_and_port

from argparse_words import NEWER, older_words

ROOT = Path(__file__).resolve().parent.parent.parent
MUSTER = ROOT / "build" / "muster"
VENV = ROOT / "build" / "venv"
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Print(argparse.Action):
    """Acts when it is met, as --print-completion does."""

    def __call__(self, parser, namespace, values, option_string=None):
        parser.exit(0)


@pytest.fixture(autouse=True)
def torch_2_15(monkeypatch):
    """An older torch's parser with the two options that 2.15 added, where 2.15 has them."""
    if "--log-line-prefix-template" in torch_run.get_args_parser()._option_string_actions:
        return
    add = argparse.ArgumentParser.add_argument

    def add_in_order(self, *names, **how):
        if names[0] == "--local-ranks-filter":
            add(self, "--log-line-prefix-template", "--log_line_prefix_template", action=env_action,
                type=str, default="", help="")
        action = add(self, *names, **how)
        if names[0] == "--virtual-local-rank":
            add(self, "--print-completion", "--print_completion", action=Print,
                choices=["bash", "zsh", "tcsh"], default=argparse.SUPPRESS, help="")
        return action

    monkeypatch.setattr(argparse.ArgumentParser, "add_argument", add_in_order)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """torch makes the directories that --log-dir names, whatever a random word calls them."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def one_cpu():
    """`--nproc-per-node=cpu` counts the affinity mask; ours also looks at the limits of a
    container (DIFFERENCES.md), which are never below one."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


# What Pythons up to 3.11 make of letters that are written together.
TOGETHER = {
    ("-mr3", "mod"): ("config", {"module": True, "redirects": "3"}),
    ("-m=r3", "mod"): ("config", {"module": True, "redirects": "3"}),
    ("-mr=3", "mod"): ("error", r"=3 does not match: <^[0123]$> or <^(\d:[0123],)*(\d:[0123])$>"),
    ("-mjson.tool",): ("exit", 2, "argument -m/--module: ignored explicit argument 'json.tool'"),
}


def differs_by_version(argv: list[str], ours: tuple, launch: bool) -> bool:
    """Whether a newer argparse has another opinion; what ours says is checked by itself."""
    together = [w for w in argv if re.match("-[mrth].", w)]
    if tuple(argv) in TOGETHER:
        want = TOGETHER[tuple(argv)]
        assert ours[0] == want[0]
        if want[0] == "config":
            assert want[1].items() <= ours[1]["options"].items()
        else:
            assert ours[1:len(want)] == want[1:]
        return True
    match = re.fullmatch(r"ambiguous option: (.*?) could match (.*)", str(ours[2])) if ours[0] == "exit" else None
    if match:
        names = [n for a in torch_run.get_args_parser()._actions for n in a.option_strings]
        names += ["--use-env", "--use_env"] if launch else []
        start = match[1].partition("=")[0]
        assert any(w == match[1] for w in argv)
        assert match[2][:900] == ", ".join(n for n in names if n.startswith(start))[:900]
    return bool(together or match)


class Captured(Exception):
    """Carries what torchrun was about to launch."""


def capture(config, entrypoint):
    def launch(*args):
        # The last checks before anything is opened, and those of WorkerSpec.
        params = RendezvousParameters(
            backend=config.rdzv_backend, endpoint=config.rdzv_endpoint,
            run_id=config.run_id, min_nodes=config.min_nodes,
            max_nodes=config.max_nodes, local_addr=config.local_addr,
            **config.rdzv_configs)
        _get_addr_and_port(params)
        if not config.nproc_per_node > 0 or not config.monitor_interval > 0:
            raise AssertionError
        raise Captured(config, entrypoint, list(args))

    return launch


def environment(extra: dict[str, str]) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "VIRTUAL_ENV": str(VENV), **extra}


def ask_torch(argv: list[str], env: dict[str, str], launch: bool = False):
    """("exit", code, text), ("error", text), or ("config", args, config)."""
    err = io.StringIO()
    module = torch_launch if launch else torch_run
    with mock.patch.dict(os.environ, environment(env), clear=True), \
            mock.patch.object(torch_run, "elastic_launch", capture), \
            mock.patch.object(torch_run.torch.multiprocessing, "_set_thread_name"), \
            mock.patch.object(sys, "argv", ["muster " + ("launch" if launch else "run")]), \
            contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        try:
            args = module.parse_args(list(argv))
            said = {k: v for k, v in vars(args).items()}
            (torch_launch.launch if launch else torch_run.run)(args)
        except SystemExit as e:
            lines = err.getvalue().splitlines() or [""]
            return "exit", e.code, older_words(lines[-1].partition("error: ")[2])
        except Captured as e:
            return "config", said, e.args
        except Exception as e:  # what torchrun would die of
            return "error", str(e), type(e).__name__
    raise AssertionError("torchrun returned")


def ask_muster(argv: list[str], env: dict[str, str], launch: bool = False):
    done = subprocess.run(
        [MUSTER, "launch" if launch else "run", "--print-config", *argv],
        env=environment(env), capture_output=True, text=True, timeout=60, check=False)
    error = next((x.partition("error: ")[2] for x in done.stderr.splitlines() if ": error: " in x), "")
    if done.returncode == 0 and done.stdout.startswith(("usage:", "#")):  # --help, a script
        return "exit", 0, ""
    if done.returncode == 0:
        return "config", json.loads(done.stdout), done.stderr
    if done.returncode == 2:
        return "exit", 2, error
    return "error", error, done.stderr


def comma_list(text):
    """Ours is printed as it was typed."""
    if text is None:
        return []
    return [t.replace("\0", ",") for t in text.replace(",,", "\0").split(",")]


def streams(value, nproc=10):
    if isinstance(value, dict):
        return [int(value.get(i, 0)) for i in range(nproc)]
    return int(value)


def compare_options(theirs: dict, ours: dict):
    ours = dict(ours)
    for name in ("duplicate_stdout_filters", "duplicate_stderr_filters"):
        ours[name] = comma_list(ours[name])
    assert ours == theirs


def compare_config(theirs, ours: dict):
    config, entry, args = theirs
    rdzv = ours["rdzv"]
    assert rdzv["backend"] == config.rdzv_backend
    assert rdzv["endpoint"] == config.rdzv_endpoint
    assert (rdzv["min_nodes"], rdzv["max_nodes"]) == (config.min_nodes, config.max_nodes)
    assert (rdzv["local_addr"] or None) == (config.local_addr or None)
    assert rdzv["options"] == config.rdzv_configs
    if UUID.fullmatch(config.run_id):
        assert UUID.fullmatch(rdzv["run_id"])
    elif config.run_id:
        assert rdzv["run_id"] == config.run_id
    else:
        assert re.fullmatch(r"\d{30,39}", rdzv["run_id"])
    assert ours["nproc"] == config.nproc_per_node
    for name in ("role", "max_restarts", "monitor_interval", "start_method",
                 "event_log_handler", "signals_to_handle", "shutdown_timeout",
                 "duplicate_stdout_filters", "duplicate_stderr_filters",
                 "virtual_local_rank"):
        assert ours[name] == getattr(config, name), name
    logs = config.logs_specs
    assert ours["redirects"] == streams(logs._redirects)
    assert ours["tee"] == streams(logs._tee)
    ranks = logs._local_ranks_filter
    assert ours["local_ranks_filter"] is None if ranks is None else \
        set(ours["local_ranks_filter"]) == ranks
    numa = config.numa_options
    assert ours["numa_binding"] == (numa.affinity_mode.value if numa else "none")
    compare_argv(entry, args, ours["argv"][0])


def compare_argv(entry, args, ours):
    substituted = torch_run.macros.substitute(list(args), "0")
    if callable(entry):  # --run-path: ours is a program for python -c
        assert ours[1:3] == ["-u", "-c"] and ours[4:] == substituted
        return
    if entry == sys.executable:
        assert Path(ours[0]).resolve() == Path(entry).resolve()
    else:
        assert ours[0] == entry
    assert ours[1:] == substituted


def check(argv: list[str], env: dict[str, str] | None = None, launch: bool = False):
    env = env or {}
    theirs = ask_torch(argv, env, launch)
    ours = ask_muster(argv, env, launch)
    if NEWER and differs_by_version(argv, ours, launch):
        return
    if theirs[0] == "error" and ours[:2] == ("exit", 2):  # DIFFERENCES.md
        assert re.fullmatch(r"--nnodes takes a number of nodes, .* not '.*'", ours[2]), (theirs, ours)
        return
    if theirs[0] == "config" and ours[0] == "error":  # DIFFERENCES.md: it would wait in vain
        assert re.fullmatch(r"--standalone is for one machine, but --nnodes=\S+ waits for \d+ nodes", ours[1]), ours
        assert "--standalone" in argv and theirs[2][0].min_nodes > 1
        return
    assert ours[0] == theirs[0], (theirs, ours)
    if theirs[0] == "config":
        compare_options(theirs[1], ours[1]["options"])
        compare_config(theirs[2], ours[1]["config"])
    elif theirs[0] == "exit":
        # An error of ours has 1023 bytes at most; "--" stands for every option there is.
        assert (ours[1], ours[2][:950]) == (theirs[1], theirs[2][:950])
    elif theirs[2] == "TypeError":  # names a Python class before it
        assert ours[1] in theirs[1]
    elif theirs[1]:  # AssertionError has nothing to say; ours has
        assert ours[1] == theirs[1].splitlines()[0]


def declared_options():
    text = subprocess.run([MUSTER, "launch", "--help"], capture_output=True, text=True,
                          env=environment({"COLUMNS": "80"}), check=True).stdout
    return re.findall(r"^  (-.*?)(?:  .*)?$", text, re.M), re.findall(r"^ \*(--[a-z-]+)", text, re.M)


def value_of(action: argparse.Action) -> str:
    return "{" + ",".join(action.choices) + "}" if action.choices else action.dest.upper()


def test_every_option_of_torch_is_declared_and_no_other():
    parser = torch_run.get_args_parser()
    parser.add_argument("--use-env", "--use_env", action="store_true")
    # As argparse writes it up to 3.12; later ones name the value once.
    theirs = [", ".join(o if a.nargs == 0 else f"{o} {value_of(a)}" for o in a.option_strings)
              for a in parser._actions if a.option_strings]
    declared, ours = declared_options()
    assert sorted(" ".join(d.split()) for d in declared) == sorted(theirs)
    assert all("_" not in o and len(o) > 4 for o in ours)  # long names only


def test_help_is_on_stdout_only():
    for argv in (["--help"], ["-h"], ["--hel"], ["-mh"], ["--standalone", "-h", "--bogus"]):
        done = subprocess.run([MUSTER, "run", *argv], capture_output=True, text=True,
                              check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("usage: muster run [-h] [options] training_script ...\n")
        assert ("--rdzv-conf" in done.stdout) == any(a.startswith("--hel") for a in argv)  # -h is short


@pytest.mark.parametrize("name", ["torchrun", "muster"])
def test_program_name(tmp_path, name):
    link = tmp_path / name
    link.symlink_to(MUSTER)
    argv = [link] if name == "torchrun" else [link, "run"]
    done = subprocess.run([*argv, "--bogus", "x"], capture_output=True, text=True,
                          check=False)
    prog = "torchrun" if name == "torchrun" else "muster run"
    assert done.returncode == 2
    cause = -1 if name == "torchrun" else 0  # scripts around torchrun look at the last line
    assert done.stderr.splitlines()[cause] == f"{prog}: error: unrecognized arguments: --bogus"


@pytest.mark.parametrize("name,called", [("torchrun", "pt_elastic"), ("muster", "muster")])
def test_the_process_has_a_name(tmp_path, name, called):
    """For ps and pgrep; torchrun's agents are called pt_elastic."""
    link = tmp_path / name
    link.symlink_to(MUSTER)
    argv = [link] if name == "torchrun" else [link, "run"]
    with subprocess.Popen([*argv, "--standalone", "--no-python", "sh", "-c", "echo up; exec sleep 600"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as agent:
        try:
            assert agent.stdout.readline() == b"up\n"
            assert Path(f"/proc/{agent.pid}/comm").read_text().strip() == called
        finally:
            agent.terminate()


CHOSEN = [
    [], ["--"], ["--", "--"], ["x.py"], ["x.py", "a", "--", "b"], ["--", "x.py", "--", "a"],
    ["--max", "1", "x"], ["--max-", "1", "x"], ["--max=", "x"], ["--=1", "x"],
    ["--rdzv_b", "c10d", "x"], ["--nn", "1", "--stan", "--ro", "r", "--re", "3", "--t", "1", "x"],
    ["-mr3", "mod"], ["-m=r3", "mod"], ["-mr=3", "mod"], ["-mrt", "mod"], ["-tm", "x"],
    ["-mjson.tool"], ["-m=", "x"], ["-h="], ["-r"], ["-r", "--", "x"], ["-r", "-1", "x"],
    ["--role", "-1e3", "x"], ["--role", "-.5", "x"], ["--role", "-a b", "x"], ["-a b"],
    ["--role=", "x"], ["--role", "", "x"], [""], ["-"], ["-1"], ["-1.5", "y"], ["--max-restarts", "-1", "x"],
    ["--max-restarts", " 1_0 ", "x"], ["--max-restarts", "1e3", "x"], ["--max-restarts", "it's \"q\"\n", "x"],
    ["--monitor-interval", "1_0.5e-1", "x"], ["--monitor-interval", "nope", "x"],
    ["--start-method", "fork", "x"], ["--start-method", "zz", "x"], ["--numa-binding", "zz", "x"],
    ["--numa-binding", "socket", "x"], ["--nnodes", "1:2:3", "x"], ["--nnodes", "a", "x"],
    ["--nnodes", "2:1", "x"], ["--nnodes", " 1 : 2 ", "x"], ["--nnodes", "", "x"], ["--nnodes", "0", "x"],
    ["--nnodes", "1:0", "--standalone", "x"], ["--nnodes", "2", "--standalone", "x"],
    ["--nproc-per-node", "x", "x"], ["--nproc-per-node", "gpu", "x"], ["--nproc-per-node", "xpu", "x"],
    ["--nproc-per-node", "cpu", "x"], ["--nproc-per-node", "auto", "x"], ["--nproc-per-node", " 2 ", "x"],
    ["--nproc-per-node", "-3", "x"], ["--rdzv-conf", "a", "x"], ["--rdzv-conf", "=1", "x"],
    ["--rdzv-conf", "a=1,", "x"], ["--rdzv-conf", " a = 1 , b=2=3,a=4", "x"], ["--rdzv-conf", "a= ", "x"],
    ["--rdzv-conf", "run_id=3", "x"], ["--rdzv-conf", "timeout=3", "--nnodes", "2", "x"], ["--rdzv-conf", "rank=9", "--master-port", "1", "x"],
    ["--local-ranks-filter", "0, 1,2", "x"], ["--local-ranks-filter", "0,", "x"], ["--local-ranks-filter", "-1", "x"],
    ["--logs-specs", "foo", "x"], ["-r", "4", "x"], ["-r", "0:1,1:2,0:3", "x"], ["-r", "10:1", "x"],
    ["-r", "0:1,", "x"], ["-t", "", "x"], ["-t", "03", "x"], ["-r", "4", "-t", "5", "x"],
    ["--log-dir", "/etc/passwd", "x"], ["--shutdown-timeout", "-1", "x"], ["--shutdown-timeout", "0", "x"],
    ["--no-python", "-m", "x"], ["--no-python", "-m", "--run-path", "x"], ["--run-path", "/x.py", "$local_rank"],
    ["--no-python", "$local_rank", "${local_rank}", "$$", "$", "${"], ["s$local_rank", "$$x"],
    ["--duplicate-stdout-filters", "a,,b,zz", "x"], ["--duplicate-stdout-filters", "", "x"],
    ["--duplicate-stderr-filters", ",,,,", "x"], ["--duplicate-stderr-filters", "a,,,b", "x"],
    ["--rdzv-backend", "c10d", "--rdzv-id", "", "x"], ["--rdzv-backend", "", "x"], ["--rdzv-id", "me", "x"], ["--master-port", "1", "x"],
    ["--master-addr", "h", "--nnodes", "2", "x"], ["--rdzv-endpoint", "h:1", "x"],
    ["--rdzv-endpoint", "h:1", "--master-port", "3", "x"], ["--node-rank", "3", "--nnodes", "4", "x"],
    ["--node-rank", "3", "--rdzv-backend", "c10d", "x"], ["--signals-to-handle", "", "x"],
    ["--local-addr", "h", "x"], ["--virtual-local-rank", "x"], ["--use-env", "x"],
    ["--event-log-handler", "zz", "x"], ["--monitor-interval", "0", "x"], ["--monitor-interval", "nan", "x"],
    ["--rdzv-endpoint", "h", "x"], ["--rdzv-endpoint", "  ", "x"], ["--rdzv-endpoint", "h:99999", "x"], ["--master-addr", "a b", "--master-port", "1", "x"],
    ["--master-port", "-1", "x"], ["--module=1", "x"], ["--no_python=", "x"],
    ["--log-line-prefix-template", "${rank} ", "x"], ["--log_line", "a", "x"], ["--log-l=", "x"],
    ["--print-completion", "bash"], ["--print_completion=fish"], ["--print-completion"], ["--p", "zsh"],
    ["--bogus", "--print-completion=tcsh", "--max-restarts=a"],
]


@pytest.mark.parametrize("argv", CHOSEN, ids=lambda a: " ".join(a) or "(nothing)")
def test_chosen(argv):
    check(argv)


PET = [
    {"PET_NPROC_PER_NODE": "2"}, {"PET_NO_PYTHON": "-3"}, {"PET_NO_PYTHON": " 0 "}, {"PET_STANDALONE": "yes"},
    {"PET_STANDALONE": ""}, {"PET_START_METHOD": "bogus"}, {"PET_NUMA_BINDING": "node", "PET_LOGS_SPECS": "q"},
    {"PET_MAX_RESTARTS": "x"}, {"PET_MAX_RESTARTS": ""}, {"PET_ROLE": ""}, {"PET_MASTER_PORT": "77"},
    {"PET_RDZV_CONF": "a=1", "PET_RDZV_BACKEND": "c10d"}, {"PET_LOG_DIR": "/tmp"}, {"PET_TEE": "3"},
    {"PET_LOG_LINE_PREFIX_TEMPLATE": "${rank}"}, {"PET_PRINT_COMPLETION": "bash"},
    {"PET_DUPLICATE_STDOUT_FILTERS": ""}, {"PET_DUPLICATE_STDERR_FILTERS": "a,b"}, {"PET_MODULE": "1"},
    {"PET_MODULE": "1", "PET_NO_PYTHON": "1"}, {"PET_RUN_PATH": "1"}, {"PET_LOCAL_RANKS_FILTER": "1,x"},
    {"PET_VIRTUAL_LOCAL_RANK": "2"}, {"PET_SHUTDOWN_TIMEOUT": "3"}, {"PET_SHUTDOWN_TIMEOUT": "-3"},
    {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "q"}, {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "-3"},
    {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": ""}, {"PYTHON_EXEC": "/bin/echo"}, {"OMP_NUM_THREADS": ""},
    {"PET_USE_ENV": "1"}, {"PET_NNODES": "1:2"}, {"PET_HELP": "1"}, {"PET_SIGNALS_TO_HANDLE": "SIGUSR1"},
]


@pytest.mark.parametrize("env", PET, ids=lambda e: " ".join(f"{k}={v}" for k, v in e.items()))
def test_variables(env):
    check(["x.py", "a"], env)
    check(["--role", "r", "--max-restarts", "3", "x.py"], env)
    check(["--help"], env)


@pytest.mark.parametrize("argv", [["x", "a"], ["--use-env", "x", "a"], ["--use_env", "-m", "x"],
                                  ["--no-python", "x"], ["--no-python", "--use-env", "x"], ["--use", "x"],
                                  ["--run-path", "/x"], ["--use-env=1", "x"], ["--no-python", "-m", "x"]],
                         ids=" ".join)
def test_launch(argv):
    check(argv, launch=True)


def random_words(rng: random.Random) -> list[str]:
    """Words that mean something, mostly; the script and what follows it at the end."""
    parser = torch_run.get_args_parser()
    names = [o for a in parser._actions for o in a.option_strings]
    values = ["0", "1", "2", "3", "-1", "1:2", "2:1", "a", "", " 1 ", "1_0", "x=1", "rank=3,timeout=2",
              "c10d", "static", "0:1,1:2", "0,1", "fork", "node", "cpu", "h:29", "localhost", "SIGUSR1",
              "-x", "a b", "-a b", "1.5", "é", "it's"]
    words = []
    for _ in range(rng.randrange(6)):
        name = rng.choice(names)
        kind = rng.randrange(10)
        if kind == 0 and name.startswith("--"):
            name = name[:rng.randrange(3, len(name) + 1)]
        if kind < 4:
            words.append(name + "=" + rng.choice(values))
        elif kind < 8:
            words += [name, rng.choice(values)]
        elif kind < 9 and not name.startswith("--"):
            words.append(name + rng.choice(["r3", "m", "t", "0", "h", "zz", "=1"]))
        else:
            words.append(name)
        if rng.random() < 0.05:
            words.append(rng.choice(["--", "--bogus", "-q", "-5", "---", "-"]))
    if rng.random() < 0.9:
        words += rng.choice([["x.py"], ["--", "x"], ["x", "--", "y"], ["x", "-q", "$local_rank", "$$"]])
    return words


def random_variables(rng: random.Random) -> dict[str, str]:
    parser = torch_run.get_args_parser()
    names = ["PET_" + a.dest.upper() for a in parser._actions if a.dest != "help"]
    env = {}
    while rng.random() < 0.3:
        env[rng.choice(names)] = rng.choice(["0", "1", "2", "a", "", "1:2", "c10d", "0:3", " 1 ", "k=v"])
    return env


@pytest.mark.parametrize("seed", range(8))
def test_random(seed):
    rng = random.Random(seed)
    failed = []
    for _ in range(150):
        argv, env = random_words(rng), random_variables(rng)
        if "training_script" in env:
            continue
        try:
            if not refused_by_accident(argv, env):
                check(argv, env)
        except AssertionError as e:
            failed.append((argv, env, str(e)[:600]))
    assert not failed, f"{len(failed)} differ; the first: {failed[0]}"


def refused_by_accident(argv, env) -> bool:
    """torchrun holds the script's own arguments against its options (DIFFERENCES.md)."""
    theirs = ask_torch(argv, env)
    return theirs[0] == "exit" and theirs[2].startswith("ambiguous option") and \
        "ambiguous option" not in ask_muster(argv, env)[-1]
