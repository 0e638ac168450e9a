"""A machine that gives less: no signalfd or eventfd, few descriptors, files that may not grow, a
log directory that somebody removes, a guard that is stopped, and a container whose init we are."""
import contextlib
import ctypes
import fcntl
import os
import pty
import resource
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import termios
import time
from pathlib import Path

import pytest

import etcd_server
import stores
from patience import clock

from run_job import MUSTER, Job, environment, free_port, marked, until_gone

SYSCALLS = {"x86_64": {"signalfd": 282, "signalfd4": 289, "eventfd": 284, "eventfd2": 290,
                       "close_range": 436, "prctl": 157},
            "aarch64": {"signalfd4": 74, "eventfd2": 19, "close_range": 436, "prctl": 167}}[os.uname().machine]


def deny(*names):
    """What a sandbox does: these calls fail with EPERM, in this process and below."""
    def line(code, jt, jf, k):
        return struct.pack("=HBBI", code, jt, jf, k)

    numbers = [SYSCALLS[n] for n in names if n in SYSCALLS]
    program = line(0x20, 0, 0, 0)  # load the number
    for i, number in enumerate(numbers):
        program += line(0x15, len(numbers) - i, 0, number)
    program += line(0x06, 0, 0, 0x7fff0000) + line(0x06, 0, 0, 0x00050001)  # allow; EPERM
    keep = ctypes.create_string_buffer(program)
    filter_ = struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(keep))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, filter_, 0, 0) == 0, os.strerror(ctypes.get_errno())


def run(*words, **how):
    return subprocess.run([MUSTER, "run", *words], env=environment(), capture_output=True, text=True,
                          timeout=60, check=False, **how)


def test_without_signalfd():
    done = run("--nproc-per-node=2", "--max-restarts=1", "--no-python", "sh", "-c",
               "exit $((1 - TORCHELASTIC_RESTART_COUNT))",
               preexec_fn=lambda: deny("signalfd", "signalfd4"))
    assert done.returncode == 0, done.stderr


def test_without_eventfd():
    done = run("--no-python", "true", preexec_fn=lambda: deny("eventfd", "eventfd2"))
    assert done.returncode in (0, 1), done.stderr
    if done.returncode:
        assert "no event loop for the agent: operation not permitted" in done.stderr
        assert "eventfd" in done.stderr


@pytest.mark.parametrize("denied", [(), ("close_range",)], ids=["allowed", "denied"])
def test_without_close_range(tmp_path, denied):
    """It came with Linux 5.9. Without it too, a worker gets the three descriptors that are meant for
    it, and the keeper holds none: nobody who reads a pipe of ours waits for it."""
    script = tmp_path / "job.sh"
    script.write_text("""
keeper=$(sed -n 's/^PPid:\\s*//p' /proc/$PPID/status)
for pid in $$ $PPID $keeper; do echo $(ls /proc/$pid/fd); done
""")
    with (tmp_path / "extra").open("w") as extra:
        os.dup2(extra.fileno(), 40, inheritable=True)
        try:
            done = run("--no-python", "sh", str(script), pass_fds=(40,),
                       preexec_fn=lambda: deny(*denied) if denied else None)
        finally:
            os.close(40)
    assert done.returncode == 0, done.stderr
    worker, guard, keeper = done.stdout.split("\n")[:3]
    assert "40" not in worker.split() and keeper == ""  # the shell has some of its own
    assert "40" not in guard.split() and len(guard.split()) == 4  # 0, 1, 2 and the agent


@pytest.mark.parametrize("limit", [5, 6, 7, 8, 9, 12, 16, 20, 26, 32, 36, 40, 64])
def test_few_descriptors(limit):
    done = run("--nproc-per-node=2", "--no-python", "true",
               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
    assert done.returncode in (0, 1), (done.returncode, done.stderr)
    if done.returncode:
        assert "too few descriptors" in done.stderr and "ulimit -n" in done.stderr


@pytest.mark.parametrize("what", ["stderr", "events"])
def test_files_that_may_not_grow(tmp_path, what):
    """torchrun goes on, as Python ignores SIGXFSZ; workers get it as usual."""
    full = tmp_path / "full"
    full.write_bytes(b"x" * 8192)
    words = ["--event-log-handler=file:full"] if what == "events" else []
    with full.open("a") as out:
        done = subprocess.run(
            [MUSTER, "run", "--nproc-per-node=2", "--max-restarts=1", *words, "--no-python", "sh", "-c",
             "exit $((1 - TORCHELASTIC_RESTART_COUNT))"],
            env={**environment(), "LOGLEVEL": "INFO"}, cwd=tmp_path, timeout=60, check=False,
            stderr=out if what == "stderr" else None,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)))
    assert done.returncode == 0
    assert full.stat().st_size == 8192


def test_workers_get_the_signal_of_full_files(tmp_path):
    done = run("--no-python", "sh", "-c", "head -c 9000 /dev/zero > full", cwd=tmp_path,
               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)))
    assert done.returncode == 1 and (tmp_path / "full").stat().st_size == 8192


@pytest.mark.parametrize("given", [True, False], ids=["--log-dir", "in /tmp"])
def test_a_log_directory_that_is_removed(tmp_path, given):
    """By systemd-tmpfiles, say. torchrun goes on at the next restart, and so does this."""
    logs = tmp_path / ("logs" if given else "temp")
    logs.mkdir()
    words = [f"--log-dir={logs}/deep"] if given else []
    script = f"""
[ $TORCHELASTIC_RESTART_COUNT = 1 ] && {{ echo again; exit 0; }}
[ $RANK = 0 ] && rm -r {logs}/*
sleep 0.2
exit 1"""
    done = subprocess.run([MUSTER, "run", "--nproc-per-node=2", "--max-restarts=1", "--tee=3", *words,
                           "--no-python", "sh", "-c", script],
                          env={**environment(), "TMPDIR": str(tmp_path / "temp")}, capture_output=True,
                          text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[default0]:again", "[default1]:again"]
    assert done.stderr.count("has been removed while the job runs") == 1
    if given:
        assert len(list(logs.glob("deep/*/attempt_1/*/stdout.log"))) == 2


def test_a_port_that_another_program_holds(tmp_path):
    """What is known at once is said at once, and first: not a time-out and a guess at firewalls."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        words = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=x", "--no-python"]
        with Job(tmp_path, "patient", *words, "--rdzv-conf=read_timeout=600", "true") as job:
            job.until(f"127.0.0.1:{port}: address already in use")
        with Job(tmp_path, "job", *words, "--rdzv-conf=read_timeout=2", "true") as job:
            assert job.wait() == 1
        last = next(x for x in job.text().splitlines() if ": error: " in x)
        assert "timed out" not in last and f"127.0.0.1:{port}: address already in use" in last
        assert "This machine was to host the store of run 'x'" in last
        with Job(tmp_path, "static", "--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={port}", "--no-python",
                 "true") as job:
            assert job.wait() == 1
        last = next(x for x in job.text().splitlines() if ": error: " in x)
        assert last.count("failed to listen") == last.count(f":{port}: address already in use") == 1, last


def test_a_second_agent_of_this_machine_is_no_trouble(tmp_path):
    """It finds the port taken by the first, which answers as a store does; if that takes it more than a
    second on a crowded machine, the port is named, and nothing is lost: then it is tried again."""
    for attempt in range(5):
        words = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=x",
                 "--no-python", "sleep", "1.5"]
        with Job(tmp_path, f"a{attempt}", *words) as a, Job(tmp_path, f"b{attempt}", *words) as b:
            assert (a.wait(), b.wait()) == (0, 0)
        if "in use" not in a.text() + b.text():
            return
    raise AssertionError(a.text() + b.text())


def test_static_nodes_that_were_started_alike(tmp_path):
    """The one that waits says what is most likely forgotten."""
    with Job(tmp_path, "a", "--nnodes=2", f"--master-port={free_port()}", "--rdzv-conf=timeout=7", "--no-python",
             "true") as job:
        job.until("each node needs a --node-rank of its own, except with --rdzv-backend=c10d")
        assert job.wait() == 1


def test_nodes_that_were_started_for_another_number(tmp_path):
    """One sentence, once, on each of the two nodes; and the one that was right goes on."""
    words = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=x", "--no-python", "true"]
    with Job(tmp_path, "a", "--nnodes=2", *words) as a:
        a.until("no secret")  # It hosts the store.
        with Job(tmp_path, "wrong", "--nnodes=3:4", *words) as wrong:
            assert wrong.wait() == 1
        a.until("turned node")
        with Job(tmp_path, "again", "--nnodes=3:4", *words) as again:
            assert again.wait() == 1
        with Job(tmp_path, "b", "--nnodes=2", *words) as b:
            assert (a.wait(), b.wait()) == (0, 0)
    assert wrong.text().count("--nnodes") == a.text().count("--nnodes") == 1
    assert "started with different settings: --nnodes is 3:4 here, 2 there; start all nodes with the same settings" in wrong.text()
    assert "started with different settings: --nnodes is 2 here, 3:4 there; start all nodes with the same settings" in a.text()
    assert wrong.text().count("\n") == 1, wrong.text()


@pytest.mark.parametrize("kind", ["torch", "etcd-v3"])
def test_nodes_that_were_started_for_another_number_elsewhere(tmp_path, kind):
    """Where no coordinator refuses it: torch's store, etcd. The node that was there first hears of it, too."""
    sentence = "nodes of this run were started with different settings: --nnodes is {} here, {} there; start all nodes with the same settings"
    with contextlib.ExitStack() as stack:
        if kind == "torch":
            server = stack.enter_context(stores.torchs())
            at, backend = f"127.0.0.1:{server.port}", "c10d"
        else:
            at, backend = stack.enter_context(etcd_server.Etcd(tmp_path)).endpoint, kind
        done = tmp_path / "done"
        words = [f"--rdzv-backend={backend}", f"--rdzv-endpoint={at}", "--rdzv-id=x",
                 "--rdzv-conf=last_call_timeout=1" + (",is_host=0" if kind == "torch" else ""), "--no-python",
                 "sh", "-c", f"until [ -e {done} ]; do sleep 0.1; done"]
        with Job(tmp_path, "a", "--nnodes=2", *words) as a, Job(tmp_path, "b", "--nnodes=1:3", *words) as b:
            a.until(sentence.format("2", "1:3"))
            b.until(sentence.format("1:3", "2"))
            done.touch()
            assert (a.wait(), b.wait()) == (0, 0)
    assert a.text().count("--nnodes") == b.text().count("--nnodes") == 1


def test_nodes_that_were_started_for_another_run(tmp_path):
    """Each says which other run waits where it waits."""
    words = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}",
             "--rdzv-conf=join_timeout=10", "--no-python", "true"]
    with Job(tmp_path, "a", "--rdzv-id=job1", *words) as a:
        a.until("no secret")
        with Job(tmp_path, "b", "--rdzv-id=job-1", *words) as b:
            for job, other in ((a, "job-1"), (b, "job1")):
                job.until(f"this store also has other runs: '{other}' (1 node); is --rdzv-id the same on all nodes?")
            assert (a.wait(), b.wait()) == (1, 1)
    for job, other in ((a, "job-1"), (b, "job1")):
        assert f"other runs: '{other}'" in next(x for x in job.text().splitlines() if ": error: " in x)


def test_names_of_strangers_in_a_log(tmp_path):
    """What others call a run or themselves neither moves a cursor nor begins a line."""
    with Job(tmp_path, "job", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=a\x1b[2Jb\nE1116 forged",
             "--local-addr=n\x1b[2Jx\nE1116 forged", "--no-python", "true", env={"LOGLEVEL": "INFO"}) as job:
        job.wait()
    assert "a\\x1b[2Jb" in job.text() and "\x1b" not in job.text()
    assert [line for line in job.text().splitlines() if line.startswith("E1116 forged")] == []


def test_names_of_strangers_on_a_terminal():
    """A node may call itself anything; the waiting line shows that, and does not do it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 300, 0, 0))
    with subprocess.Popen([MUSTER, "run", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0",
                           "--local-addr=n\x1b[2Jx", "--no-python", "true"], stdin=theirs, stdout=theirs,
                          stderr=theirs, env={**environment(), "TERM": "xterm"}) as job:
        os.close(theirs)
        seen = b""
        while b"here: n" not in seen:
            seen += os.read(ours, 4096)
        job.terminate()
        job.wait(60)
    os.close(ours)
    assert b"\x1b[2J" not in seen


def test_a_guard_that_is_stopped(tmp_path):
    """SIGTERM ends the job, and its workers with it, in its time."""
    mark = f"mark-stop-{os.getpid()}-{time.monotonic_ns()}"
    with Job(tmp_path, "job", "--standalone", "--no-python", "sh", "-c", "echo up; sleep 1000",
             env={"MARK": mark}) as job:
        job.until("up")
        keeper = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()[0]
        guard = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()[0]
        os.kill(int(guard), signal.SIGSTOP)
        began = clock()
        job.process.send_signal(signal.SIGTERM)
        assert job.wait() == 1
        assert clock() - began < 20
        assert "got signal: 15" in job.text()
    until_gone(mark)


needs_root = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root")


@needs_root
def test_orphans_of_a_container(tmp_path):
    """As pid 1 it reaps what ends there, also what is not its workers'."""
    with subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", MUSTER, "run",
                           "--no-python", "sh", "-c", "echo up; sleep 1000"],
                          env=environment(), stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout.readline() == "up\n"
        init = int(Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text())
        try:
            subprocess.run(["nsenter", "-t", str(init), "-p", "-m", "sh", "-c",
                            "for i in 1 2 3; do (setsid sleep 0.1 &); done"], check=True)
            by = clock() + 30
            while True:
                below = Path(f"/proc/{init}/task/{init}/children").read_text().split()
                if len(below) == 1:  # its keeper
                    break
                assert clock() < by, below
                time.sleep(0.02)
        finally:
            os.kill(init, signal.SIGKILL)
            job.wait(60)


LEAVES = """
(setsid sh -c 'trap "" TERM INT HUP; echo up; while :; do sleep 0.1; done' "$1" 2>/dev/null &)
exit 3
"""


@needs_root
def test_without_proc(tmp_path):
    """What workers leave behind is found and ended all the same."""
    mark = f"mark-proc-{os.getpid()}-{time.monotonic_ns()}"
    (tmp_path / "w.sh").write_text(LEAVES)
    job = subprocess.run(["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh", MUSTER, "run", "--no-python",
                          "sh", "w.sh", mark], env=environment(MARK=mark), capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False)
    assert job.returncode == 1 and "exitcode  : 3" in job.stderr, job.stderr
    until_gone(mark)


def test_without_prctl(tmp_path):
    """Nobody can adopt what a daemon's parent leaves, so it is said that it stays."""
    mark = f"mark-prctl-{os.getpid()}-{time.monotonic_ns()}"
    (tmp_path / "w.sh").write_text(LEAVES)
    job = subprocess.run([MUSTER, "run", "--no-python", "sh", "w.sh", mark], env=environment(MARK=mark), stderr=subprocess.PIPE,
                         stdout=subprocess.DEVNULL, text=True, timeout=60, cwd=tmp_path, check=False, preexec_fn=lambda: deny("prctl"))
    for pid in marked(mark):
        os.kill(pid, signal.SIGKILL)
    assert job.returncode == 1
    assert "prctl(PR_SET_CHILD_SUBREAPER) is denied here: Operation not permitted" in job.stderr, job.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
@pytest.mark.parametrize("processes", [1, 2])
def test_no_process_for_the_guard(processes):
    """With two the keeper can be forked, and the guard cannot."""
    def somebody_else():
        resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
        os.setgroups([])
        os.setresgid(64123, 64123, 64123)
        os.setresuid(64123, 64123, 64123)

    with tempfile.TemporaryDirectory() as where:  # pytest's own is for root alone
        os.chmod(where, 0o755)
        copy = shutil.copy(MUSTER, where)
        job = subprocess.run([copy, "run", "--no-python", "true"], env=environment(), capture_output=True, text=True, timeout=60, cwd="/",
                             check=False, preexec_fn=somebody_else)
    assert job.returncode == 1
    assert "the guard process cannot be forked: Resource temporarily unavailable" in job.stderr, job.stderr
    assert f"This user may have {processes} processes and threads (ulimit -u)" in job.stderr, job.stderr
