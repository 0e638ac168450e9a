"""What a person sees on a terminal: a failure in a few lines, a lost node in one, at most two pieces of advice. In pipes
and files everything is there that torchrun says."""
from __future__ import annotations

import os
import re
import signal
import subprocess

import pytest
from screens import MUSTER, free_port, screen  # noqa: F401

FAILS = """
import os, time
print("up", flush=True)
if os.environ["RANK"] == "1":
    raise RuntimeError("bad shard 17")
time.sleep(600)
"""
TORCH = ("Sending process ", "failed (exitcode: 1)", "ChildFailedError", "Root Cause (first observed failure)")


def words(text: str) -> list[str]:
    """Lines without colours and without the line that is kept up to date."""
    return [x for x in re.sub(r"\x1b\[[0-9;]*[mAK]|\r", "", text).splitlines() if x]


@pytest.fixture
def fails(tmp_path):
    path = tmp_path / "fails.py"
    path.write_text(FAILS)
    return [MUSTER, "run", "--standalone", "--nproc-per-node=3"], str(path)


def last_lines(text: str) -> list[str]:
    lines = words(text)
    return lines[next(i for i, x in enumerate(lines) if x.startswith("muster: the job failed")):]


def test_a_failure_is_a_few_lines(screen, fails, tmp_path):
    argv, path = fails
    copy = tmp_path / "copy"
    s = screen([*argv, path], TORCH_LOGS_OUT=str(copy))
    text = s.read("were stopped because of it.*\n")
    assert s.process.wait(60) == 1
    told = last_lines(text)
    assert len(told) == 4 and "rank 1" in told[0] and "RuntimeError: bad shard 17" in told[0] and "no restarts" in told[3], told
    assert not any(t in text for t in TORCH) and "site-packages/torch" not in text, text
    host = re.search(r"rank 1 on (\S+) ", told[0]).group(1)
    assert set(re.findall(r" on (\S+) \(", text)) == {host}
    assert all(t in copy.read_text() for t in TORCH[:2])  # whoever asks for a copy has it all


def test_torch_s_report_can_be_had(screen, fails):
    argv, path = fails
    s = screen([*argv, "--failure=torch", path])
    text = s.read("were stopped because of it.*\n")
    assert all(t in text for t in TORCH), text
    s = screen([*argv, path], MUSTER_FAILURE="torch")
    assert "ChildFailedError" in s.read("were stopped because of it.*\n")


def test_pipes_have_torch_s_words(fails):
    argv, path = fails
    done = subprocess.run([*argv, path], stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1 and all(t in done.stderr for t in TORCH), done.stderr
    assert len(last_lines(done.stderr)) == 4
    short = subprocess.run([*argv, "--failure=short", path], stderr=subprocess.PIPE, text=True, timeout=60)
    assert short.returncode == 1 and not any(t in short.stderr for t in TORCH), short.stderr
    assert len(last_lines(short.stderr)) == 4


def test_advice_is_short_and_never_more_than_two_lines(screen, tmp_path, monkeypatch):
    """Nodes without endpoint, secret or a name that resolves have more to be told than that."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # torch sets it in a process that calls its launcher
    path = tmp_path / "up.py"
    path.write_text("import os\nos.write(1, b'up\\n')\n")  # print() of an unbuffered Python writes twice
    def command():  # each hosts a store of its own: the first job may still serve its own
        return [MUSTER, "run", "--nnodes=1:2", "--nproc-per-node=2", "--rdzv-backend=c10d", "--node-rank=3", "--rdzv-id=",
                "--rdzv-conf=last_call_timeout=1", f"--rdzv-endpoint=localhost:{free_port()}", str(path)]

    text = screen(command()).read("up\r?\n(.|\n)*up\r?\n")
    before = [x for x in words(text.partition("\nup")[0]) if x.startswith("muster: ") and "the group is complete" not in x]
    assert len(before) == 2 and "site-packages" not in text, before
    # Without env= a child gets the C library's variables, where torch's may stay after Python's copy has lost it.
    piped = subprocess.run(command(), env=dict(os.environ), stderr=subprocess.PIPE, text=True, timeout=60).stderr
    assert "run.py:865] node_rank is only used" in piped and "openssl rand -hex 32 > FILE" in piped
    assert "Setting OMP_NUM_THREADS environment variable" in piped, piped


def test_a_lost_node_is_one_line(screen, tmp_path):
    path = tmp_path / "wait.py"
    path.write_text("import os, time\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)\n"
                    f"while not os.path.exists({str(tmp_path / 'end')!r}): time.sleep(0.05)\n")
    argv = [MUSTER, "run", "--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_port()}", "--rdzv-id=x",
            "--rdzv-conf=last_call_timeout=60", str(path)]
    first = screen(argv)
    first.read("1 of at most 2 nodes")
    second = screen(argv)
    first.read("rank 0 of 2")
    second.read("rank 1 of 2")
    os.kill(second.process.pid, signal.SIGKILL)
    first.read("rank 0 of 1", 120)
    text = first.read(r"was lost [^\n]*\n")
    (tmp_path / "end").touch()
    told = [x for x in words(text.partition("rank 0 of 2")[2]) if "lost" in x or "broke" in x or "SIGTERM" in x]
    assert len(told) == 1 and re.fullmatch(r"muster: \S+ was lost \(its connection broke\); rank 1 was there", told[0]), told


STAYS = """
import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, b"up\\n")
time.sleep(600)
"""


def test_ctrl_c_counts_down_and_again_kills(screen, tmp_path):
    path = tmp_path / "stays.py"
    path.write_text(STAYS)
    s = screen([MUSTER, "run", "--standalone", "--nproc-per-node=2", str(path)])
    s.read(r"up\s+up")
    os.kill(s.process.pid, signal.SIGINT)
    text = s.read(r"stopping 2 workers, 30 s \(Ctrl-C again kills them\)(.|\n)*stopping 2 workers, 2\d s")
    assert "Sending process" not in text and "death signal" not in text, text
    os.kill(s.process.pid, signal.SIGINT)
    assert s.process.wait(30) == 1


def test_ctrl_c_is_heard_while_workers_start(tmp_path):
    """Thousands take seconds. Whoever has seen the first of them and typed the wrong number need not wait for the rest."""
    count = 3000
    argv = [MUSTER, "run", "--standalone", f"--nproc-per-node={count}", "--no-python", "sh", "-c", "echo up; exec sleep 600"]
    p = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert p.stdout.readline() == "up\n"
        p.send_signal(signal.SIGINT)
        started = 1 + sum(line == "up\n" for line in p.stdout)
        assert p.wait(120) == 1 and started < count, started
    finally:
        p.kill()
        p.wait()
