"""Stuck jobs with real gloo: `muster stacks`, --hang, and what is told before a kill."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from patience import clock
from run_job import MUSTER, Job, environment, free_port

CULPRIT = Path(__file__).with_name("hang_culprit.py")
# What the line of the culprit says, for each kind of culprit.
SAYS = {
    "sleep": r"is in sleep \(hang_culprit.py:\d+\)",
    "fifo": r"is in fifo \(hang_culprit.py:\d+\)",
    "lock": r"is in lock \(hang_culprit.py:\d+\)",
    "stop": r"is stopped .*last frame .*stop \(hang_culprit.py:\d+\)",
    "uninterruptible": r"is uninterruptible \(state D\) in \w+.*uninterruptible \(hang_culprit.py:\d+\)",
    "gil": r"is in gil \(hang_culprit.py:\d+\)",
    "loop": r"is in (loop.<locals>.check|loop) \(hang_culprit.py:\d+\)",
    "blocked_socket": r"is in blocked_socket \(hang_culprit.py:\d+\)",
    "slow": r"is in slow \(hang_culprit.py:\d+\)",
    "loader": r"is in .*loader \(hang_culprit.py:\d+\)",
}


def stacks(*words, env=None) -> subprocess.CompletedProcess:
    return subprocess.run([str(MUSTER), "stacks", *map(str, words)], capture_output=True, text=True,
                          timeout=60, env=env or environment())


def told(text: str) -> list[str]:
    """What the agent said of hangs: one text for each, without the log's own words."""
    lines = [line.split("] ", 1)[1] for line in text.splitlines() if "muster/hang]" in line]
    return re.split(r"(?=no rank has made progress)", "\n".join(lines))[1:]


def names(hang: str, rank: int, *says: str) -> bool:
    """Whether it names the rank and says this. If not, then because of a machine that was too crowded to read all
    stacks in time: then nobody is named, and that is told."""
    if all(re.search(what, hang) for what in (rf"rank {rank} is the likely cause", *says)):
        return True
    assert re.search(r"no stack: |no time left", hang), hang
    assert re.search(rf"(rank {rank} is the likely cause|the likely cause is unknown)", hang), hang
    return False


def is_listening(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def stuck_at(text: str) -> list[float]:
    return [float(t) for t in re.findall(r"STUCK \w+ ([\d.]+)", text)]


def test_culprits_are_named_and_workers_restarted(tmp_path):
    kinds = ["sleep", "stop", "loop", "loader"]
    with Job(tmp_path, "job", "--standalone", "--nproc-per-node=3", "--max-restarts=3", "--hang=3s:restart",
             "--report=report.json", CULPRIT, env={"KINDS": ",".join(kinds), "VICTIM": "1"}) as job:
        assert job.wait(240) == 1
        hangs = told(job.text())
        assert len(hangs) == len(kinds), job.text()[-3000:]
        named = [names(hang, 1, r"2 ranks \(0, 2\) wait in broadcast \(hang_culprit.py:\d+\)", r"rank 1 on \S+ " + SAYS[kind])
                 for kind, hang in zip(kinds, hangs)]
        assert any(named), hangs
        assert all("The workers are restarted." in hang for hang in hangs[:-1])
        assert "No restart is left: the job ends." in hangs[-1]
        file = re.search(r"Stacks: (\S+)\. ", hangs[0])[1]
        assert "time.sleep" not in Path(file).read_text() and "MainThread" in Path(file).read_text()
        report = json.loads((tmp_path / "report.json").read_text())
        assert [h.get("rank", 1) for h in report["hangs"]] == [1] * 4 and report["hangs"][0]["stacks"] == file
        assert report["hangs"][1]["rank"] == 1  # a stopped one is known without its stack
        assert report["verdict"]["cause"] == "hang"


def test_what_holds_a_rank_up_is_told(tmp_path):
    """The item that a DataLoader's process is stuck in, the C function that keeps the GIL, the collective that the others
    have not called: each is in the report of the hang. Stacks get the time that a crowded machine takes."""
    kinds = {"stuck_loader": (r"rank 1 on \S+ is in .*_try_get_data \(torch/utils/data/dataloader.py:\d+\)",
                              r"its process \d+ \(\S+\): .*__getitem__ \(hang_culprit.py:\d+\) <- .*"
                              r"; 5 DataLoader processes wait for work"),
             "gil": (r"is in gil \(hang_culprit.py:\d+\)", r"below Python, with the GIL held: .*sleep \(libc.so.6\)"),
             "gil_thread": (r": wants the GIL, which thread holder.* holds in gil \(hang_culprit.py:\d+\).*"
                            r", below Python: .*sleep \(libc.so.6\)",),
             "mismatch": (r"rank 1 is the likely cause: the ranks have called different collectives: ranks 0, 2 wait in "
                          r"broadcast \(hang_culprit.py:\d+\), rank 1 in barrier \(hang_culprit.py:\d+\)",)}
    with Job(tmp_path, "job", "--standalone", "--nproc-per-node=3", f"--max-restarts={len(kinds) - 1}", "--hang=20s:restart",
             CULPRIT, env={"KINDS": ",".join(kinds), "VICTIM": "1"}) as job:
        assert job.wait(400) == 1
        hangs = told(job.text())
        assert len(hangs) == len(kinds), job.text()[-3000:]
        for kind, hang in zip(kinds, hangs):
            for what in kinds[kind]:
                assert re.search(what, hang) or re.search(r"no stack: |no time left|native frames: ", hang), (kind, hang)
        assert sum(all(re.search(w, h) for w in kinds[k]) for k, h in zip(kinds, hangs)) > 1, hangs


def test_slow_but_moving_is_no_hang(tmp_path):
    """No output at all, steps of a second, for several times the time of --hang."""
    with Job(tmp_path, "job", "--standalone", "--nproc-per-node=2", "--hang=3s:stop", CULPRIT,
             env={"KINDS": "moves", "PAUSE": "1", "SECONDS": "12"}) as job:
        assert job.wait() == 0, job.text()[-3000:]
        assert not told(job.text())


def test_output_to_a_pipe_is_progress(tmp_path):
    """One rank is at work for longer than the time of --hang while the others wait, and says so."""
    with Job(tmp_path, "job", "--standalone", "--nproc-per-node=2", "--hang=4s:stop", CULPRIT, stdout=subprocess.PIPE,
             env={"KINDS": "talks", "PAUSE": "8", "SECONDS": "1"}) as job:
        assert job.wait() == 0, job.text()[-3000:]
        assert not told(job.text())
        assert b"....." in job.process.stdout.read()


@pytest.mark.parametrize("descriptors", [1024, 64])
def test_output_that_is_turned_elsewhere_counts(tmp_path, descriptors):
    """A worker waits for a child that writes to a file which the worker has opened late; the others only wait. With few
    descriptors the agent keeps no files of its workers open."""
    script = ("sleep 1; exec >late.$RANK; (for i in $(seq 40); do [ $RANK != 0 ] || echo $i; sleep 0.25; done) & wait; "
              "[ $RANK != 0 ] || [ $(wc -l <late.0) = 40 ]")
    with Job(tmp_path, "job", "--standalone", "--nproc-per-node=3", "--hang=4s:stop", "--no-python", "/bin/sh", "-c",
             script, before=("sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh")) as job:
        assert job.wait() == 0, job.text()[-3000:]
        assert not told(job.text())


def test_a_progress_file_counts(tmp_path):
    """As long as somebody touches it nothing hangs; then a rank that is stuck all the while is told."""
    file = tmp_path / "progress"
    with Job(tmp_path, "job", "--standalone", "--nproc-per-node=2", "--hang=5s", f"--progress-file={file}", CULPRIT,
             env={"KINDS": "sleep", "VICTIM": "1"}) as job:
        by = clock() + 120
        while not (since := stuck_at(job.text())) or time.time() < since[0] + 10:
            file.touch()
            assert clock() < by and job.process.poll() is None and not told(job.text()), job.text()[-3000:]
            time.sleep(0.1)
        job.until("likely cause")
        names(told(job.text())[0], 1, r"rank 0 on \S+ waits in broadcast")


def test_stacks_of_a_live_job(tmp_path):
    run_id = f"stacks-{os.getpid()}"
    with Job(tmp_path, "job", f"--rdzv-id={run_id}", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nproc-per-node=3", CULPRIT,
             env={"KINDS": "sleep", "VICTIM": "2"}) as job:
        job.until("STUCK")
        by = clock() + 60
        out = ""
        while not (out.startswith("1 rank  (2, ") and "c10d::Work::wait (libtorch_cpu.so)" in out):  # native, too
            assert clock() < by, out
            out = stacks(run_id).stdout
        first, *rest = [line for line in out.splitlines() if not line.startswith(("note", " "))]
        assert re.fullmatch(r"1 rank  \(2, \S+\): sleep \(hang_culprit.py:\d+\) <- main \(hang_culprit.py:\d+\)"
                            r"   <-- differs", first), out
        assert rest[0].startswith("2 ranks (0, 1): broadcast (torch/distributed/distributed_c10d.py:"), out
        seen = json.loads(stacks(run_id, "--json").stdout)
        assert seen["suspects"] == [2] and [g["ranks"] for g in seen["groups"]] == [[2], [0, 1]]
        one = stacks(run_id, "--rank", 2).stdout
        assert "thread" in one and "sleep (hang_culprit.py:" in one and "rank 0" not in one

        # Bad input.
        assert "rank 7 is not running now; 3 ranks are" in stacks(run_id, "--rank", 7).stderr
        assert "give a global rank" in stacks(run_id, "--rank", "x").stderr
        for time in ("1ms", "61s"):
            assert f"--wait={time}: give a time from 100ms to 60s" in stacks(run_id, f"--wait={time}").stderr
        for time in ("", "soon", "1s:stop"):
            assert f"--wait={time}: give a time, at most" in stacks(run_id, f"--wait={time}").stderr
        assert "there is no such option" in stacks("--colour").stderr
        assert "no job nobody of yours runs on this machine" in stacks("nobody").stderr

        # A reader that is not there: what can be known is told, and how to get more.
        with Job(tmp_path, "blind", f"--rdzv-id={run_id}-2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nproc-per-node=2", CULPRIT,
                 env={"KINDS": "stop", "VICTIM": "0", "MUSTER_PY_SPY": "/nowhere/py-spy"}) as blind:
            blind.until("STUCK")
            by = clock() + 60
            while "stopped (SIGSTOP" not in stacks(f"{run_id}-2").stdout:
                assert clock() < by, stacks(f"{run_id}-2")
            out = stacks(f"{run_id}-2").stdout
            assert "note: no Python frames: py-spy is neither in PATH nor beside" in out
            assert "several jobs of yours run here" in stacks().stderr


def test_a_script_that_has_ended_and_waits_for_gloo(tmp_path):
    """As docs/guides/troubleshooting.md has it: the destructor waits for a collective that the other rank never calls."""
    script = tmp_path / "end.py"
    script.write_text("import time, torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
                      "dist.all_reduce(torch.ones(1))\n"
                      "if dist.get_rank() == 0:\n    work = dist.all_reduce(torch.ones(9), async_op=True)\n"
                      "else:\n    time.sleep(3600)\n")
    waits = r"1 rank  \(0\): std::thread::join \S+ <- c10d::ProcessGroupGloo::~ProcessGroupGloo"
    by, said = clock() + 120, ""
    while not re.search(waits, said):  # torch's race: now and then the worker aborts instead, and the job ends
        with Job(tmp_path, "job", "--standalone", "--nproc-per-node=2", script) as job:
            while not re.search(waits, said) and job.process.poll() is None:
                said = stacks(job.pid).stdout
                if "no native frames" in said:
                    pytest.skip("libdw is not installed")
                assert clock() < by, said
                time.sleep(0.5)


def test_equal_native_stacks_are_told_once(tmp_path):
    """A program without symbols, which each worker has at another address."""
    with Job(tmp_path, "job", "--standalone", "--nproc-per-node=3", "--no-python", "/bin/sh", "-c",
             "echo UP; exec /bin/sleep 1000") as job:
        job.until(lambda text: text.count("UP") == 3)
        by = clock() + 20
        while not re.match(r"3 ranks \(0-2, \S+\): .*\(sleep\)", (said := stacks(job.pid).stdout)):
            if "no native frames" in said:
                pytest.skip("libdw is not installed")
            assert clock() < by, said  # until then one may still be a shell


def test_stopped_workers_end_at_once(tmp_path):
    """SIGTERM to an agent whose workers are stopped: they go on, to their end."""
    script = tmp_path / "stopped.py"
    script.write_text("import os, signal\nprint('UP', flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)\n")
    with Job(tmp_path, "job", "--standalone", "--nproc-per-node=2", script) as job:
        job.until(lambda text: text.count("UP") == 2)
        time.sleep(0.2)
        began = clock()
        job.process.send_signal(signal.SIGTERM)
        job.wait(20)
        assert clock() - began < 10  # the grace is 30 s


def test_stacks_are_told_before_a_kill(tmp_path):
    script = tmp_path / "deaf.py"
    script.write_text("import signal, time\n"
                      "def deaf():\n    print('UP', flush=True)\n    time.sleep(3600)\n"
                      "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ndeaf()\n")
    with Job(tmp_path, "job", "--standalone", "--nproc-per-node=1", "--shutdown-timeout=1", script) as job:
        job.until("UP")
        job.process.send_signal(signal.SIGTERM)
        job.wait(30)
        assert re.search(r"where the workers that do not end are:\n.*1 rank  \(0, \S+\): deaf \(deaf.py:4\)",
                         job.text()), job.text()


@pytest.mark.skipif(os.geteuid() != 0, reason="root may always look: another user is needed")
def test_where_nobody_may_look_python_prints_before_a_kill(tmp_path):
    """A worker whose memory nobody may read: what is missing is said, and faulthandler is used at the end."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o777)
    shutil.copy(MUSTER, folder / "muster")
    (folder / "hidden.py").write_text(
        "import ctypes, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE\n"
        "def hidden():\n    print('UP', flush=True)\n    time.sleep(600)\nhidden()\n")
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    env = {"PATH": "/usr/bin:/bin", "TMPDIR": str(folder), "PYTHONFAULTHANDLER": "1"}
    out = (folder / "out").open("w+")
    job = subprocess.Popen([*nobody, folder / "muster", "run", "--shutdown-timeout=1", "hidden.py"], env=env,
                           cwd=folder, stdout=out, stderr=out)
    try:
        by = clock() + 60
        while "UP" not in (folder / "out").read_text():
            assert clock() < by and job.poll() is None, (folder / "out").read_text()
            time.sleep(0.05)
        asked = subprocess.run([*nobody, folder / "muster", "stacks", str(job.pid)], env=env, capture_output=True,
                               text=True, timeout=60)
        assert "no stack: ptrace is forbidden (" in asked.stdout, asked
        job.terminate()
        job.wait(60)
        text = (folder / "out").read_text()
        assert "get SIGABRT: PYTHONFAULTHANDLER" in text and '", line 6 in hidden' in text, text
    finally:
        job.kill()
        shutil.rmtree(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed")
def test_another_users_job_is_told_as_such(tmp_path):
    script = tmp_path / "wait.sh"
    script.write_text("echo UP; sleep 600\n")
    with Job(tmp_path, "job", "--standalone", "--no-python", "sh", script) as job:
        job.until("UP")
        for name, says in ((str(job.pid), "is a job of user root: only that user can ask it"),
                           ("by-name", "no job by-name of yours runs on this machine; jobs of other users do (user ")):
            out = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", str(MUSTER), "stacks", name],
                                 capture_output=True, text=True, timeout=30)
            assert out.returncode == 1 and says in out.stderr, out


def test_two_nodes_tell_the_same_and_restart_as_one(tmp_path):
    port = free_port()
    words = ["--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-id=two-{port}", "--max-restarts=1",
             f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1", "--hang=4s:restart", CULPRIT]
    env = {"KINDS": "sleep,moves", "VICTIM": "3", "SECONDS": "1", "PAUSE": "0.1"}
    with Job(tmp_path, "a", *words, env=env) as a, Job(tmp_path, "b", *words, env=env) as b:
        by = clock() + 120
        while not (stuck_at(a.text()) or stuck_at(b.text())):
            assert clock() < by
            time.sleep(0.05)
        out = ""
        while not out.startswith("1 rank  (3, ") and not told(a.text()):  # from all nodes
            out = stacks(f"two-{port}").stdout
        assert not out or "3 ranks (0-2): broadcast" in out, out
        assert a.wait() == 0 and b.wait() == 0, a.text()[-3000:] + b.text()[-3000:]
        for job in (a, b):
            hangs = told(job.text())
            assert len(hangs) == 1, job.text()[-3000:]
            names(hangs[0], 3, r"3 ranks \(0-2\) wait in broadcast")


def test_in_a_mixed_group_each_of_our_nodes_tells_of_its_own(tmp_path):
    """torchrun hosts: its store carries no questions, so that our nodes look at their own ranks, and say so."""
    port = free_port()
    words = ["--nnodes=3", "--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-id=mixed-{port}", "--max-restarts=0",
             f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1"]
    env = {"KINDS": "sleep", "VICTIM": "there"}
    with Job(tmp_path, "torch", *words, CULPRIT, kind="torchrun", env=env) as theirs:
        by = clock() + 120
        while not is_listening(port):
            assert clock() < by and theirs.process.poll() is None, theirs.text()
            time.sleep(0.05)
        # A quarter of the time is for reading stacks: with 4 s, a crowded machine does not get them whole.
        with Job(tmp_path, "a", *words, "--hang=16s", CULPRIT, env=env) as a, \
             Job(tmp_path, "b", *words, "--hang=16s", CULPRIT, env={**env, "VICTIM": "here"}) as b:
            b.until("likely cause")
            hang = told(b.text())[0]
            assert re.search(r"rank (\d) on \S+ is in sleep \(hang_culprit.py:\d+\)", hang), hang
            assert re.search(r"rank (\d) is the likely cause", hang), hang
            a.until("likely cause")
            assert "the likely cause is unknown" in told(a.text())[0], a.text()
            seen, by = "", clock() + 60
            while not re.search(r"2 ranks \(\d, \d, \S+\): broadcast", seen):
                assert clock() < by, seen
                seen = stacks(a.pid).stdout
            assert "note: this node alone: the store is not served by muster" in seen, seen


def test_stacks_are_told_before_the_file_timer_kills(tmp_path):
    script = tmp_path / "late.py"
    script.write_text("import time\nimport torch.distributed.elastic.timer as timer\n"
                      "from torch.distributed.elastic.timer import FileTimerClient, expires\nimport os\n"
                      "timer.configure(FileTimerClient(os.environ['TORCHELASTIC_TIMER_FILE']))\n"
                      "def late():\n    time.sleep(3600)\n"
                      "with expires(after=1):\n    late()\n")
    with Job(tmp_path, "job", "--standalone", "--nproc-per-node=1", "--max-restarts=0", script,
             env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}) as job:
        assert job.wait() == -signal.SIGKILL  # torch's: the agent gets the worker's signal, too
        text = job.text()
        found = re.search(r"where the workers that took longer than their timer allows are:\n"
                          r".*1 rank  \(0, \S+\): late \(late.py:7\)", text)
        assert found and "expired" in text[found.end():], text


def test_warm_workers_tell_where_ptrace_is_forbidden(tmp_path):
    """Their own faulthandler is asked, live: nobody is stopped, nobody ends, and a hang has a name."""
    run_id = f"forbidden-{os.getpid()}"
    forbid = [sys.executable, Path(__file__).with_name("no_ptrace.py")]
    with Job(tmp_path, "job", f"--rdzv-id={run_id}", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nproc-per-node=3", "--warm",
             "--max-restarts=0", "--hang=4s:stop", CULPRIT, env={"KINDS": "lock", "VICTIM": "1"}, before=forbid) as job:
        job.until("STUCK")
        by = clock() + 60
        out = ""
        while not out.startswith("1 rank  (1, ") and not told(job.text()):
            assert clock() < by, out + job.text()[-3000:]
            out = stacks(run_id).stdout
        if out.startswith("1 rank"):  # else the machine is so slow that the hang was told before
            assert re.match(r"1 rank  \(1, \S+\): lock \(hang_culprit.py:\d+\) <- main \(hang_culprit.py:\d+\)"
                            r".*   <-- differs", out), out
            assert "2 ranks (0, 2): broadcast (torch/distributed/distributed_c10d.py:" in out, out
            assert "from the workers' own faulthandler" in out, out
        assert job.wait() == 1
        hangs = told(job.text())
        assert len(hangs) == 1, job.text()[-3000:]
        assert names(hangs[0], 1, r"2 ranks \(0, 2\) wait in broadcast") or out.startswith("1 rank"), hangs


PRCTL = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int prctl(int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d)
{
    int (*real)(int, unsigned long, unsigned long, unsigned long, unsigned long) = dlsym(RTLD_NEXT, "prctl");
    const char *to = getenv("PRCTL_LOG");
    if (option == 0x59616d61 && to) {
        char line[64];
        const int n = snprintf(line, sizeof line, "%d %lu\\n", (int)getpid(), a);
        const int fd = open(to, O_WRONLY | O_APPEND | O_CREAT, 0600);
        if (write(fd, line, (unsigned)n) < 0)
            abort();
        close(fd);
    }
    return real(option, a, b, c, d);
}
"""


@pytest.mark.parametrize("warm", [[], ["--warm"]])
def test_workers_let_the_agent_look_where_yama_asks_them(tmp_path, warm):
    """kernel.yama.ptrace_scope=1 lets those look whom a process has named, and their children."""
    if os.environ.get("MUSTER_BUILD"):
        pytest.skip("a sanitizer's runtime has its own prctl")
    (tmp_path / "prctl.c").write_text(PRCTL)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "prctl.so", tmp_path / "prctl.c", "-ldl"], check=True)
    script = tmp_path / "worker.py"
    script.write_text("import os\nprint('PID', os.getpid(), flush=True)\n")
    log = tmp_path / "prctl.log"
    with Job(tmp_path, "job", "--standalone", "--nproc-per-node=2", *warm, script,
             env={"LD_PRELOAD": str(tmp_path / "prctl.so"), "PRCTL_LOG": str(log)}) as job:
        assert job.wait() == 0, job.text()
        pids = re.findall(r"PID (\d+)", job.text())
        named = dict(line.split() for line in log.read_text().splitlines())
        assert len(pids) == 2 and [named.get(pid) for pid in pids] == [str(job.pid)] * 2, (pids, named, job.pid)
