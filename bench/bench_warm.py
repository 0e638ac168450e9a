#!/usr/bin/env python3
"""What --warm is worth: ours warm and torchrun side by side in one run, with real DDP on gloo.

    bench/bench_warm.py [--times N] [--only ROW,...] [--kinds warm,torchrun,cold,auto] [--patience S]

Each figure is the median of N trials (5). torchrun runs with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which gloo
finds keys of the last attempt in the shared store and a restart may never end. Where it does not come back all the same
it is tried once, for --patience seconds (60). Prints a table with the goals and appends JSON lines to build/bench/warm.jsonl. The load of the machine is
printed with each row: on a machine that is not quiet, only the ratios mean something. The row `slow` needs root.
"""
from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/interop"))
from ports import free_port  # noqa: E402

VENV = ROOT / "build/venv/bin"
TRAIN = ROOT / "bench/warm_train.py"
KINDS = {"torchrun": [str(VENV / "torchrun")], "cold": [str(ROOT / "build/muster"), "run"],
         "warm": [str(ROOT / "build/muster"), "run", "--warm"],
         "auto": [str(ROOT / "build/muster"), "run", "--warm=auto"]}
START = 240  # seconds for a job to begin: torchrun with 8 workers on a loaded machine needs a minute
NEVER = float("nan")


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "MUSTER_", "TORCHELASTIC"))}
    return dict(kept, OMP_NUM_THREADS="1", PYTHON_EXEC=str(VENV / "python"), **more)


def below(pid: int) -> list[int]:
    """All processes below this one."""
    out, todo = [], [pid]
    while todo:
        try:
            task = todo.pop()
            kids = [int(k) for k in Path(f"/proc/{task}/task/{task}/children").read_text().split()]
        except OSError:
            continue
        out += kids
        todo += kids
    return out


class Job:
    """The agents of one job, each on this machine."""

    def __init__(self, kind: str, where: Path, workers: int, nodes: str = "1", agents: int = 1, before=(), **env: str):
        self.steps, self.agents, self.kind = where / "steps", [], kind
        if kind == "torchrun":
            env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        port = free_port()
        place = ["--standalone"] if nodes == "1" else [
            f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=bench"]
        self.began = time.time()
        for i in range(agents):
            host = [f"--rdzv-conf=is_host={int(i == 0)}"] if nodes != "1" else []
            with (where / f"log{i}").open("w") as log:
                self.agents.append(subprocess.Popen(
                    [*before, *KINDS[kind], *place, *host, "--max-restarts=1000", f"--nproc-per-node={workers}", str(TRAIN)],
                    env=environment(STEPS_FILE=str(self.steps), **env), stdout=subprocess.DEVNULL, stderr=log))

    def rows(self, rank: int) -> list[tuple[float, int, int]]:
        """Time, pid and size of the group of each step that is written to its end."""
        try:
            text = Path(f"{self.steps}.{rank}").read_text()
        except OSError:
            return []
        found = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
        return [(float(r[0]), int(r[2]), int(r[3])) for r in found]

    def step_of_all(self, world: int, after: float, without: set[int], patience: float) -> float:
        """When every rank of a group of that size had finished a step after that moment, none of them in one of the old
        processes. NEVER if that takes longer than patience, or the agents have ended."""
        by = time.time() + patience
        while time.time() < by and any(a.poll() is None for a in self.agents):
            first = [min((t for t, pid, size in self.rows(rank) if t > after and pid not in without and size == world),
                         default=None) for rank in range(world)]
            if None not in first:
                return max(first)
            time.sleep(0.003)
        return NEVER

    def start(self, world: int) -> float:
        """Seconds from the command to the first step of all."""
        return self.step_of_all(world, 0, set(), START) - self.began

    def pids(self, world: int) -> list[int]:
        return [self.rows(rank)[-1][1] for rank in range(world)]

    def end(self) -> None:
        """Ours clean up after themselves. torchrun waits half a minute for workers that do not listen, and leaves them
        behind when it is killed."""
        everybody = [p for a in self.agents for p in below(a.pid)] if self.kind == "torchrun" else []
        for a in self.agents:
            a.send_signal(signal.SIGKILL if self.kind == "torchrun" else signal.SIGTERM)
        for pid in everybody:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for a in self.agents:
            try:
                a.wait(30)
            except subprocess.TimeoutExpired:
                a.kill()
                a.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


def folder(where: Path, i: int) -> Path:
    (where / str(i)).mkdir()
    return where / str(i)


# --- the rows: each gives a list of figures, empty if there are none ---------------------------------------------------


def restart(kind: str, where: Path, o, workers: int = 2, nodes: str = "1", agents: int = 1) -> list[float]:
    """SIGKILL of one worker to the next step of all."""
    out, world = [], workers * agents
    with Job(kind, where, workers, nodes, agents) as job:
        if (took := job.start(world)) != took:
            return []
        for i in range(o.times):
            time.sleep(0.3)
            old, moment = job.pids(world), time.time()
            os.kill(old[i % world], signal.SIGKILL)
            took = job.step_of_all(world, moment, set(old), o.patience) - moment
            out.append(took)
            if took != took:
                break
    return out


def import_alone() -> float:
    began = time.time()
    subprocess.run([VENV / "python", "-c", "import torch, torch.distributed, torch._dynamo, torch.nn.parallel"], check=True,
                   env=environment())
    return time.time() - began


def first_step(kind: str, where: Path, o, workers: int) -> list[float]:
    """From the command to the first step. Before each start one import alone, for comparison."""
    out = []
    for i in range(o.times):
        if kind == "warm":
            o.imports.append(import_alone())
        with Job(kind, folder(where, i), workers) as job:
            out.append(job.start(workers))
    return out


def node_lost(kind: str, where: Path, o) -> list[float]:
    """1:2, the node that does not host is killed: to the next step of the other."""
    out = []
    for i in range(1 if kind == "torchrun" else o.times):
        with Job(kind, folder(where, i), 1, "1:2", 2) as job:
            if (took := job.start(2)) != took:
                continue
            time.sleep(0.3)
            old = job.pids(2)
            gone = below(job.agents[1].pid)
            moment = time.time()
            job.agents[1].kill()
            for pid in gone if kind == "torchrun" else ():  # A machine that dies takes its workers along.
                os.kill(pid, signal.SIGKILL)
            out.append(job.step_of_all(1, moment, set(old), o.patience) - moment)
    return out


def alone(kind: str, where: Path, o) -> list[float]:
    """1:2 with one node there: a worker is killed."""
    out = []
    with Job(kind, where, 1, "1:2") as job:
        if (took := job.start(1)) != took:
            return []
        for _ in range(o.times):
            time.sleep(0.3)
            old, moment = job.pids(1), time.time()
            os.kill(old[0], signal.SIGKILL)
            took = job.step_of_all(1, moment, set(old), o.patience) - moment
            out.append(took)
            if took != took:
                break
    return out


def private_mb(kind: str, where: Path, o, workers: int = 8) -> list[float]:
    """Of all workers together, before their first step; what the interpreter that is shared holds is not in it."""
    go = where / "go"
    with Job(kind, where, workers, HOLD_FILE=str(go)) as job:
        by = time.time() + START
        names = [Path(f"{job.steps}.up.{rank}") for rank in range(workers)]
        while not all(n.exists() and n.read_text().endswith("\n") for n in names):
            if time.time() > by:
                return []
            time.sleep(0.05)
        total = 0
        for n in names:
            rollup = Path(f"/proc/{n.read_text().strip()}/smaps_rollup").read_text()
            total += sum(int(kb) for kb in re.findall(r"^Private_\w+:\s+(\d+)", rollup, re.M))
        return [total / 1024]


def restarts(kind: str, where: Path, o, count: int = 1000) -> list[float]:
    """So many restarts of two workers: by how much the most of agent, guard, keeper and interpreter has grown, in MB, and
    what is left in the end, which must be nothing. What is bounded is full by the 300th restart (the record of the job's
    life, the keys of the last rounds), so growth is what lies between the first and the last three of the looks at
    every hundredth restart from there on."""
    if kind != "warm":
        return []
    mark = f"bench-warm-{os.getpid()}-{time.monotonic_ns()}"
    (where / "w.py").write_text(
        "import os, sys\nn = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "if os.environ['RANK'] == '0': open('at', 'w').write(str(n) + '\\n')\n"
        f"sys.exit(n < {count + 20})\n")

    def at() -> int:
        try:
            return int((where / "at").read_text())
        except (OSError, ValueError):
            return -1

    def sizes() -> dict[str, int]:
        out = {}
        for pid in [agent.pid, *below(agent.pid)]:
            status = Path(f"/proc/{pid}/status").read_text()
            name, rss = re.search(r"Name:\t(.*)", status)[1], re.search(r"VmRSS:\s+(\d+)", status)
            if name != "python" and rss:  # Workers are of one attempt alone; they have the interpreter's name at first.
                out[name] = max(out.get(name, 0), int(rss[1]))
        return out

    def sizes_at(attempt: int) -> dict[str, int]:
        while at() < attempt and agent.poll() is None:
            time.sleep(0.01)
        while agent.poll() is None:
            try:
                return sizes()
            except OSError:  # Somebody ended while we looked.
                pass
        return {}

    with (where / "log").open("w") as log:
        agent = subprocess.Popen([KINDS["cold"][0], "run", "--warm=json", "--standalone", "--nproc-per-node=2",
                                  "--max-restarts=100000", "w.py"], cwd=where, env=environment(MARK=mark), stderr=log)
    looks = [sizes_at(n) for n in range(300, count + 1, 100)]
    if agent.wait(600) != 0:
        return []
    time.sleep(0.5)
    left = [p for p in Path("/proc").glob("[0-9]*/environ") if mark.encode() in reading(p)]
    seen = {name: [kb[name] for kb in looks if name in kb] for name in looks[0]}
    grown = {name: statistics.median(kb[-3:]) - statistics.median(kb[:3]) for name, kb in seen.items()}
    o.notes.append(f"restarts 300 to {count}: " + ", ".join(f"{n} {kb[0]} to {kb[-1]} KB" for n, kb in seen.items()) +
                   f"; {len(left)} processes left")
    return [max(grown.values()) / 1024 + 1000 * len(left)]


def reading(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def slow_start(kind: str, where: Path, o) -> list[float]:
    """Command to the first step of 8 workers, 1 ms between them and the file system of the packages. Mounted anew each
    time, so nothing of it is cached. For --warm=auto it is not the first start of this script: that one, at full
    speed, has taught it which files will be read."""
    packages = subprocess.run([VENV / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                              check=True, text=True, stdout=subprocess.PIPE).stdout.strip()
    before = [str(ROOT / "build/slowfs"), os.path.realpath(packages), "1000"]
    out, cache = [], {"XDG_CACHE_HOME": str(where / "cache")}
    if kind == "auto":
        with Job(kind, folder(where, -1), 1, **cache):
            by = time.time() + START
            while not list(where.glob("cache/muster/*.files")) and time.time() < by:
                time.sleep(0.1)
    for i in range(min(o.times, 3)):
        with Job(kind, folder(where, i), 8, before=before, **cache) as job:
            out.append(job.start(8))
    asked = [int(n) for log in where.glob("*/log0") for n in re.findall(r"slowfs: (\d+) requests", log.read_text())]
    o.notes.append(f"slow, {kind}: {', '.join(f'{t:.2f}' for t in out)} s; {asked} requests")
    return out


# --- the table ---------------------------------------------------------------------------------------------------------

ROWS = {
    "restart2": ("2 workers: SIGKILL of one to the next step", lambda k, w, o: restart(k, w, o, 2), "s",
                 "0.150, 20x", lambda w, t, o: w <= 0.150 and (t is None or t >= 20 * w)),
    "restart4": ("4 workers: the same", lambda k, w, o: restart(k, w, o, 4), "s", "0.300", lambda w, t, o: w <= 0.300),
    "nodes": ("2 nodes x 2 workers: the same", lambda k, w, o: restart(k, w, o, 2, "2", 2), "s", "0.300",
              lambda w, t, o: w <= 0.300),
    "first2": ("command to first step, 2 workers", lambda k, w, o: first_step(k, w, o, 2), "s", "import + 0.5",
               lambda w, t, o: w <= statistics.median(o.imports) + 0.5),
    "first8": ("command to first step, 8 workers", lambda k, w, o: first_step(k, w, o, 8), "s", "import + 1",
               lambda w, t, o: w <= statistics.median(o.imports) + 1),
    "lost": ("node killed to the next step, 1:2", node_lost, "s", "1", lambda w, t, o: w <= 1),
    "alone": ("worker killed, 1:2 with one node there", alone, "s", "0.300", lambda w, t, o: w <= 0.300),
    "memory": ("private memory of 8 workers, before a step", private_mb, "MB", "a fifth",
               lambda w, t, o: t is None or w <= t / 5),
    "restarts": ("1,000 restarts: growth, and who is left", restarts, "MB", "none, within 0.02", lambda w, t, o: w <= 0.02),
    "slow": ("8 workers, packages 1 ms away: first step", slow_start, "s", "", lambda w, t, o: True),
}


def figure(values: list[float], unit: str, patience: float) -> tuple[float | None, str]:
    """The median, and how it is shown. One that took longer than we waited stands at the upper end."""
    if not values:
        return None, "-"
    median = statistics.median(v if v == v else float("inf") for v in values)
    if median == float("inf"):
        return median, f"> {patience:.0f} {unit}"
    return median, f"{median:.{1 if unit == 'MB' else 3}f} {unit}"


def one_row(word: str, kinds: list[str], o, record) -> str:
    title, measure, unit, goal, reached = ROWS[word]
    began, got, shown = time.time(), {}, []
    o.imports.clear()
    for kind in kinds:
        with tempfile.TemporaryDirectory() as name:
            values = measure(kind, Path(name), o)
        got[kind], text = figure(values, unit, o.patience)
        shown.append(f"{kind} {text}" if kind == "torchrun" else text)
        record.write(json.dumps({"row": word, "kind": kind, "unit": unit, "goal": goal, "load": os.getloadavg()[0],
                                 "values": [v if v == v else None for v in values], "time": time.time()}) + "\n")
        record.flush()
    if o.imports:
        o.notes.append(f"{word}: one import alone {statistics.median(o.imports):.3f} s (of {len(o.imports)})")
        goal += f" = {statistics.median(o.imports) + (0.5 if word == 'first2' else 1):.3f}"
    warm, theirs = got.get("warm"), got.get("torchrun")
    if warm and theirs and theirs != float("inf"):
        shown[kinds.index("torchrun")] += f" ({theirs / warm:.0f}x)"
    yes = "-" if warm is None or not goal else "yes" if reached(warm, theirs, o) else "NO"
    return (f"| {title:42} |" + "".join(f" {t:>24} |" for t in shown) +
            f" {goal:20} | {yes:7} |  load {os.getloadavg()[0]:.1f}, {time.time() - began:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--only", default=",".join(r for r in ROWS if r != "slow" or os.getuid() == 0))
    parser.add_argument("--kinds", default="warm,torchrun")
    parser.add_argument("--patience", type=float, default=60)
    o = parser.parse_args()
    o.notes, o.imports = [], []
    kinds, began = o.kinds.split(","), time.time()
    record_path = ROOT / "build/bench/warm.jsonl"
    record_path.parent.mkdir(parents=True, exist_ok=True)
    print(f"medians of {o.times} on {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} at the start\n")
    print(f"| {'':42} |" + "".join(f" {k:>24} |" for k in kinds) + f" {'goal':20} | reached |\n| --- |" +
          " ---: |" * len(kinds) + " --- | --- |", flush=True)
    with record_path.open("a") as record:
        for word in o.only.split(","):
            print(one_row(word, kinds, o, record), flush=True)
            for kind in ("cold", "auto") if word == "slow" else ():
                if kind not in kinds:
                    one_row(word, [kind], o, record)  # for the note
    print("", *o.notes, f"{time.time() - began:.0f} s in all", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
