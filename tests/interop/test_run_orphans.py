"""Nobody is left behind, whoever is killed and whenever: workers that double-fork, that
ignore SIGTERM, that lead sessions of their own."""
import os
import random
import signal
import time
from pathlib import Path

import pytest

from run_job import Job, until_gone

TIMES = int(os.environ.get("MUSTER_TEST_KILLS", "12"))
SCRIPT = """
(setsid sh -c 'trap "" TERM INT HUP; while :; do sleep 0.1; done' "$1" >/dev/null 2>&1 &)
( ( sh -c 'while :; do sleep 0.1; done' "$1" >/dev/null 2>&1 & ) & )
echo up
while :; do sleep 0.1; done
"""


def job(where, mark, *words):
    (where / "worker.sh").write_text(SCRIPT)
    return Job(where, mark, "--standalone", "--nproc-per-node=2", *words, "--no-python", "sh", "worker.sh", mark,
               env={"MARK": mark})


def guard_of(pid):
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else pid


@pytest.mark.parametrize("who", ["agent", "guard"])
def test_killed_at_any_moment(tmp_path, who):
    rng = random.Random(5)
    for i in range(TIMES):
        mark = f"mark-{who}-{os.getpid()}-{i}-{time.monotonic_ns()}"
        with job(tmp_path, mark) as agent:
            time.sleep(rng.uniform(0, 0.2))
            os.kill(agent.pid if who == "agent" else guard_of(agent.pid), signal.SIGKILL)
            assert agent.wait() == (-9 if who == "agent" else agent.process.returncode)
        until_gone(mark)


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signalled(tmp_path, sig):
    mark = f"mark-{sig}-{os.getpid()}-{time.monotonic_ns()}"
    with job(tmp_path, mark, "--shutdown-timeout=1") as agent:
        agent.until(lambda text: text.count("up") == 2)
        agent.process.send_signal(sig)
        # Not handled: the default action, as with torchrun; but nothing stays.
        assert agent.wait() == (-sig if sig == signal.SIGUSR1 else 1)
    until_gone(mark)


def test_daemons_of_a_worker_that_fails(tmp_path):
    mark = f"mark-fails-{os.getpid()}-{time.monotonic_ns()}"
    (tmp_path / "fails.sh").write_text(SCRIPT.partition("echo up")[0] + "exit 3\n")
    with Job(tmp_path, mark, "--standalone", "--no-python", "sh", "fails.sh", mark, env={"MARK": mark}) as agent:
        assert agent.wait() == 1
        assert "exitcode  : 3" in agent.text()
    until_gone(mark)


def test_nohup_is_respected(tmp_path):
    mark = f"mark-nohup-{os.getpid()}-{time.monotonic_ns()}"
    (tmp_path / "w.sh").write_text("echo up; while [ ! -e go ]; do sleep 0.1; done")
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        agent = Job(tmp_path, mark, "--standalone", "--no-python", "sh", "w.sh", env={"MARK": mark})
    finally:
        signal.signal(signal.SIGHUP, old)
    with agent:
        agent.until("up")
        agent.process.send_signal(signal.SIGHUP)
        (tmp_path / "go").touch()
        assert agent.wait() == 0
