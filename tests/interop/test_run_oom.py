"""A worker that the kernel kills for want of memory, in a control group of the test's own:
the log gives the cause of death its name. Needs root and a memory controller, of either
version; skipped where there is none to be had."""
import os
import re
import subprocess
import uuid
from pathlib import Path

import pytest

from run_job import MUSTER, environment

LIMIT = 96 << 20
EATER = "x = []\nwhile True: x.append(bytearray(1 << 20))"
# The worker's child dies, and the worker gives up with a code of its own.
PARENT = f"import subprocess, sys; sys.exit(7 if subprocess.run([sys.executable, '-c', {EATER!r}]).returncode else 0)"


def hierarchy():
    """Where groups with a memory limit can be made, and the name of the limit's file."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        where, kind, options = Path(left.split()[4]), right.split()[0], right.split()[2].split(",")
        control = where / "cgroup.subtree_control"
        if kind == "cgroup2" and control.is_file() and "memory" in control.read_text().split():
            return where, "memory.max"
        if kind == "cgroup" and "memory" in options:
            return where, "memory.limit_in_bytes"
    return None, None


@pytest.fixture
def group():
    where, limit = hierarchy()
    if os.geteuid() != 0 or not where:
        pytest.skip("no memory controller that groups can be made in")
    made = where / f"muster-test-{uuid.uuid4().hex[:8]}"
    try:
        made.mkdir()
        (made / limit).write_text(str(LIMIT))
    except OSError as e:
        if made.exists():
            made.rmdir()
        pytest.skip(f"no group with a limit can be made in {where}: {e}")
    try:
        for name in ("memory.swap.max", "memory.swappiness"):
            if (made / name).exists():
                (made / name).write_text("0")
        yield made
    finally:
        for pid in (made / "cgroup.procs").read_text().split():
            os.kill(int(pid), 9)
        made.rmdir()


def run(group, tmp_path, *words):
    enter = f'echo $$ >"{group}/cgroup.procs"; exec "$@"'
    return subprocess.run(["sh", "-c", enter, "-", MUSTER, "run", "--standalone", *words], cwd=tmp_path,
                          env=environment(), capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("program,code", [(EATER, "-9"), (PARENT, "7")], ids=["a worker", "its child"])
def test_out_of_memory(group, tmp_path, program, code):
    done = run(group, tmp_path, "--no-python", "python3", "-c", program)
    assert done.returncode == 1, done
    assert f"failed (exitcode: {code}) local_rank: 0" in done.stderr, done.stderr
    assert "out of memory: the kernel's OOM killer has killed 1 of the processes" in done.stderr, done.stderr
    assert "Give the job more memory" in done.stderr


def test_killed_by_somebody(group, tmp_path):
    """SIGKILL alone is not blamed on the memory."""
    done = run(group, tmp_path, "--no-python", "sh", "-c", "kill -9 $$$$")
    assert done.returncode == 1 and "exitcode  : -9" in done.stderr
    assert "out of memory" not in done.stderr, done.stderr
    assert "OOM killer has not been at work in this job's cgroup" in done.stderr, done.stderr


def test_each_attempt_counts_its_own(group, tmp_path):
    """Out of memory at first, then a plain failure: said once."""
    script = f'[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exec python3 -c "{EATER}"; exit 4'
    done = run(group, tmp_path, "--max-restarts=1", "--no-python", "sh", "-c", script)
    assert done.returncode == 1 and "exitcode  : 4" in done.stderr, done.stderr
    assert done.stderr.count("OOM killer") == 1, done.stderr


def test_verdict_of_a_child(group, tmp_path):
    """A worker fails because a process of its own was killed, a data loader, say: the memory is named, too."""
    done = run(group, tmp_path, "--no-python", "python3", "-c", PARENT)
    last = done.stderr[done.stderr.rfind("muster: the job failed"):]
    assert re.match(r"muster: the job failed: rank 0 on .*: exited with code 7 without a word on stderr; the kernel killed a process of the job on "
                    r"this node for memory: the job's limit is 96 MiB \(cgroup \S+\), its peak was \d+ MiB\n", last), last


def test_verdict_has_figures(group, tmp_path):
    """Rank, control group, limit, peak, and which rank was the largest."""
    script = f'if [ $RANK = 1 ]; then exec python3 -c "{EATER}"; fi; exec sleep 60'
    done = run(group, tmp_path, "--nproc-per-node=2", "--no-python", "sh", "-c", script)
    assert done.returncode == 1, done.stderr
    last = done.stderr[done.stderr.rfind("muster: the job failed"):]
    found = re.match(r"muster: the job failed: rank 1 on \S+ \(local rank 1, pid \d+\): killed by the kernel for memory: the job's limit is 96 MiB "
                     r"\(cgroup (\S+)\), its peak was (\d+) MiB, this rank held (\d+) MiB \(the most of 2\)\n", last)
    assert found, last
    assert found.group(1).endswith(group.name)
    assert 80 <= int(found.group(2)) <= 96 and 40 <= int(found.group(3)) <= 120, last


def test_the_exit_code_says_memory(group, tmp_path):
    """137, also where a rule of the policy stops it."""
    (tmp_path / "eat.py").write_text(EATER)
    done = run(group, tmp_path, "--exit-codes=cause", "--restart-policy=oom:stop", "--max-restarts=3", "eat.py")
    assert done.returncode == 137, done.stderr
    assert "the policy says oom:stop: not restarted (exit code 137)" in done.stderr
