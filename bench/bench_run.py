#!/usr/bin/env python3
"""`muster run` beside torchrun, hydra's mpiexec and a plain fork and exec.

Prints a table, and writes JSON lines to build/bench/run.jsonl. `--quick` measures less
often and leaves out what takes minutes.
"""
from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MUSTER = [str(ROOT / "build/muster"), "run"]
TORCHRUN = [str(ROOT / "build/venv/bin/torchrun")]
HYDRA = shutil.which("mpiexec.hydra")
QUICK = "--quick" in sys.argv
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}
TRUE = ["--standalone", "--no-python", "/bin/true"]
rows = []


def row(work: str, who: str, value: float, unit: str) -> float:
    rows.append({"bench": "run", "work": work, "who": who, "value": round(value, 3), "unit": unit})
    print(f"{work:44s} {who:12s} {value:12.2f} {unit}", flush=True)
    return value


def once(command, **more) -> tuple[float, float]:
    """(wall, CPU with all children)"""
    began = time.perf_counter()
    p = subprocess.Popen(command, env=ENV, stderr=subprocess.DEVNULL, **more)
    _, status, usage = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    if p.returncode:
        sys.exit(f"{command}: exit code {p.returncode}")
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime


def middle(command, times: int) -> float:
    return statistics.median(once(command)[0] for _ in range(times)) * 1000


def start() -> None:
    n = 10 if QUICK else 50
    work = "one /bin/true, start to end"
    limit = row(work, "fork+exec", middle(["/bin/true"], n), "ms")
    ours = row(work, "muster", middle(MUSTER + TRUE, n), "ms")
    row(work, "over limit", ours - limit, "ms")
    if HYDRA:
        row(work, "hydra", middle([HYDRA, "-n", "1", "/bin/true"], n), "ms")
    theirs = row(work, "torchrun", middle(TORCHRUN + TRUE, 2 if QUICK else 5), "ms")
    row(work, "ratio", theirs / ours, "x")
    work = "256 x /bin/true"
    row(work, "muster", middle(MUSTER + ["--nproc-per-node=256"] + TRUE, 3 if QUICK else 10), "ms")
    if HYDRA:
        row(work, "hydra", middle([HYDRA, "-n", "256", "/bin/true"], 3 if QUICK else 10), "ms")


def memory() -> None:
    for who, command in (("muster", MUSTER), ("torchrun", TORCHRUN)):
        with tempfile.TemporaryDirectory() as tmp:
            script = Path(tmp) / "w.sh"
            script.write_text('touch "$0.up"; exec sleep 60\n')
            p = subprocess.Popen(command + ["--standalone", "--no-python", "sh", str(script)], env=ENV,
                                 stderr=subprocess.DEVNULL)
            while not Path(f"{script}.up").exists():
                time.sleep(0.01)
            time.sleep(0.3)
            peak = next(line for line in Path(f"/proc/{p.pid}/status").read_text().splitlines() if "VmHWM" in line)
            p.terminate()
            p.wait()
            row("peak memory of the agent", who, int(peak.split()[1]) / 1024, "MB")


STAMP = 'echo $EPOCHREALTIME >> "$0.$1"'


def restart() -> None:
    """From a worker's SIGKILL to the first line of the next attempt's first worker."""
    for who, command in (("muster", MUSTER), ("torchrun", TORCHRUN)):
        gaps = []
        for _ in range(2 if QUICK else (10 if who == "muster" else 4)):
            with tempfile.TemporaryDirectory() as tmp:
                script = Path(tmp) / "w.sh"
                script.write_text(f'if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then set -- back; {STAMP}; exit 0; fi\n'
                                  f'if [ $RANK = 0 ]; then sleep 0.5; set -- gone; {STAMP}; kill -9 $$; fi\n'
                                  "exec sleep 60\n")
                once(command + ["--standalone", "--nproc-per-node=2", "--max-restarts=1", "--no-python", "bash",
                                str(script)])
                gone = float((Path(tmp) / "w.sh.gone").read_text())
                back = min(map(float, (Path(tmp) / "w.sh.back").read_text().split()))
                gaps.append(back - gone)
        row("SIGKILL of a worker to the next attempt", who, statistics.median(gaps) * 1000, "ms")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def lost_node() -> None:
    """Two nodes and a spare; one node is killed. torchrun never notices by itself."""
    gaps = []
    for _ in range(1 if QUICK else 5):
        with tempfile.TemporaryDirectory() as tmp:
            script, port = Path(tmp) / "w.sh", free_port()
            script.write_text(f"set -- up; {STAMP}; exec sleep 60\n")
            command = MUSTER + ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=b", f"--rdzv-endpoint=127.0.0.1:{port}",
                                "--no-python", "bash", str(script)]
            agents = [subprocess.Popen(command, env=ENV, stderr=subprocess.DEVNULL) for _ in range(2)]
            stamps = lambda: (Path(tmp) / "w.sh.up").read_text().split() if (Path(tmp) / "w.sh.up").exists() else []
            while len(stamps()) < 2:
                time.sleep(0.01)
            agents.append(subprocess.Popen(command, env=ENV, stderr=subprocess.DEVNULL))
            time.sleep(1)  # the spare takes its seat
            began = time.time()
            agents[1].kill()
            by = time.monotonic() + 60
            while len(stamps()) < 4 and time.monotonic() < by:
                time.sleep(0.005)
            gaps.append(float(stamps()[-1]) - began if len(stamps()) >= 4 else 60.0)
            for a in agents:
                a.kill()
                a.wait()
    row("node killed to the new group (with a spare)", "muster", statistics.median(gaps) * 1000, "ms")


def tee() -> None:
    """Lines from four workers: what the tee itself costs is what it costs more than the
    same job with its output in files alone."""
    total = 200 << 20 if QUICK else 1 << 30
    share = total // 4
    program = f"yes 'step 12345 loss 0.12345678 lr 0.0001 tokens/s 123456' | head -c {share - share % 53}"
    for who, command in (("muster", MUSTER), ("torchrun", TORCHRUN)):
        cost = {}
        for how in ("-r", "-t"):
            with tempfile.TemporaryDirectory(dir=ROOT / "build") as tmp, open(f"{tmp}/console", "wb") as console:
                wall, cpu = once(command + ["--standalone", "--nproc-per-node=4", "--log-dir", tmp, how, "1",
                                               "--no-python", "sh", "-c", program], stdout=console)
                cost[how] = (wall, cpu)
                if how == "-t":
                    lines = int(subprocess.run(["wc", "-l", f"{tmp}/console"], capture_output=True, text=True,
                                               check=True).stdout.split()[0])
        work = f"tee of {total >> 20} MB of lines from 4 workers"
        row(work, who, cost["-t"][0], "s wall")
        row(work, who, cost["-t"][1] - cost["-r"][1], "s CPU")
        row(work, who, lines, "lines")


def idle() -> None:
    seconds = 10 if QUICK else 60
    for who, command in (("muster", MUSTER), ("torchrun", TORCHRUN)):
        p = subprocess.Popen(command + ["--standalone", "--nproc-per-node=8", "--no-python", "sleep", "1000"], env=ENV,
                             stderr=subprocess.DEVNULL)
        time.sleep(8)

        def used() -> tuple[int, int]:
            stat = Path(f"/proc/{p.pid}/stat").read_text().rpartition(")")[2].split()
            switches = 0
            for task in Path(f"/proc/{p.pid}/task").iterdir():
                for line in (task / "status").read_text().splitlines():
                    if line.startswith("voluntary_ctxt_switches"):
                        switches += int(line.split()[1])
            return int(stat[11]) + int(stat[12]), switches

        before = used()
        time.sleep(seconds)
        after = used()
        p.terminate()
        p.wait()
        row("idle agent with 8 workers", who, 100 * (after[0] - before[0]) / os.sysconf("SC_CLK_TCK") / seconds, "% CPU")
        row("idle agent with 8 workers", who, (after[1] - before[1]) / seconds, "wake-ups/s")


def main() -> None:
    if not Path(TORCHRUN[0]).exists():
        sys.exit("no torchrun in build/venv: run scripts/deps bench")
    for part in (start, memory, restart, lost_node, tee, idle):
        part()
    out = ROOT / "build/bench/run.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(json.dumps(r) + "\n" for r in rows))


main()
