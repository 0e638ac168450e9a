"""Preemption with a clock: word comes in at one node, every rank of the job hears it and has until the deadline."""
from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time

import pytest
from etcd_server import Etcd
from run_job import MUSTER, ROOT, Job, environment, free_port
from schemas import fits

WORKER = """
import os, signal, sys, time
sys.path.insert(0, os.environ["PACKAGE"])
import muster
told = []
for sig in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(sig, lambda number, frame: told.append(signal.Signals(number).name))
how = os.environ.get("HOW", "")
assert muster.deadline() is None
print("up", os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
while not told and (how != "polls" or muster.deadline() is None):
    time.sleep(0.01)
if how == "late" and os.environ["RANK"] == "0":
    told = []
    while True:
        time.sleep(0.01)
left = muster.deadline()
print("saved", os.environ["RANK"], told, "left" if left and 0 < left <= 60 else left, flush=True)
"""
ENV = {"PACKAGE": str(ROOT / "python/src")}


@pytest.fixture
def start(tmp_path):
    jobs = []

    def start(name, *words, **env):
        (tmp_path / "train.py").write_text(WORKER)
        jobs.append(Job(tmp_path, name, "--exit-codes=cause", *words, "train.py", env={**ENV, **env}))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()


def ups(job, n):
    job.until(lambda text: len(re.findall(r"^up ", text, re.M)) >= n)


def group(start, *words, nodes="2:3", count=3, **env):
    """Nodes with two workers each; the first serves the store."""
    port = free_port()
    return [start(f"n{i}", f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
                  "--rdzv-id=notice", f"--rdzv-conf=is_host={int(i == 0)},last_call_timeout=2", "--local-addr=127.0.0.1",
                  "--nproc-per-node=2", *words, **env) for i in range(count)]


@pytest.mark.parametrize("sig, words, told", [
    ("SIGTERM", ("--notice=SIGTERM:60s",), "SIGTERM"),
    ("SIGUSR1", ("--notice=SIGUSR1:60s,SIGTERM", "--on-notice=SIGUSR2"), "SIGUSR2"),
])
def test_one_node(start, sig, words, told):
    job = start("one", "--standalone", "--nproc-per-node=2", *words, "--report=r.json")
    ups(job, 2)
    os.kill(job.pid, getattr(signal, sig))
    assert job.wait() == 75, job.text()
    for rank in "01":
        assert f"saved {rank} ['{told}'] left" in job.text(), job.text()
    assert re.search(rf"is to go at \d\d:\d\d:\d\d \({sig} from pid {os.getpid()} \(.*\)\). {told} to 2 ranks on 1 node; 60 s left.",
                     job.text()), job.text()
    assert "all 2 ranks here ended by themselves after" in job.text() and "(exit code 75: try again)" in job.text()
    report = json.loads((job.out.parent / "r.json").read_text())
    fits(report, "report")
    assert report["verdict"]["cause"] == "notice"


def test_without_the_option_it_is_as_with_torchrun(start):
    job = start("plain", "--standalone")
    ups(job, 1)
    os.kill(job.pid, signal.SIGTERM)
    assert job.wait() == 1 and "is to go at" not in job.text()
    assert "saved 0 ['SIGTERM'] None" in job.text()


def test_a_command_tells_and_a_command_is_told(start, tmp_path):
    """The site's command exits when the cloud says so; ours runs once on the node, and the ranks look at the clock."""
    job = start("cmd", "--standalone", "--nproc-per-node=2", f"--notice=until [ -e {tmp_path}/now ]; do sleep 0.05; done; echo 50",
                f"--on-notice=echo told $MUSTER_NOTICE_LEFT $(cat $MUSTER_NOTICE_FILE) >> {tmp_path}/told", HOW="polls")
    ups(job, 2)
    (tmp_path / "now").touch()
    assert job.wait() == 75, job.text()
    assert re.fullmatch(r"told 50 \d{10}\.\d{6}\n", (tmp_path / "told").read_text())
    assert "saved 0 [] left" in job.text() and "(the command of --notice)" in job.text()


def test_a_command_that_fails_tells_nothing(start):
    job = start("bad", "--standalone", "--notice=exit 3;")
    job.until("the command of --notice ended with an error")
    ups(job, 1)
    os.kill(job.pid, signal.SIGTERM)
    assert job.wait() == 1


def test_the_time_limit_of_slurm(start):
    job = start("slurm", "--standalone", "--notice=slurm:3500s", SLURM_JOB_END_TIME=str(int(time.time()) + 3503))
    job.until("(the time limit of its Slurm job)")
    assert job.wait() == 75 and "saved 0 ['SIGTERM']" in job.text()


def test_the_others_go_on(start):
    """Every rank hears it at once; the others begin again when that node has gone, and not before."""
    jobs = group(start, "--notice=SIGTERM:60s", "--on-notice=SIGUSR1")
    for job in jobs:
        ups(job, 2)
    os.kill(jobs[2].pid, signal.SIGTERM)
    assert jobs[2].wait() == 75, jobs[2].text()
    for job in jobs[:2]:
        job.until(lambda text: len(re.findall(r"^up \d 4", text, re.M)) == 2)
        assert len(re.findall(r"^saved \d \['SIGUSR1'\] left", job.text(), re.M)) == 2
        assert re.search(r"node \S+ is to go at .*SIGUSR1 to 6 ranks on 3 nodes", job.text())
        assert "the job goes on without the node that leaves" in job.text()
        assert "not counted" not in job.text() and "failed" not in job.text()
    os.kill(jobs[0].pid, signal.SIGTERM)  # it serves the store: all are to go
    assert [job.wait() for job in jobs[:2]] == [75, 75], [job.text() for job in jobs]


def test_too_few_stay(start):
    jobs = group(start, "--notice=SIGTERM:60s", nodes="2", count=2)
    for job in jobs:
        ups(job, 2)
    os.kill(jobs[1].pid, signal.SIGTERM)
    assert [job.wait() for job in jobs] == [75, 75], [job.text() for job in jobs]
    assert all(len(re.findall(r"^saved ", job.text(), re.M)) == 2 for job in jobs)


def test_a_rule_counts_it(start):
    """notice:restart: the others go on, which counts; when no restart is left, all of the job goes."""
    jobs = group(start, "--notice=SIGTERM:60s", "--restart-policy=notice:restart", "--max-restarts=1", "--report=r.json", nodes="1:3")
    for job in jobs:
        job.until(lambda text: len(re.findall(r"^up \d 6 0$", text, re.M)) == 2)
    os.kill(jobs[2].pid, signal.SIGTERM)
    assert jobs[2].wait() == 75, jobs[2].text()
    for job in jobs[:2]:
        job.until(lambda text: len(re.findall(r"^up \d 4 1$", text, re.M)) == 2)
        assert "Restart 1 of 1." in job.text()
    os.kill(jobs[1].pid, signal.SIGTERM)
    assert [job.wait() for job in jobs[:2]] == [75, 75], [job.text() for job in jobs]
    assert "the job is to go at " in jobs[0].text() and "Restart 2" not in jobs[0].text()
    report = json.loads((jobs[0].out.parent / "r.json").read_text())
    fits(report, "report")
    assert report["restarts"] == 1 and [r["cause"] for r in report["restart_causes"]] == ["notice"], report


def test_a_rule_ends_the_job(start):
    """notice:stop: one could go on, and does not."""
    jobs = group(start, "--notice=SIGTERM:60s", "--restart-policy=notice:stop", "--max-restarts=5", nodes="1:2", count=2)
    for job in jobs:
        job.until(lambda text: len(re.findall(r"^up \d 4 ", text, re.M)) == 2)
    os.kill(jobs[1].pid, signal.SIGTERM)
    assert [job.wait() for job in jobs] == [75, 75], [job.text() for job in jobs]
    assert "the job is to go at " in jobs[0].text() and "Restart" not in jobs[0].text()
    assert all(len(re.findall(r"^saved ", job.text(), re.M)) == 2 for job in jobs)


def test_on_etcd(start, tmp_path):
    """Word at either node, the workers' store on it or not, reaches the ranks of both."""
    with Etcd(tmp_path) as etcd:
        for at in (0, 1):
            jobs = [start(f"n{at}{i}", "--nnodes=2", "--rdzv-backend=etcd-v3", f"--rdzv-endpoint={etcd.endpoint}",
                          f"--rdzv-id=notice{at}", "--nproc-per-node=2", "--notice=SIGTERM:60s", "--on-notice=SIGUSR1")
                    for i in range(2)]
            for job in jobs:
                ups(job, 2)
            os.kill(jobs[at].pid, signal.SIGTERM)
            assert [job.wait() for job in jobs] == [75, 75], [job.text() for job in jobs]
            for job in jobs:
                assert len(re.findall(r"^saved \d \['SIGUSR1'\] left", job.text(), re.M)) == 2, job.text()
                assert re.search(r"is to go at .*SIGUSR1 to 4 ranks on 2 nodes", job.text()), job.text()


def test_muster_notice(start):
    """For the whole job, from the shell; jobs of others are not there to be told."""
    jobs = group(start, nodes="2", count=2)
    for job in jobs:
        ups(job, 2)
    done = subprocess.run([MUSTER, "notice", "notice", "--in", "50s"], capture_output=True, text=True, timeout=60,
                          env=environment())
    assert done.returncode == 0 and "gone in 50 s" in done.stdout, done.stderr
    assert [job.wait() for job in jobs] == [75, 75], [job.text() for job in jobs]
    for job in jobs:
        assert len(re.findall(r"^saved \d \['SIGTERM'\] None", job.text(), re.M)) == 2  # no file without the options
        assert re.search(r"the job is to go at .*\(muster notice\). SIGTERM to 4 ranks on 2 nodes; 50 s left", job.text())


@pytest.mark.parametrize("words, says", [
    (("nosuchjob",), "nosuchjob"), ((), "which job?"), (("x", "--in", "0s"), "give a time"), (("x", "--im", "1s"), "--in"),
])
def test_muster_notice_refuses(words, says):
    done = subprocess.run([MUSTER, "notice", *words], capture_output=True, text=True, timeout=60, env=environment())
    assert done.returncode != 0 and says in done.stderr, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_another_user_cannot(start):
    job = start("mine", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-id=mine")
    ups(job, 1)
    done = subprocess.run(["setpriv", "--reuid=65534", "--clear-groups", MUSTER, "notice", str(job.pid)],
                          capture_output=True, text=True, timeout=60, env=environment())
    assert done.returncode != 0 and job.process.poll() is None, done.stdout
    assert "is to go" not in job.text()


def test_whoever_is_late_is_named_with_its_stack(start):
    job = start("late", "--standalone", "--nproc-per-node=2", "--notice=SIGTERM:3s", HOW="late")
    ups(job, 2)
    os.kill(job.pid, signal.SIGTERM)
    assert job.wait() == 75, job.text()
    assert "saved 1" in job.text() and "saved 0" not in job.text()
    assert "where the workers that do not end are" in job.text() and "1 of 2 ranks here were late and have been killed" in job.text()


def test_again_ends_it_as_torchrun_does(start):
    """A second signal of --notice is one of --signals-to-handle."""
    job = start("again", "--standalone", "--notice=SIGTERM:60s", "--on-notice=SIGUSR1", HOW="late")
    ups(job, 1)
    os.kill(job.pid, signal.SIGTERM)
    job.until("is to go at")
    os.kill(job.pid, signal.SIGTERM)
    os.kill(job.pid, signal.SIGINT)
    os.kill(job.pid, signal.SIGINT)
    assert job.wait() == 1, job.text()


def test_deadline_costs_no_system_call(tmp_path):
    """Without a notice it reads memory: 10,000 calls, and strace sees none of them."""
    if subprocess.run(["which", "strace"], capture_output=True).returncode:
        pytest.skip("no strace")
    (tmp_path / "file").write_text("%24d.%06d\n" % (0, 0))
    code = ("import muster, os\nassert muster.deadline() is None\nos.stat('/begin')if 0 else None\n"
            "os.getppid()\nfor _ in range(10000): muster.deadline()\nos.getppid()\n")
    done = subprocess.run(["strace", "-o", tmp_path / "calls", environment()["PYTHON_EXEC"], "-c", code], timeout=120,
                          env=environment(PYTHONPATH=ENV["PACKAGE"], MUSTER_NOTICE_FILE=str(tmp_path / "file")))
    assert done.returncode == 0
    calls = (tmp_path / "calls").read_text().split("getppid()")
    assert len(calls) == 3 and calls[1].count("\n") <= 2, calls[1]
