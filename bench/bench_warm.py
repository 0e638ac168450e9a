#!/usr/bin/env python3
"""What --warm is worth: ours cold, ours warm and torchrun, side by side in one run.

    bench/bench_warm.py [--times N] [--only WORD,...] [--workers N]

Each row is the median of N trials with real DDP on gloo. Prints a table and appends JSON
lines to build/bench/warm.jsonl. The load of the machine is printed with it: on a machine
that is not quiet, only the ratios mean something.
"""
from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / "build/venv/bin"
TRAIN = ROOT / "bench/warm_train.py"
KINDS = {"torchrun": [str(VENV / "torchrun")], "cold": [str(ROOT / "build/muster"), "run"],
         "warm": [str(ROOT / "build/muster"), "run", "--warm"]}
PATIENCE = 120


def environment(steps: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "MUSTER_", "TORCHELASTIC"))}
    return dict(kept, OMP_NUM_THREADS="1", PYTHON_EXEC=str(VENV / "python"), STEPS_FILE=str(steps))


class Job:
    """The agents of one job, each on this machine."""

    def __init__(self, kind: str, where: Path, workers: int, nodes: str = "1", agents: int = 1):
        self.steps = where / "steps"
        self.began = time.time()
        port = free_port()
        place = ["--standalone"] if nodes == "1" else [
            f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=bench"]
        self.agents = []
        for i in range(agents):
            host = [f"--rdzv-conf=is_host={int(i == 0)}"] if nodes != "1" else []
            self.agents.append(subprocess.Popen(
                [*KINDS[kind], *place, *host, "--max-restarts=1000", f"--nproc-per-node={workers}", str(TRAIN)],
                env=environment(self.steps), stdout=subprocess.DEVNULL,
                stderr=(where / f"log{i}").open("w"), start_new_session=True))

    def last(self, rank: int) -> list[str] | None:
        try:
            text = Path(f"{self.steps}.{rank}").read_text()
        except OSError:
            return None
        lines = text[: text.rfind("\n") + 1].splitlines()
        return lines[-1].split() if lines else None

    def first_after(self, moment: float, world: int, patience: float = PATIENCE) -> float:
        """When all ranks of that many had finished a step that began after it."""
        by = time.time() + patience
        while time.time() < by:
            done = []
            for rank in range(world):
                try:
                    rows = [r.split() for r in Path(f"{self.steps}.{rank}").read_text().splitlines()]
                except OSError:
                    break
                rows = [float(r[0]) for r in rows if len(r) == 4 and float(r[0]) > moment and int(r[3]) == world]
                if not rows:
                    break
                done.append(min(rows))
            if len(done) == world:
                return max(done)
            time.sleep(0.005)
        return float("nan")

    def kill_worker(self, rank: int) -> float:
        moment = time.time()
        os.kill(int(self.last(rank)[2]), signal.SIGKILL)
        return moment

    def new_workers_after(self, moment: float, old: dict[int, str], world: int, patience: float = PATIENCE) -> float:
        by = time.time() + patience
        while time.time() < by:
            done = []
            for rank in range(world):
                try:
                    rows = [r.split() for r in Path(f"{self.steps}.{rank}").read_text().splitlines()]
                except OSError:
                    break
                rows = [r for r in rows if len(r) == 4 and r[2] not in old.values() and int(r[3]) == world
                        and float(r[0]) > moment]
                if not rows:
                    break
                done.append(float(rows[0][0]))
            if len(done) == world:
                return max(done)
            time.sleep(0.003)
        return float("nan")

    def pids(self, world: int) -> dict[int, str]:
        return {r: self.last(r)[2] for r in range(world)}

    def end(self):
        for a in self.agents:
            if a.poll() is None:
                a.send_signal(signal.SIGTERM)
        for a in self.agents:
            try:
                a.wait(20)
            except subprocess.TimeoutExpired:
                a.kill()
                a.wait()


def free_port() -> int:
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def restart(kind: str, where: Path, times: int, workers: int = 2, nodes: str = "1", agents: int = 1) -> list[float]:
    """SIGKILL of one worker to the step after it."""
    job, out, world = Job(kind, where, workers, nodes, agents), [], workers * agents
    try:
        if job.first_after(job.began, world) != job.first_after(job.began, world):
            return []
        for i in range(times):
            time.sleep(0.3)
            old = job.pids(world)
            moment = job.kill_worker(i % world)
            end = job.new_workers_after(moment, old, world)
            if end != end:
                break
            out.append(end - moment)
    finally:
        job.end()
    return out


def first_step(kind: str, where: Path, times: int, workers: int) -> list[float]:
    out = []
    for i in range(times):
        inner = where / str(i)
        inner.mkdir()
        job = Job(kind, inner, workers)
        try:
            out.append(job.first_after(job.began, workers) - job.began)
        finally:
            job.end()
    return out


def node_lost(kind: str, where: Path, times: int) -> list[float]:
    """1:2, the node that does not host is killed: to the next step of the other."""
    out = []
    for i in range(times):
        inner = where / str(i)
        inner.mkdir()
        job = Job(kind, inner, 1, "1:2", 2)
        try:
            if job.first_after(job.began, 2) != job.first_after(job.began, 2):
                continue
            old = job.pids(2)
            moment = time.time()
            job.agents[1].kill()
            end = job.new_workers_after(moment, old, 1)
            out.append(end - moment)
        finally:
            job.end()
    return out


def alone(kind: str, where: Path, times: int) -> list[float]:
    """1:2 with one node there: a worker is killed."""
    job, out = Job(kind, where, 1, "1:2", 1), []
    try:
        job.first_after(job.began, 1)
        for _ in range(times):
            time.sleep(0.3)
            old = job.pids(1)
            moment = job.kill_worker(0)
            out.append(job.new_workers_after(moment, old, 1) - moment)
    finally:
        job.end()
    return out


def private_mb(kind: str, where: Path, workers: int = 8) -> list[float]:
    """Of all workers together, after their first step; the server's is not in it."""
    job = Job(kind, where, workers)
    try:
        job.first_after(job.began, workers)
        total = 0
        for pid in job.pids(workers).values():
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Private_"):
                    total += int(line.split()[1])
        return [total / 1024]
    finally:
        job.end()


def one_import(times: int) -> float:
    rows = []
    for _ in range(times):
        began = time.time()
        subprocess.run([VENV / "python", "-c", "import torch, torch._dynamo, torch.distributed"], check=True,
                       env=dict(os.environ, OMP_NUM_THREADS="1"))
        rows.append(time.time() - began)
    return statistics.median(rows)


ROWS = {
    "restart2": ("2 workers: SIGKILL of one to the next step", lambda k, w, n: restart(k, w, n, 2), "s"),
    "restart4": ("4 workers: the same", lambda k, w, n: restart(k, w, n, 4), "s"),
    "nodes": ("2 nodes x 2 workers: the same", lambda k, w, n: restart(k, w, n, 2, "2", 2), "s"),
    "first2": ("command to first step, 2 workers", lambda k, w, n: first_step(k, w, n, 2), "s"),
    "first8": ("command to first step, 8 workers", lambda k, w, n: first_step(k, w, min(n, 2), 8), "s"),
    "lost": ("node killed to the next step, 1:2", lambda k, w, n: node_lost(k, w, min(n, 3)), "s"),
    "alone": ("worker killed, 1:2 with one node", lambda k, w, n: alone(k, w, n), "s"),
    "memory": ("private memory of 8 workers", lambda k, w, n: private_mb(k, w), "MB"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--only", default=",".join(ROWS))
    parser.add_argument("--kinds", default="torchrun,cold,warm")
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs; medians of {options.times}")
    print(f"one import of torch and torch._dynamo: {one_import(min(options.times, 3)):.2f} s", flush=True)
    print(f"{'':46}" + "".join(f"{k:>12}" for k in kinds))
    record = ROOT / "build/bench/warm.jsonl"
    record.parent.mkdir(parents=True, exist_ok=True)
    for word in options.only.split(","):
        title, measure, unit = ROWS[word]
        line = f"{title:46}"
        for kind in kinds:
            with tempfile.TemporaryDirectory() as name:
                got = [x for x in measure(kind, Path(name), options.times) if x == x]
            value = statistics.median(got) if got else None
            digits = 0 if unit == "MB" else 3
            line += f"{value:>9.{digits}f} {unit:2}" if got else f"{'-':>12}"
            with record.open("a") as f:
                f.write(json.dumps({"row": word, "kind": kind, "unit": unit, "values": got, "load": os.getloadavg()[0],
                                    "time": time.time()}) + "\n")
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
