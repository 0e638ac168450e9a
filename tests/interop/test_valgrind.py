"""The agent under valgrind's memcheck: a job with a restart, from start to end."""
from __future__ import annotations

import subprocess
from pathlib import Path

BUILD = Path(__file__).resolve().parents[2] / "build"
WORK = """
echo rank $RANK attempt $TORCHELASTIC_RESTART_COUNT
[ $TORCHELASTIC_RESTART_COUNT = 1 ] || [ $RANK = 0 ] || exit 3
"""


def test_the_agent_and_its_guard(tmp_path: Path) -> None:
    done = subprocess.run(
        ["valgrind", "--error-exitcode=77", "--leak-check=full",
         "--errors-for-leak-kinds=definite,indirect", "--trace-children=no",
         "--log-file=memcheck.%p", BUILD / "muster", "run", "--nproc-per-node=2",
         "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--max-restarts=1", "--tee=3",
         "--log-dir=logs", "--no-python", "sh", "-c", WORK],
        cwd=tmp_path, text=True, capture_output=True, timeout=280)
    # The agent has one; so have its guard and each worker, until it becomes the program.
    reports = {p.name: p.read_text() for p in tmp_path.glob("memcheck.*")}
    text = "\n".join(f"{name}:\n{report}" for name, report in reports.items())
    assert done.returncode == 0, done.stderr + text
    assert sorted(done.stdout.splitlines()) == [
        f"[default{rank}]:rank {rank} attempt {attempt}" for rank in (0, 1)
        for attempt in (0, 1)]
    summaries = [line for line in text.splitlines() if "ERROR SUMMARY:" in line]
    assert summaries, text
    assert all("ERROR SUMMARY: 0 errors" in line for line in summaries), text
