"""Nobody is left behind, whoever is killed and whenever: workers that double-fork, that
ignore SIGTERM, that lead sessions of their own."""
import os
import pty
import random
import signal
import time
from pathlib import Path

import pytest

from patience import clock
from run_job import DAEMONS, MUSTER, Job, environment, until_gone

TIMES = {"agent": 100, "guard": 20, "keeper": 20, "agent and guard": 50, "guard and keeper": 25, "keeper and guard": 25}


def job(where, mark, *words):
    (where / "worker.sh").write_text(DAEMONS)
    return Job(where, mark, "--standalone", "--nproc-per-node=2", *words, "--no-python", "sh", "worker.sh", mark,
               env={"MARK": mark})


def child_of(pid):
    """Of an agent its keeper, of that the guard; or the process itself, while there is none."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return pid
    return int(children[0]) if children else pid


def victims(agent, who):
    """pids, such that there is nobody left who could see one go before the next is killed."""
    keeper = child_of(agent.pid)
    return {"agent": [agent.pid], "keeper": [keeper], "guard": [child_of(keeper)],
            "agent and guard": [child_of(keeper), agent.pid], "guard and keeper": [child_of(keeper), keeper],
            "keeper and guard": [keeper, child_of(keeper)]}[who]


@pytest.mark.parametrize("who", TIMES)
def test_killed_at_any_moment(tmp_path, who):
    rng = random.Random(5)
    for i in range(TIMES[who]):
        mark = f"mark-{who}-{os.getpid()}-{i}-{time.monotonic_ns()}"
        with job(tmp_path, mark) as agent:
            time.sleep(rng.uniform(0, 0.2))
            for pid in victims(agent, who):
                os.kill(pid, signal.SIGKILL)
            assert agent.wait() == (-9 if "agent" in who else agent.process.returncode)
        until_gone(mark)


@pytest.mark.parametrize("writes", [False, True])
def test_a_killed_agent_leaves_no_empty_directories(tmp_path, writes):
    """Of the directories in TMPDIR those stay that have something in them."""
    temp = tmp_path / "tmp"
    temp.mkdir()
    script = "echo up; exec sleep 600"
    with Job(tmp_path, "j", "--standalone", "--nproc-per-node=2", *(["-r", "3"] if writes else []), "--no-python", "sh", "-c",
             script, env={"TMPDIR": str(temp)}) as agent:
        by = clock() + 60
        while len(list(temp.glob("torchelastic_*/*/attempt_0/*"))) < 2 or not (writes or agent.text().count("up") == 2):
            assert clock() < by, agent.text()
            time.sleep(0.01)
        keeper = child_of(agent.pid)
        os.kill(agent.pid, signal.SIGKILL)
        agent.wait()
        while Path(f"/proc/{keeper}").exists():
            assert clock() < by
            time.sleep(0.01)
    left = [str(p.relative_to(temp)) for p in temp.rglob("*") if p.is_file()]
    assert bool(left) == writes and (writes or list(temp.iterdir()) == []), (left, list(temp.rglob("*")))


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT, signal.SIGALRM])
def test_signalled(tmp_path, sig):
    mark = f"mark-{sig}-{os.getpid()}-{time.monotonic_ns()}"
    with job(tmp_path, mark, "--shutdown-timeout=1") as agent:
        agent.until(lambda text: text.count("up") == 2)
        agent.process.send_signal(sig)
        # Not handled: the default action, as with torchrun; but nothing stays.
        assert agent.wait() == (-sig if sig == signal.SIGALRM else 1)
    until_gone(mark)


def test_ctrl_c_twice_at_a_terminal(tmp_path):
    """The workers ignore the first; after the second nothing is left, long before the
    shutdown timeout."""
    mark = f"mark-ctrl-c-{os.getpid()}-{time.monotonic_ns()}"
    (tmp_path / "worker.sh").write_text("trap 'echo ignored' INT\n" + DAEMONS)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(MUSTER, ["muster", "run", "--standalone", "--nproc-per-node=2", "--shutdown-timeout=250",
                           "--no-python", "sh", "worker.sh", mark], environment(MARK=mark, TERM="xterm"))
    seen = b""

    def until(word, count):
        nonlocal seen
        while seen.count(word) < count:
            try:
                seen += os.read(terminal, 65536)
            except OSError:  # the other side is closed
                break
        assert seen.count(word) >= count, seen

    try:
        until(b"up", 2)
        os.write(terminal, b"\x03")
        until(b"ignored", 2)
        os.write(terminal, b"\x03")
        until(b"killing 2 workers", 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
        pid = 0
        assert b"Unable to shutdown process" not in seen, seen  # which is for pipes
        until_gone(mark)
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(terminal)


def test_daemons_of_a_worker_that_fails(tmp_path):
    mark = f"mark-fails-{os.getpid()}-{time.monotonic_ns()}"
    (tmp_path / "fails.sh").write_text(DAEMONS.partition("echo up")[0] + "exit 3\n")
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
