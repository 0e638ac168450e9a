"""Causes with figures: what could not be executed, who holds a port, which backend tells a verdict."""
import contextlib
import ctypes
import json
import os
import platform
import re
import shutil
import socket
import stat
import subprocess
import sys
import threading

import pytest
from etcd_server import Etcd
from run_job import MUSTER, Job, environment, free_port


def program(path, content):
    path.write_bytes(content)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def patched(path, old, new):
    """A copy of /bin/true in which some bytes are others."""
    data = open(os.path.realpath("/bin/true"), "rb").read()
    if old not in data:
        pytest.skip("/bin/true is not of the kind that this row patches")
    return program(path, data.replace(old, new, 1))


def other_machine(path):
    data = bytearray(open(os.path.realpath("/bin/true"), "rb").read())
    data[18:20] = b"\x16\x00" if data[18:20] != b"\x16\x00" else b"\x3e\x00"  # s390
    return program(path, bytes(data))


REFUSALS = [
    ("text", lambda p: program(p, b"echo hi\n"), "it is not a program, and its first line names no interpreter"),
    ("interpreter", lambda p: program(p, b"#!/usr/bin/pyhton -u\n"), "its first line asks for the interpreter '/usr/bin/pyhton', which does not exist on this node"),
    ("windows", lambda p: program(p, b"#!/bin/sh\r\necho\r\n"), "its first line asks for the interpreter '/bin/sh' and ends with a carriage return, as on Windows"),
    ("control", lambda p: program(p, b"#!/bin/\x1b[2J\n"), r"its first line asks for the interpreter '/bin/\x1b[2J', which does not exist"),
    ("empty", lambda p: program(p, b""), "it is empty"),
    ("machine", other_machine, "it is a program for s390, and this node is"),
    ("loader", lambda p: patched(p, b"/ld-linux", b"/no-linux"), "it needs the loader '/lib"),
    ("permission", lambda p: p.write_bytes(b"x") and p, "it may not be executed: use chmod +x"),
    ("directory", lambda p: p.mkdir() or p, "it is a directory"),
    ("missing", lambda p: p, "there is no such file on this node"),
]


@pytest.mark.parametrize("name,make,says", REFUSALS, ids=[r[0] for r in REFUSALS])
def test_refusal(tmp_path, name, make, says):
    path = make(tmp_path / "worker")
    run = subprocess.run([str(MUSTER), "run", "--standalone", "--no-python", str(path)], env=environment(), capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert f"could not be started on this node: {says}" in run.stderr, run.stderr
    said = re.search(r"error: \[Errno \d+\] [^\n]*worker'\n", run.stderr)
    assert said and said.end() <= run.stderr.index("muster run: The program of the workers"), run.stderr  # torch's words first


def test_a_program_for_mpi(tmp_path):
    """It would be rank 0 of 1 as often as there are workers. This copy does not run, which does not matter."""
    patched(tmp_path / "worker", b"\0libc.so.6\0", b"\0libmpi.so\0")
    shutil.copy(os.path.realpath("/bin/true"), tmp_path / "plain")
    for words, says in ((["--nproc-per-node=2", "./worker"], 1), (["--nproc-per-node=1", "./worker"], 0), (["--nproc-per-node=2", "./plain"], 0),
                        (["--nproc-per-node=2", "worker"], 1)):
        run = subprocess.run([str(MUSTER), "run", "--standalone", words[0], "--no-python", words[1]], capture_output=True, text=True, timeout=60,
                             cwd=tmp_path, env=environment(PATH=f"{tmp_path}:{os.environ['PATH']}"))
        assert run.stderr.count("worker is linked to libmpi.so, and muster does not give MPI its ranks: each worker will be rank 0 of 1") == says, run.stderr


def test_not_on_path(tmp_path):
    run = subprocess.run([str(MUSTER), "run", "--standalone", "--no-python", "no-such-program"], env=environment(), capture_output=True, text=True, timeout=60)
    assert "this node: it is not in any directory of PATH on this node." in run.stderr


def test_missing_module_names_the_python(tmp_path):
    (tmp_path / "t.py").write_text("import no_such_module\n")
    run = subprocess.run([str(MUSTER), "run", "--standalone", "t.py"], env=environment(PYTHON_EXEC=sys.executable), capture_output=True,
                         text=True, timeout=60, cwd=tmp_path)
    assert f"ModuleNotFoundError: No module named 'no_such_module' in {sys.executable}\n" in run.stderr, run.stderr


def test_port_holder(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        run = subprocess.run([str(MUSTER), "store", f"--port={port}", "--bind=127.0.0.1"], env=environment(), capture_output=True, text=True, timeout=60)
    assert run.returncode != 0
    assert re.search(rf"127\.0\.0\.1:{port}: address already in use \(EADDRINUSE\) by pid {os.getpid()} \(.*python", run.stderr), run.stderr
    assert re.search(r"(, root|, user \d+)\)", run.stderr)


def answer_like_a_web_server(listener):
    with contextlib.suppress(OSError):  # The test closes it.
        while True:
            with listener.accept()[0] as c:
                c.recv(100)
                c.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_port_holder_for_a_client(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        threading.Thread(target=answer_like_a_web_server, args=(s,), daemon=True).start()
        run = subprocess.run([str(MUSTER), "run", "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{s.getsockname()[1]}",
                              "--rdzv-conf=is_host=0", "--no-python", "true"], env=environment(), capture_output=True, text=True, timeout=90, cwd=tmp_path)
        s.shutdown(socket.SHUT_RDWR)
    assert re.search(rf"a web server answers there; pid {os.getpid()} \(.*\) holds that port of this machine; another service", run.stderr), run.stderr


def test_port_holder_of_another_user(tmp_path):
    """A user who may not see it is told how to find out."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root, to be somebody else")
    copy = tmp_path / "muster"
    shutil.copy(MUSTER, copy)
    tmp_path.chmod(0o755)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        run = subprocess.run(["setpriv", "--reuid=65534", "--clear-groups", str(copy), "store", f"--port={port}", "--bind=127.0.0.1"],
                             env=environment(), capture_output=True, text=True, timeout=60, cwd="/")
    if "Permission denied" in run.stderr:
        pytest.skip("another user cannot come here")
    assert f"`ss -ltnp 'sport = :{port}'` names it" in run.stderr, run.stderr


def test_core_file(tmp_path):
    """A crash that left one names it."""
    pattern = open("/proc/sys/kernel/core_pattern").read().strip()
    if pattern[0] in "|/" or "%" in pattern:
        pytest.skip(f"core files go to {pattern}")
    run = subprocess.run(["bash", "-c", 'ulimit -c unlimited; exec "$@"', "-", str(MUSTER), "run", "--standalone", "--no-python", "sh", "-c",
                          "kill -SEGV $$$$"], env=environment(), capture_output=True, text=True, timeout=60, cwd=tmp_path)
    cores = list(tmp_path.glob("core*"))
    if not cores:
        pytest.skip("no core file is left here")
    assert re.search(rf"crashed: SIGSEGV .*; core: {re.escape(str(cores[0]))}\n", run.stderr), run.stderr


def kernel_log_tells():
    """Whether a crash appears there under the pid that we know, and we may read it."""
    text = ctypes.create_string_buffer(16)
    return platform.machine() == "x86_64" and open("/proc/sys/debug/exception-trace").read().strip() == "1" and \
        os.readlink("/proc/self/ns/pid") == "pid:[4026531836]" and ctypes.CDLL(None).klogctl(3, text, len(text)) >= 0


def test_crash_names_library(tmp_path):
    """Where the kernel's log can be read, a crash names whose code it was in; one that was sent with kill has no such place."""
    if not kernel_log_tells():
        pytest.skip("the kernel's log is not for us to read")
    script = tmp_path / "crash.py"
    script.write_text("import ctypes; ctypes.string_at(0)\n")
    for command, says in (([str(script)], r" in (libc\.so\.6|libc-[\d.]+\.so|ld-musl\S+|\S*ctypes\S*|libpython\S+|python\S*)"),
                          (["--no-python", "sh", "-c", "kill -SEGV $$$$"], "")):
        run = subprocess.run([str(MUSTER), "run", "--standalone", *command], env=environment(), capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert re.search(rf"the job failed: .*: crashed: SIGSEGV{says} \(a fault in native code", run.stderr), run.stderr


def test_cxx_exception(tmp_path):
    """What nobody caught is the cause; that the signal was SIGABRT comes after it."""
    script = "echo \"terminate called after throwing an instance of 'std::runtime_error'\" >&2; echo '  what():  bad shard' >&2; kill -ABRT $$$$"
    run = subprocess.run([str(MUSTER), "run", "--standalone", "--no-python", "sh", "-c", script], env=environment(), capture_output=True,
                         text=True, timeout=60, cwd=tmp_path)
    assert re.search(r"the job failed: .*: crashed: std::runtime_error: bad shard \(SIGABRT\)(; .*)?\n", run.stderr), run.stderr


def test_an_abort_while_torch_shuts_down(tmp_path):
    """Only Python is taken down with torch in it; of another program the words themselves are the cause."""
    (tmp_path / "t.py").write_text("import os; os.write(2, b'terminate called without an active exception\\n'); os.abort()")
    for command, says in ((["t.py"], r"ended its script and then aborted while torch shut down \(SIGABRT\); if the script does not call "
                                     r"torch\.distributed\.destroy_process_group\(\) at its end, add that; if it does, end it with os\._exit\(0\)\n"),
                          (["--no-python", sys.executable, "t.py"], "ended its script and then aborted"),
                          (["--no-python", "sh", "-c", "echo 'terminate called without an active exception' >&2; kill -ABRT $$$$"],
                           r"crashed: terminate called without an active exception \(SIGABRT\)")):
        run = subprocess.run([str(MUSTER), "run", "--standalone", *command], env=environment(PYTHON_EXEC=sys.executable), capture_output=True, text=True,
                             timeout=60, cwd=tmp_path)
        assert re.search(rf"the job failed: rank 0 .*{says}", run.stderr), run.stderr


def test_shell_codes(tmp_path):
    """What a shell means by its exit code."""
    for code, says in ((127, "found no such command"), (126, "cannot be executed"), (137, "its command died of SIGKILL")):
        run = subprocess.run([str(MUSTER), "run", "--standalone", "--no-python", "sh", "-c", f"exit {code}"], env=environment(),
                             capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert re.search(rf"the job failed: .*exited with code {code}, with which a shell tells that .*{says}", run.stderr), run.stderr


def test_sender_of_a_signal(tmp_path):
    """A signal to the agent: who sent it is in the report; there is no culprit."""
    report = tmp_path / "r.json"
    with Job(tmp_path, "j", "--standalone", f"--report={report}", "--no-python", "sh", "-c", "echo up; exec sleep 60") as job:
        job.until("up")
        job.process.terminate()
        assert job.wait() == 1
        assert "the job failed" not in job.text(), job.text()
        assert re.search(rf"stopped by SIGTERM from pid {os.getpid()} \(", job.text()), job.text()
    story = json.loads(report.read_text())
    assert story["verdict"] is None and story["outcome"] == "stopped" and story["nodes"][0]["state"] == "left", story


def both(tmp_path, *words, extra=((), ()), scripts, env=None):
    jobs = [Job(tmp_path, f"n{i}", "--nnodes=2", "--nproc-per-node=2", *words, *extra[i], "--no-python", *scripts[i], env=env) for i in (0, 1)]
    try:
        codes = [job.wait(60) for job in jobs]
        return [job.text() for job in jobs], codes
    finally:
        for job in jobs:
            job.end()


def verdict(text):
    at = text.rfind("muster: the job failed: ")
    assert at >= 0, text[-3000:]
    return text[at:]


def first_goes(tmp_path, words, own, end, up="echo up") -> tuple[Job, str, list[dict]]:
    """Two nodes are at work, then end(first node). That job, the verdict of the second, and the nodes of its report."""
    words = ("--nnodes=2", "--nproc-per-node=2", *words)
    tail = ("--no-python", "sh", "-c", f"{up}; exec sleep 100")
    with Job(tmp_path, "n0", *words, *own[0], *tail) as first, Job(tmp_path, "n1", *words, *own[1], "--report=r.json", *tail) as other:
        for job in (first, other):
            job.until(lambda text: text.count("up\n") == 2)
        end(first.process)
        assert other.wait() == 1
        return first, verdict(other.text()), json.loads((tmp_path / "r.json").read_text())["nodes"]


def test_bad_start_on_one_node(tmp_path):
    """The other node's workers are stopped at once, and it tells why."""
    bad = program(tmp_path / "bad", b"#!/no/such/interpreter\n")
    where = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
    texts, codes = both(tmp_path, "--rdzv-backend=c10d", "--rdzv-id=bad", where, "--local-addr=127.0.0.1", "--max-restarts=3",
                        extra=(("--rdzv-conf=is_host=1",), ("--rdzv-conf=is_host=0",)),
                        scripts=(("sleep", "100"), (str(bad),)))
    assert codes == [1, 1]
    for text in texts:
        assert re.match(r"muster: the job failed: \S+: No such file or directory: '\S+/bad': its first line asks for the interpreter "
                        r"'/no/such/interpreter', which does not exist on this node\n", verdict(text)), verdict(text)


def test_stopped_host(tmp_path):
    """The host is asked to go: it was not lost, and the other node tells who asked."""
    words = ("--rdzv-backend=c10d", "--rdzv-id=host", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--local-addr=127.0.0.1")
    own = (("--rdzv-conf=is_host=1",), ("--rdzv-conf=is_host=0,join_timeout=8",))
    host, told, nodes = first_goes(tmp_path, words, own, lambda process: process.terminate())
    assert re.match(rf"muster: the job failed: \S+ left the job \(stopped by SIGTERM from pid {os.getpid()} \(.*\)\): it hosted the rendezvous "
                    r"and ranks 0 to 1\n", told), told
    assert sorted((node["agent_pid"] == host.pid, node["state"]) for node in nodes) == [(False, "here"), (True, "left")]


def test_node_that_was_stopped(tmp_path):
    """The other node says at once who left, and then for how long it waits for another in its place."""
    words = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=stopped", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--local-addr=127.0.0.1")
    tail = ("--no-python", "sh", "-c", "echo up; exec sleep 100")
    with Job(tmp_path, "n0", *words, "--rdzv-conf=is_host=1", *tail) as host, \
            Job(tmp_path, "n1", *words, "--rdzv-conf=is_host=0", *tail) as other:
        for job in (host, other):
            job.until(lambda text: "up\n" in text)
        other.process.terminate()
        assert other.wait() == 1
        host.until(lambda text: re.search(r"waiting \d+ s: 1 of 2 nodes are here, .*missing.* \(until \S+, \d+ s more\).*; \S+ left \d+ s ago\n", text))
        assert len(re.findall(rf"^muster: \S+ left the job \(stopped by SIGTERM from pid {os.getpid()} \(.*\)\)$", host.text(), re.M)) == 1, host.text()
        with Job(tmp_path, "n2", *words, "--rdzv-conf=is_host=0", *tail) as late:
            late.until(lambda text: "up\n" in text)


def test_node_that_was_killed(tmp_path):
    """The others go on without it, and each says once who was lost."""
    words = ("--nnodes=2:3", "--rdzv-backend=c10d", "--rdzv-id=killed", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--local-addr=127.0.0.1")
    conf = "--rdzv-conf=last_call_timeout=1,is_host="
    tail = ("--no-python", "sh", "-c", "echo up of $$WORLD_SIZE; exec sleep 100")
    with Job(tmp_path, "n0", *words, conf + "1", *tail) as host, Job(tmp_path, "n1", *words, conf + "0", *tail) as other, \
            Job(tmp_path, "n2", *words, conf + "0", *tail) as third:
        for job in (host, other, third):
            job.until("up of 3\n")
        third.process.kill()
        for job in (host, other):
            job.until("up of 2\n")
            job.until(lambda text: re.search(r"^muster: \S+ was lost \(its connection broke\); rank \d was there$", text, re.M))
            assert job.text().count("was lost") == 1, job.text()


FAIL = ("sh", "-c", 'if [ $RANK = 3 ]; then echo "the disk is gone" >&2; exit 7; fi; exec sleep 100')


def test_static(tmp_path):
    port = free_port()
    texts, codes = both(tmp_path, "--master-addr=127.0.0.1", f"--master-port={port}", extra=(("--node-rank=0",), ("--node-rank=1",)), scripts=(FAIL, FAIL))
    assert codes == [1, 1], texts
    assert verdict(texts[0]) == verdict(texts[1])
    assert re.match(r"muster: the job failed: rank 3 on \S+ \(local rank 1, pid \d+\): exited with code 7", verdict(texts[0])) or \
        "the disk is gone (exit code 7)" in verdict(texts[0]), verdict(texts[0])
    assert "the disk is gone" in verdict(texts[0])


@pytest.fixture(scope="module")
def etcd(tmp_path_factory):
    with Etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.mark.parametrize("backend", ["etcd", "etcd-v2", "etcd-v3"])
def test_etcd(tmp_path, backend, etcd):
    texts, codes = both(tmp_path, f"--rdzv-backend={backend}", f"--rdzv-endpoint={etcd.endpoint}", f"--rdzv-id=verdict-{backend}",
                        "--rdzv-conf=last_call_timeout=1", "--local-addr=127.0.0.1", scripts=(FAIL, FAIL))
    assert codes == [1, 1], texts
    assert verdict(texts[0]) == verdict(texts[1])
    assert "rank 3 on " in verdict(texts[0]) and "the disk is gone" in verdict(texts[0]), verdict(texts[0])


def test_lost_coordinator_on_etcd(tmp_path, etcd):
    """The agent that hosts the workers' store is killed: the other tells that it was lost, and when."""
    words = ("--rdzv-backend=etcd-v3", f"--rdzv-endpoint={etcd.endpoint}", "--rdzv-id=lost", "--rdzv-conf=join_timeout=6")
    own = (("--local-addr=127.0.0.1",), ("--local-addr=127.0.0.2",))
    up = "sleep 1; echo up"  # By then the agents have told each other their ranks.
    _, told, nodes = first_goes(tmp_path, words, own, lambda process: process.kill(), up)
    assert re.match(r"muster: the job failed: \S+ was lost \((its connection broke|no sign of life for [\d.]+ s)\): it hosted the workers' store "
                    r"and ranks 0 to 1\n +it was last heard of at \d\d:\d\d:\d\d", told), told
    assert {node["address"]: node["state"] for node in nodes} == {"127.0.0.1": "lost", "127.0.0.2": "here"}


FAILING = """
import json, os, signal, sys, traceback
if os.environ["RANK"] == "1":
    open(sys.argv[1]).read(1)  # until rank 0 is failing
    raise ValueError("the second one")
if sys.argv[2] == "file":
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as f:
        json.dump({"message": {"message": "KeyError: 'the first one'", "extraInfo": {"py_callstack": "", "timestamp": "1"}}}, f)
elif sys.argv[2] == "traceback":
    try:
        raise KeyError("the first one")
    except KeyError:
        traceback.print_exc()
os.write(os.open(sys.argv[1], os.O_WRONLY), b"x")  # and now it takes its time to end
signal.pause()
"""


@pytest.mark.parametrize("how,failed", [("file", 2), ("traceback", 2), ("innocent", 1)])
def test_a_rank_that_was_failing_by_itself_is_no_victim(tmp_path, how, failed):
    """Two ranks fail together; the one that is still at it when it is told to go has failed, too. Restarts are left, so nobody waits for it."""
    (tmp_path / "t.py").write_text(FAILING)
    os.mkfifo(tmp_path / "fifo")
    run = subprocess.run([str(MUSTER), "run", "--standalone", "--nproc-per-node=2", "--max-restarts=1", "--report=r.json", "t.py", "fifo", how],
                         env=environment(PYTHON_EXEC=sys.executable), stderr=subprocess.PIPE, text=True, timeout=60, cwd=tmp_path)
    first = json.loads((tmp_path / "r.json").read_text())["rounds"][0]
    assert run.returncode == 1 and first["failed"] == failed, (run.stderr, first)
    assert re.search(r"muster: rank 1 .*ValueError: the second one.* Restart 1 of 1", run.stderr), run.stderr


SLOW_END = """
import os, signal, sys, time
def fails(words):  # as torch's hook for exceptions tells it
    mark = f"[rank{os.environ['RANK']}]: "
    os.write(2, f"{mark}Traceback (most recent call last):\\n{mark}{words}\\n".encode())
if os.environ["RANK"] == "1":
    open(sys.argv[1]).read(1)
    time.sleep(1.5)  # a rank that fails takes longer than that to end where the machine is crowded
    fails("RuntimeError: Connection closed by peer [10.0.0.1]:4711")
    os._exit(1)
fails("KeyError: 'the first one'")
os.write(os.open(sys.argv[1], os.O_WRONLY), b"x")
signal.pause()
"""


@pytest.mark.parametrize("stderr", ["pipe", "file"])
def test_a_rank_that_takes_long_to_end_after_its_exception_is_no_victim(tmp_path, stderr):
    (tmp_path / "t.py").write_text(SLOW_END)
    os.mkfifo(tmp_path / "fifo")
    with open(tmp_path / "err", "w+") as err:
        run = subprocess.run([str(MUSTER), "run", "--standalone", "--nproc-per-node=2", "t.py", "fifo"], env=environment(PYTHON_EXEC=sys.executable),
                             stderr=subprocess.PIPE if stderr == "pipe" else err, text=True, timeout=60, cwd=tmp_path)
        err.seek(0)
        told = run.stderr or err.read()
    assert re.search(r"the job failed: rank 0 .*KeyError: 'the first one'", told), told
