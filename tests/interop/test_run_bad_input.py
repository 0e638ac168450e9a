"""What a user gets wrong: a message that names the thing and what to do, the right exit
code, nobody left running."""
import os
import re
import socket
import subprocess
import threading
import uuid

import pytest

import stores
from run_job import MUSTER, VENV, Job, environment, free_port, until_gone

# Even root may not read and write everything any more.
HUMBLE = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


def last(text):
    lines = text.strip().splitlines()
    return next((x for x in lines if ": error: " in x), lines[-1])


def bad(tmp_path, *words, env=None, humble=False, patience=60):
    """Exit code, stdout and stderr together; nothing of the job is left."""
    mark = f"bad-{uuid.uuid4()}"
    done = subprocess.run([*(HUMBLE if humble else []), MUSTER, "run", *words], cwd=tmp_path, text=True,
                          errors="replace", env=environment(MARK=mark, **(env or {})), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=patience)
    until_gone(mark)
    return done.returncode, done.stdout


@pytest.mark.parametrize("words,code,says", [
    (["--no-python", "./nope"], 1, "No such file or directory: './nope'"),
    (["--no-python", "/etc/passwd"], 1, "Permission denied: '/etc/passwd'"),
    (["--no-python", "/etc"], 1, "Permission denied: '/etc'"),
    (["--bogus", "x.py"], 2, "unrecognized arguments: --bogus"),
    (["--max", "1", "x.py"], 2, "ambiguous option: --max could match --max-restarts, --max_restarts"),
    ([], 2, "the following arguments are required: training_script"),
    (["--max-restarts=x", "x.py"], 2, "--max-restarts/--max_restarts: invalid int value: 'x'"),
    (["--max-restarts=-1", "x.py"], 1, "max_restarts must be >= 0"),
    (["--monitor-interval=0", "x.py"], 1, "monitor"),
    (["--shutdown-timeout=-1", "x.py"], 1, "shutdown_timeout must be non-negative, got -1"),
    (["--nproc-per-node=0", "x.py"], 1, "--nproc-per-node is 0: at least one worker must run"),
    (["--nproc-per-node=-1", "x.py"], 1, "--nproc-per-node is -1: at least one worker must run"),
    (["--nproc-per-node", "-1", "x.py"], 1, "--nproc-per-node is -1: at least one worker must run"),
    (["--nproc-per-node=x", "x.py"], 1, "Unsupported nproc_per_node value: x"),
    (["--nnodes=2:1", "x.py"], 1, "min_nodes must be > 0 and <= max_nodes"),
    (["--nnodes=1:2:3", "x.py"], 2, "--nnodes takes a number of nodes, or a range as in 2:4, and not '1:2:3'"),
    (["--redirects=7", "x.py"], 1, "7 does not match"),
    (["--no-python", "-m", "x"], 1, "Don't use both the '--no-python' flag and the '--module' flag"),
    (["--nnodes=2", "--node-rank=5", "x.py"], 1, "the node rank 5 is not one of the 2 nodes' ranks"),
    (["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:99999", "x.py"], 1, "'h:99999' must be an integer between"),
    (["--nnodes=2", "--rdzv-backend=chairs", "--rdzv-endpoint=h", "x.py"], 1, "'chairs' is not registered"),
    (["--rdzv-conf=join_timeout=soon", "x.py"], 1, "'join_timeout' does not represent a valid integer value"),
    (["--log-dir", "/proc/nope/x", "--no-python", "true"], 1, "/proc/nope/x"),
    (["--log-dir", "/etc/passwd", "--no-python", "true"], 1, "log_dir: /etc/passwd is a file"),
    (["--event-log-handler", "q", "--no-python", "true"], 1, "'q'"),
    (["--event-log-handler", "file:/no/such/x", "--no-python", "true"], 1, "/no/such/x"),
    (["--signals-to-handle", "SIGKILL", "--no-python", "true"], 1, "Invalid argument"),
], ids=lambda v: " ".join(v) if isinstance(v, list) else None)
def test_command_lines(tmp_path, words, code, says):
    got, text = bad(tmp_path, *words)
    assert got == code and says in last(text), text
    assert "Traceback" not in text and len(text) < 1500, text


def test_missing_interpreter(tmp_path):
    code, text = bad(tmp_path, "x.py", env={"PYTHON_EXEC": "/no/such/python"})
    assert code == 1 and "/no/such/python" in last(text), text


def test_no_python_at_all(tmp_path):
    env = {k: v for k, v in environment(PATH="/nowhere").items() if k not in ("PYTHON_EXEC", "VIRTUAL_ENV")}
    done = subprocess.run([MUSTER, "run", "x.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    if done.returncode == 0 or "no Python found" not in done.stderr:
        assert (MUSTER.parent / "python3").exists() or (MUSTER.parent / "python").exists(), done.stderr
    else:
        assert done.returncode == 1 and "Set PYTHON_EXEC, or use --no-python" in done.stderr, done.stderr


def test_missing_script(tmp_path):
    """Python says so into a log file; we say it where it is seen."""
    code, text = bad(tmp_path, "--log-dir=log", "-r3", "nope.py")
    assert code == 1 and "exitcode  : 2" in text, text
    assert "the script 'nope.py' cannot be read: No such file or directory" in text, text
    assert f"The workers look for it from {tmp_path}" in text, text


def test_scripts_of_a_shell(tmp_path):
    """Told before anything starts, also without a #! line; a file of that name that begins as Python's do is run."""
    python = {"PATH": f"{VENV}:{os.environ['PATH']}", "PYTHON_EXEC": str(VENV / "python3")}
    for text in ("#!/bin/bash -e\necho hi there\n", "echo hi there\n"):
        (tmp_path / "job.sh").write_text(text)
        code, said = bad(tmp_path, "./job.sh", env=python)
        assert code == 1 and "SyntaxError" not in said and "FAILED" not in said, said
        assert re.search(r"error: \./job\.sh is a script for (ba)?sh, and Python was to run it$", last(said)), said
    (tmp_path / "job.sh").write_text("#!/usr/bin/env python3\nprint('ran')\n")
    assert bad(tmp_path, "job.sh", env=python) == (0, "ran\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives rights up")
def test_unreadable(tmp_path):
    (tmp_path / "secret.py").write_text("print('ran')")
    (tmp_path / "secret.py").chmod(0)
    (tmp_path / "closed").mkdir(mode=0o555)
    python = {"PYTHON_EXEC": "/usr/bin/python3"} if os.path.exists("/usr/bin/python3") else {}
    code, text = bad(tmp_path, "secret.py", env=python, humble=True)
    assert code == 1 and "the script 'secret.py' cannot be read: Permission denied" in text, text
    code, text = bad(tmp_path, "--no-python", "./secret.py", humble=True)
    assert code == 1 and "Permission denied: './secret.py'" in last(text), text
    for words in (["--log-dir=closed/log"], ["--log-dir=closed", "-r3"]):
        code, text = bad(tmp_path, *words, "--no-python", "touch", "ran", humble=True)
        assert code == 1 and re.search(r"error: \[Errno 13\] Permission denied: 'closed/", last(text)), text
        assert "give another directory with --log-dir" in text
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def http():
    """A port where another service answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        def answer():
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                peer.close()
        threading.Thread(target=answer, daemon=True).start()
        yield server.getsockname()[1]


@pytest.mark.parametrize("conf", ["join_timeout=20", "is_host=0,join_timeout=20", "is_host=1,join_timeout=20"])
def test_another_service_at_the_endpoint(tmp_path, http, conf):
    """An HTTP server, say. It is named as such, at once, whoever was to host the store."""
    code, text = bad(tmp_path, "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{http}",
                     f"--rdzv-conf={conf}", "--no-python", "true")
    assert code == 1 and str(http) in text, text
    assert re.search("another service|in use", text), text


def test_another_service_at_the_master_port(tmp_path, http):
    code, text = bad(tmp_path, "--nnodes=2", "--node-rank=0", f"--master-port={http}", "--no-python", "true")
    assert code == 1 and str(http) in last(text) and "in use" in text, text
    code, text = bad(tmp_path, "--nnodes=2", "--node-rank=1", f"--master-port={http}", "--rdzv-conf=timeout=20",
                     "--no-python", "true")
    assert code == 1 and str(http) in text and "another service" in text, text


NO_RANKS = ["", "rank one, please", "{", "[]", "[0, 2, 0]", "[0, 2, 0, \"2\"]", "[-1, 2, 0, 2]", "[1e9, 2, 0, 2]", "\0" * 100]


@pytest.mark.parametrize("text", NO_RANKS, ids=range(len(NO_RANKS)))
def test_ranks_that_are_no_json(tmp_path, text):
    """What node 0 is to have written for us is not what an agent writes."""
    with stores.ours() as server, stores.Wire(server) as wire:
        wire.set("/none/torchelastic/assigned_ranks/1", text)
        wire.ping()
        code, said = bad(tmp_path, "--nnodes=2", "--node-rank=1", "--master-addr=127.0.0.1",
                         f"--master-port={server.port}", "--no-python", "touch", "ran")
    assert code == 1 and "assigned_ranks of this node is not what an agent writes" in last(said), said
    assert "--rdzv-id" in said and not (tmp_path / "ran").exists()


def test_a_node_whose_role_is_no_json(tmp_path):
    """The other side of it: somebody joins our store and writes nonsense."""
    port = free_port()
    with Job(tmp_path, "agent", "--nnodes=2", "--node-rank=0", "--master-addr=127.0.0.1", f"--master-port={port}",
             "--no-python", "touch", "ran") as job:
        job.until(lambda _: subprocess.run(["ss", "-ltnH", f"sport = :{port}"], capture_output=True).stdout)
        with stores.Wire(port) as wire:
            wire.set("/none/torchelastic/role_info/1", "a chair")
            wire.add("init/", 1)
            assert job.wait() == 1, job.text()
    assert "role_info of another node is not what an agent writes: a chair" in last(job.text()), job.text()
    assert not (tmp_path / "ran").exists()


ERROR_FILES = {
    "huge": "head -c 30000000 /dev/zero > $F",
    "binary": "head -c 1000 /dev/urandom > $F",
    "cut short": """printf '{"message": {"mess' > $F""",
    "no object": "echo 17 > $F",
    "a fifo": "mkfifo $F",
    "a symlink": "ln -s /dev/zero $F",
    "a directory": "mkdir $F",
    "a loop": "ln -s $F $F",
    "a link to a secret": "ln -s /etc/shadow $F",
    "deep": "python3 -c \"print('[' * 100000)\" > $F",
}


@pytest.mark.parametrize("kind", ERROR_FILES)
def test_hostile_error_files(tmp_path, kind):
    code, text = bad(tmp_path, "--nproc-per-node=2", "--no-python", "sh", "-c",
                     f"[ $RANK = 1 ] && exec sleep 60; F=$TORCHELASTIC_ERROR_FILE; {ERROR_FILES[kind]}; exit 3")
    assert code == 1
    assert "exitcode  : 3" in text and "error_file: <N/A>" in text, text


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_full_disk(tmp_path):
    """The log directory's file system is full: the workers are told by the kernel, the
    user by us."""
    full = tmp_path / "full"
    full.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", full]).returncode:
        pytest.skip("cannot mount")
    mark = f"full-{uuid.uuid4()}"
    try:
        got = subprocess.run([MUSTER, "run", "--standalone", "--log-dir", full, "-t", "1", "--no-python", "sh", "-c",
                              "seq 1000000 || exit 5"], capture_output=True, text=True, env=environment(MARK=mark),
                             timeout=60)
        until_gone(mark)
    finally:
        subprocess.run(["umount", full], check=True)
    assert got.returncode == 1
    assert "exitcode  : 5" in got.stderr, got.stderr
    verdict = next(x for x in got.stderr.splitlines() if x.startswith("muster: the job failed: "))
    assert f"the file system of its log directory is full: {full}" in verdict, verdict
    assert got.stdout.startswith("[default0]:1\n[default0]:2\n")
