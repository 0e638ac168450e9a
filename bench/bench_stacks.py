#!/usr/bin/env python3
"""`muster stacks` of 16 ranks on 4 agents, and what --hang costs while nothing hangs.

Prints a table in Markdown, and writes JSON lines to build/bench/stacks.jsonl. Alone on the
machine it takes about two minutes. `--quick` measures less often and shorter.
"""
from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/interop"))

from run_job import MUSTER, Job, environment, free_port  # noqa: E402

CULPRIT = ROOT / "tests/interop/hang_culprit.py"
QUICK = "--quick" in sys.argv
rows: list[dict] = []
table = Table()


def row(work: str, ours: str, goal: str, met: bool, **figures) -> None:
    table.add(work, ours, "", goal, met)
    rows.append({"work": work, **figures})


def sixteen_ranks() -> None:
    port = free_port()
    words = ["--nnodes=4", "--nproc-per-node=4", "--rdzv-backend=c10d", f"--rdzv-id=sixteen-{port}",
             f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1", CULPRIT]
    with tempfile.TemporaryDirectory() as at:
        jobs = [Job(Path(at), f"node{i}", *words, env={"KINDS": "sleep", "VICTIM": "5"}) for i in range(4)]
        try:
            while not any("STUCK" in j.text() for j in jobs):
                time.sleep(0.1)
            time.sleep(3)
            took, whole, said = [], 0, ""
            for _ in range(3 if QUICK else 10):
                began = time.monotonic()
                said = subprocess.run([MUSTER, "stacks", str(jobs[0].pid)], capture_output=True, text=True,
                                      env=environment()).stdout
                took.append(time.monotonic() - began)
                whole += said.startswith("1 rank  (5, ") and "15 ranks (0-4, 6-15): broadcast" in said
            native = "native frames" not in said
            print(said, flush=True)
            row("stacks of 16 ranks on 4 agents", f"{max(took):.2f} s at most, {statistics.median(took):.2f} s mostly, "
                f"{whole} of {len(took)} whole, {'with' if native else 'without all'} native frames", "2 s",
                max(took) < 2 and whole == len(took), seconds=took, whole=whole, native=native)
        finally:
            for j in jobs:
                j.end()


def cpu_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def watching(*more: str) -> float:
    """Seconds of CPU that an agent with eight workers takes in a second."""
    seconds = 5 if QUICK else 25
    with tempfile.TemporaryDirectory() as at, \
         Job(Path(at), "job", "--standalone", "--nproc-per-node=8", *more, "--no-python", "/bin/sh", "-c",
             "echo UP; while :; do sleep 0.5; done") as job:
        job.until(lambda text: text.count("UP") == 8)
        time.sleep(1)
        before = cpu_ns(job.pid)
        time.sleep(seconds)
        return (cpu_ns(job.pid) - before) / 1e9 / seconds


def main() -> int:
    sixteen_ranks()
    without, with_it = watching(), watching("--hang=10m")
    row("8 workers, nothing hangs, --hang=10m", f"{with_it * 100:.3f} % of a core ({without * 100:.3f} % without)", "0.1 %",
        with_it - without < 0.001, without=without, with_it=with_it)
    (ROOT / "build/bench").mkdir(parents=True, exist_ok=True)
    (ROOT / "build/bench/stacks.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    table.show()
    return 0


sys.exit(main())
