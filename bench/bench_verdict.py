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
import threading
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


# --- a start: workers whose stderr is watched, beside workers whose stderr is left alone


def start_once(workers: int, stderr) -> float:
    began = time.perf_counter()
    done = subprocess.run([*MUSTER, "--standalone", f"--nproc-per-node={workers}", "--no-python", "/bin/true"], env=ENV, stderr=stderr, check=False)
    if done.returncode:
        sys.exit(f"a start of {workers} workers: exit code {done.returncode}")
    return time.perf_counter() - began


def start(times: int, workers: int = 128) -> None:
    watched, alone = [], []
    for _ in range(times):
        alone.append(start_once(workers, subprocess.DEVNULL))
        watched.append(start_once(workers, subprocess.PIPE))
    more = (median(watched) - median(alone)) / workers * 1e6
    row(f"start of {workers}, stderr left alone", "muster", median(alone) * 1e3, "ms")
    row(f"start of {workers}, stderr watched", "muster", median(watched) * 1e3, "ms")
    table.add("start with stderr watched, more for each worker", f"{row('watched stderr, a worker', 'muster', more, 'us'):.0f} us", "/dev/null",
              "50 us", more <= 50)


# --- 1 GB of stderr

WRITER = "import os,sys,time\nb=b'x'*79+b'\\n'\nb*=800\nt=time.perf_counter()\nfor i in range(int(sys.argv[1])//len(b)): os.write(2,b)\n" \
         "open(sys.argv[2],'w').write(str(time.perf_counter()-t))\n"


def cpu_of(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
        words = f.read().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def flood(command: list[str], size: int, where: Path) -> tuple[float, float]:
    """(seconds that the worker took to write, CPU of the process that was started)"""
    took = where / "took"
    took.unlink(missing_ok=True)
    with subprocess.Popen([*command, sys.executable, "-c", WRITER, str(size), str(took)], env=ENV, stderr=subprocess.PIPE,
                          stdout=subprocess.DEVNULL, cwd=where) as p:
        cpu = [0.0]

        def watch() -> None:
            while p.poll() is None:
                try:
                    cpu[0] = cpu_of(p.pid)
                except OSError:
                    return
                time.sleep(0.01)

        watcher = threading.Thread(target=watch)
        watcher.start()
        assert p.stderr
        fd = p.stderr.fileno()
        while os.read(fd, 1 << 20):
            pass
        watcher.join()
        p.wait()
    return float(took.read_text()), cpu[0]


def stderr_flood(times: int, size: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        plain, ours, cpu = [], [], []
        for _ in range(times):
            plain.append(flood([], size, where)[0])
            seconds, used = flood([*MUSTER, "--standalone", "--no-python"], size, where)
            ours.append(seconds)
            cpu.append(used)
    gb = size / 1e9
    row(f"{gb:.1f} GB of stderr into a pipe", "plain", median(plain) * 1e3, "ms")
    row(f"{gb:.1f} GB of stderr into a pipe", "muster", median(ours) * 1e3, "ms")
    slower = (median(ours) / median(plain) - 1) * 100
    table.add(f"{gb:.1f} GB of stderr: slower by", f"{row('slower by', 'muster', slower, '%'):.1f} %", "a pipe that somebody reads", "5 %", slower <= 5)
    table.add(f"{gb:.1f} GB of stderr: CPU of the agent", f"{row('CPU of the agent', 'muster', median(cpu), 's'):.2f} s", "-", "1 s", median(cpu) <= 1)


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
    start(7 if quick else 41)
    stderr_flood(1 if quick else 3, (200 if quick else 1000) * 1000 * 1000)
    stop(3 if quick else 9)
    crowd()
    table.show()
    out = ROOT / "build/bench/verdict.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return 0


sys.exit(main())
