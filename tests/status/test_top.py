"""`muster top` on a real terminal (tmux): three sizes, keys, a resize, no colours, bad input."""
from __future__ import annotations

import os
import subprocess
import time
import uuid

import pytest
from watched import MUSTER, muster, running, start, stop, until


class Screen:
    def __init__(self, columns, lines, *words, env=""):
        self.name = f"muster-{uuid.uuid4().hex[:8]}"
        self.tmux("new-session", "-d", "-x", str(columns), "-y", str(lines),
                  " ".join([env, str(MUSTER), "top", *map(str, words)]) + "; echo left $?; sleep 30")

    def tmux(self, *words) -> str:
        return subprocess.run(["tmux", "-L", self.name, *words], capture_output=True, text=True, timeout=30).stdout

    def text(self) -> str:
        return self.tmux("capture-pane", "-p")

    def keys(self, *keys):
        self.tmux("send-keys", *keys)

    def until(self, what):
        until(lambda: what in self.text(), f"{what!r} on the screen:\n{self.text()}\n", 30)
        return self.text()

    def close(self):
        self.tmux("kill-server")


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    where = tmp_path_factory.mktemp("top")
    j = start(where, "--standalone", "--log-dir", where / "logs", "--redirects", "3", page=None)
    running(j)
    until((where / "began.1.0").exists)
    yield j
    (where / "end").touch()
    stop(j)


@pytest.fixture
def screens():
    opened = []

    def make(*words, **more):
        opened.append(Screen(*words, **more))
        return opened[-1]
    yield make
    for s in opened:
        s.close()


@pytest.mark.parametrize("columns, lines", [(60, 10), (80, 24), (160, 50)])
def test_fits(job, screens, columns, lines):
    s = screens(columns, lines, job.pid)
    s.until("0-1")
    s.keys("Down")
    s.keys("Enter")
    text = s.until("rank 1")
    assert "memory" in text and "MiB" in text, text
    assert all(len(line) <= columns for line in text.splitlines())
    node = next(line for line in text.splitlines() if "0-1" in line)
    assert "running" in node and "%" in node and "MiB" in node, node  # nothing that counts is cut
    assert "q leave" in text.splitlines()[-1]
    s.keys("q")
    s.until("left 0")


def test_keys(job, screens):
    s = screens(80, 24, job.pid)
    s.until("0-1")
    s.keys("a")
    s.until("rank 1")
    for _ in range(3):
        s.keys("Down")
    s.keys("l")
    text = s.until("a word on stderr from rank 1")
    assert "last lines of rank 1" in text
    s.keys("q")
    s.until("q leave")
    s.keys("k")
    s.until("q back")
    s.keys("q")
    for key in "nrcmt":
        s.keys(key)
    s.until("0-1")
    s.keys("a")
    until(lambda: "rank 1" not in s.text(), "the closing of all nodes")
    s.tmux("resize-window", "-x", "60", "-y", "8")
    until(lambda: s.text().count("\n") <= 9 and "q leave" in s.text(), "the smaller screen")
    s.keys("q")
    s.until("left 0")


def test_the_head_the_history_and_the_last_lines(job, screens):
    """Totals and a clock, a minute of CPU, what the chosen rank writes, in colour and in words."""
    s = screens(80, 24, job.pid, env="LC_ALL=C.UTF-8")
    text = s.until("a word on stderr from rank 0")
    head = text.splitlines()[0]
    assert "1 node, 2 ranks" in head and "CPU" in head and "MiB" in head, head
    assert "last lines of rank 0" in text
    assert "\u2588" in text, "no memory in the history"
    assert "\x1b[32m" in s.tmux("capture-pane", "-p", "-e"), "running is green"
    s.keys("a")
    s.until("rank 1 ")
    for _ in range(3):
        s.keys("Down")
    s.until("last lines of rank 1")
    s.keys("q")
    s.until("left 0")


def test_bars_on_a_wide_screen_and_plain_letters_elsewhere(job, screens):
    s = screens(160, 50, job.pid, env="LC_ALL=C")
    text = s.until("0-1")
    node = next(line for line in text.splitlines() if "0-1" in line)
    assert "||||||||||" in node and "#" in node, node  # memory: this node uses most of all
    assert text.isascii()


def test_filter_and_help(job, screens):
    s = screens(80, 24, job.pid)
    s.until("0-1")
    s.keys("a")
    s.until("rank 0 ")
    s.keys("/", "rank 1", "Enter")
    until(lambda: "rank 1 " in s.text() and "    rank 0 " not in s.text(), "the filter")
    assert "/rank 1" in s.text().splitlines()[-1]
    s.keys("Escape")
    s.until("    rank 0 ")
    s.keys("?")
    assert "filter: nodes, states, ranks" in s.until("q back")
    s.keys("q")
    s.until("q leave")
    s.keys("/", "nosuch", "Enter")
    until(lambda: "0-1" not in s.text(), "nothing passes")
    s.keys("Escape")
    s.until("0-1")


def test_restarts_and_their_causes(tmp_path, screens):
    (tmp_path / "w.py").write_text(
        "import os, time\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and os.environ['RANK'] == '1':\n"
        "    raise RuntimeError('bad data shard 17')\n"
        "time.sleep(600)\n")
    # The name of a machine may be long; what happened there is not cut for it.
    named = ["unshare", "-u" if os.geteuid() == 0 else "-ur", "sh", "-c", 'hostname gpu-node-017-rack-3; exec "$@"', "sh"]
    j = subprocess.Popen([*named, MUSTER, "run", "--standalone", "--nproc-per-node=2", "--max-restarts=1", tmp_path / "w.py"],
                         stderr=(tmp_path / "err").open("w"))
    try:
        until(lambda: muster("status", j.pid, check=False).returncode == 0, "the agent answers")
        s = screens(80, 24, j.pid)
        text = s.until("1 restart")
        cause = next(line for line in text.splitlines() if "restart" in line and "ago" in line)
        assert "rank 1: RuntimeError: bad data shard 17 (w.py:3)" in cause
        s.keys("q")
    finally:
        j.terminate()
        j.wait(60)


def test_a_store_has_a_name(screens):
    j = subprocess.Popen([MUSTER, "store", "--bind", "127.0.0.1", "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        address = j.stdout.readline().split()[-1]
        s = screens(80, 24, address)
        s.until(f"muster store {address}")
        s.keys("q")
    finally:
        j.terminate()
        j.wait(60)


def test_without_colours(job, screens):
    s = screens(80, 24, job.pid, env="NO_COLOR=1")
    s.until("0-1")
    coloured = s.tmux("capture-pane", "-p", "-e")
    assert "\x1b[31m" not in coloured and "\x1b[32m" not in coloured and "\x1b[33m" not in coloured


def test_bad_input():
    done = muster("top", "nosuchjob", check=False)
    assert done.returncode == 1 and "no job nosuchjob" in done.stderr
    done = muster("top", "--nonsense", check=False)
    assert done.returncode == 2
    done = muster("top", check=False)  # not a terminal
    assert done.returncode == 1 and "needs a terminal" in done.stderr


def test_an_unknown_terminal_is_a_sentence(job, screens):
    s = screens(80, 24, job.pid, env="TERM=nosuchterm")
    s.until("ncurses does not know this terminal")


def test_the_end_of_the_job_is_told(tmp_path, screens):
    j = start(tmp_path, "--standalone", page=None)
    running(j)
    s = screens(80, 24, j.pid)
    s.until("0-1")
    (tmp_path / "end").touch()
    stop(j)
    s.until(f"no job {j.pid} of yours")
    s.keys("q")
    s.until("left 0")
