#!/usr/bin/env python3
"""What the verdict costs, and how quickly a job stops as one, beside torchrun in the same run.

Prints each figure as it comes and a table with goals at the end; JSON lines go to build/bench/verdict.jsonl. `--quick`
measures less often.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/interop"))

from run_job import free_port  # noqa: E402

MUSTER = [str(ROOT / "build/muster"), "run"]
TORCHRUN = [str(ROOT / "build/venv/bin/torchrun")]
SIM = ROOT / "build/muster-sim"
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}
rows: list[dict] = []
table = Table()


def row(work: str, who: str, value: float, unit: str) -> float:
    rows.append({"bench": "verdict", "work": work, "who": who, "value": round(value, 3), "unit": unit})
    print(f"{work:46s} {who:12s} {value:12.2f} {unit}", flush=True)
    return value


def median(values: list[float]) -> float:
    return statistics.median(values)


def run_once(command: list[str], **streams) -> tuple[float, float]:
    """(seconds, CPU seconds of it and of all that it started); what comes on stderr is read as any reader would."""
    room = [bytearray(1 << 17)]
    began = time.perf_counter()
    with subprocess.Popen(command, env=ENV, **streams) as p:
        if p.stderr:
            while os.readv(p.stderr.fileno(), room):
                pass
        _, status, used = os.wait4(p.pid, 0)
        took = time.perf_counter() - began
        p.returncode = os.waitstatus_to_exitcode(status)
    if p.returncode:
        sys.exit(f"{command}: exit code {p.returncode}")
    return took, used.ru_utime + used.ru_stime


# --- a start: workers whose stderr is watched, beside workers whose stderr is left alone


def start(times: int, workers: int = 128) -> None:
    """In turns, and the median of the differences: what else the machine does is the same for both. CPU time counts
    where cores are shared, since a start waits for little but its processes."""
    command = [*MUSTER, "--standalone", f"--nproc-per-node={workers}", "--no-python", "/bin/true"]
    master, terminal = os.openpty()
    for kind, streams in (("pipe", {"stderr": subprocess.PIPE}), ("terminal", {"stdout": terminal, "stderr": terminal})):
        wall, cpu = [], []
        for _ in range(times):
            alone = run_once(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            watched = run_once(command, **streams)
            wall.append((watched[0] - alone[0]) / workers * 1e6)
            cpu.append((watched[1] - alone[1]) / workers * 1e6)
        more = row(f"stderr watched ({kind}), a worker", "muster", median(wall), "us")
        used = row(f"stderr watched ({kind}), CPU a worker", "muster", median(cpu), "us")
        table.add(f"start with stderr watched ({kind}), more for each worker", f"{more:.0f} us (CPU {used:.0f} us)", "/dev/null", "50 us", more <= 50)
    os.close(master)
    os.close(terminal)


# --- 1 GB of stderr

WRITER = """import os, sys, time
size, at_once, took = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
b = (b'x' * 79 + b'\\n') * at_once
t = time.perf_counter()
for i in range(size // len(b)): os.write(2, b)
open(took, 'w').write(str(time.perf_counter() - t))
"""


def flood(command: list[str], size: int, at_once: int, where: Path) -> tuple[float, float]:
    """(seconds that the worker took to write, CPU of everything but the reader)"""
    took = where / "took"
    took.unlink(missing_ok=True)
    used = run_once([*command, sys.executable, "-c", WRITER, str(size), str(at_once), str(took)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=where)
    return float(took.read_text()), used[1]


def stderr_flood(times: int, size: int, at_once: int, how: str) -> None:
    """The same worker and the same reader, with and without the agent in between, in turns."""
    plain, ours, cpu = [], [], []
    agent = [*MUSTER, "--standalone", "--no-python"]
    with tempfile.TemporaryDirectory() as name:
        for _ in range(times):
            bare = flood([], size, at_once, Path(name))
            through = flood(agent, size, at_once, Path(name))
            plain.append(bare[0])
            ours.append(through[0])
            cpu.append(through[1] - bare[1])
    work = f"{size / 1e9:.1f} GB of stderr, {how}"
    row(work, "plain", median(plain) * 1e3, "ms")
    row(work, "muster", median(ours) * 1e3, "ms")
    slower = row(f"{work}: slower by", "muster", (median(ours) / median(plain) - 1) * 100, "%")
    used = row(f"{work}: CPU more", "muster", median(cpu), "s")
    table.add(f"{work}: slower by", f"{slower:.1f} %", "a pipe that somebody reads", "5 %", slower <= 5)
    table.add(f"{work}: CPU of the agent, with its start", f"{used:.2f} s", "-", "1 s", used <= 1)


# --- the last worker of the last node, after a final failure

NODES = 2
WORKER = 'exec 9>"$0"; if [ $RANK = 3 ]; then sleep 1; echo $EPOCHREALTIME >"$1"; exit 3; fi; exec sleep 8'


def stop_once(command: list[str], where: Path) -> float:
    """From the failure until no worker of either node is left."""
    fifo, stamp = where / "fifo", where / "stamp"
    for path in (fifo, stamp):
        path.unlink(missing_ok=True)
    os.mkfifo(fifo)
    port = free_port()
    both = ["--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=stop",
            "--local-addr=127.0.0.1", "--no-python", "bash", "-c", WORKER, str(fifo), str(stamp)]
    nodes = [subprocess.Popen([*command, *both[:5], f"--rdzv-conf=is_host={1 - i}", *both[5:]], env=ENV, cwd=where,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for i in range(NODES)]
    with open(fifo, "rb") as f:  # opens with the first worker, ends with the last
        f.read()
    gone = time.time()
    took = gone - float(stamp.read_text()) if stamp.exists() else float("nan")
    for node in nodes:
        try:
            node.wait(40)
        except subprocess.TimeoutExpired:
            node.kill()
            node.wait()
    return took


def stop(times: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        ours, theirs = [], []
        for _ in range(times):
            ours.append(stop_once(MUSTER, Path(name)))
        theirs.append(stop_once(TORCHRUN, Path(name)))
    a = row("final failure to the last worker gone, 2 nodes", "muster", median(ours) * 1e3, "ms")
    b = row("final failure to the last worker gone, 2 nodes", "torchrun", median(theirs) * 1e3, "ms")
    table.add("final failure to the last worker gone, 2 nodes", f"{a:.0f} ms", f"torchrun {b:.0f} ms", "100 ms", a <= 100)


def crowd() -> None:
    """1,000 nodes and the coordinator, each message encoded and decoded, in one process."""
    out = subprocess.run([ROOT / "build/tests/unit/test_hub_cost"], text=True, capture_output=True, check=False)
    found = [line for line in (out.stdout + out.stderr).splitlines() if "nodes: a verdict took" in line]
    if not found:
        print("build/tests/unit/test_hub_cost is not built: `ninja -C build tests/unit/test_hub_cost`")
        return
    ms = float(found[-1].split("took")[1].split()[0])
    row("verdict on 1,000 simulated nodes", "muster", ms, "ms")
    table.add("failure to verdict on 1,000 simulated nodes", f"{ms:.0f} ms", "-", "1 s", ms <= 1000)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    start(11 if quick else 41)
    stderr_flood(5 if quick else 9, 1000 * 1000 * 1000, 800, "64 kB at once")
    stderr_flood(3, (50 if quick else 1000) * 1000 * 1000, 1, "a line at once")
    stop(3 if quick else 9)
    crowd()
    table.show()
    out = ROOT / "build/bench/verdict.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return 0


sys.exit(main())
