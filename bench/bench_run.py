#!/usr/bin/env python3
"""`muster run` beside torchrun, hydra's mpiexec and a plain fork and exec.

Prints each figure as it comes and a table with ratios and goals at the end, which is
Markdown; JSON lines go to build/bench/run.jsonl. `--parts start,tee` runs some of the
parts, `--quick` measures less often and shorter.
"""
from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/interop"))

from run_job import DAEMONS, free_port, marked  # noqa: E402

MUSTER = [str(ROOT / "build/muster"), "run"]
TORCHRUN = [str(ROOT / "build/venv/bin/torchrun")]
BENCH = str(ROOT / "build/muster-bench")
HYDRA = shutil.which("mpiexec.hydra")
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}
TRUE = ["--standalone", "--no-python", "/bin/true"]
STAMP = 'echo $EPOCHREALTIME >> "$0.$1"'
QUICK = False
rows: list[dict] = []
table = Table()
goal = table.add


def row(work: str, who: str, value: float, unit: str) -> float:
    rows.append({"bench": "run", "work": work, "who": who, "value": round(value, 3), "unit": unit})
    print(f"{work:46s} {who:12s} {value:12.2f} {unit}", flush=True)
    return value


def once(command, **more) -> tuple[float, float]:
    """(wall, CPU with all children), in seconds"""
    began = time.perf_counter()
    p = subprocess.Popen(command, env=ENV, stderr=subprocess.DEVNULL, **more)
    _, status, usage = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    if p.returncode:
        sys.exit(f"{command}: exit code {p.returncode}")
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime


def at_most(seconds: float, command) -> float:
    """Its wall time, or more than the given one: then it is ended."""
    began = time.perf_counter()
    p = subprocess.Popen(command, env=ENV, stderr=subprocess.DEVNULL)
    try:
        p.wait(seconds)
    except subprocess.TimeoutExpired:
        p.kill()
        p.wait()
    return time.perf_counter() - began


def in_turn(commands: dict[str, list], times: int) -> dict[str, tuple[float, float]]:
    """Medians of wall and CPU in ms; taken in turn, so that a mood of the machine meets all."""
    got: dict[str, list] = {who: [] for who in commands}
    for _ in range(times):
        for who, command in commands.items():
            got[who].append(once(command))
    return {who: tuple(1000 * statistics.median(column) for column in zip(*pairs)) for who, pairs in got.items()}


def show(work: str, figures: dict[str, tuple[float, float]]) -> None:
    for who, (wall, cpu) in figures.items():
        row(work, who, wall, "ms")
        row(work, who, cpu, "ms CPU")


def start() -> None:
    work = "one /bin/true, start to end"
    commands = {"fork+exec": ["/bin/true"], "muster": MUSTER + TRUE}
    if HYDRA:
        commands["hydra"] = [HYDRA, "-n", "1", "/bin/true"]
    got = in_turn(commands, 10 if QUICK else 100)
    got |= in_turn({"torchrun": TORCHRUN + TRUE}, 1 if QUICK else 5)
    show(work, got)
    ours, limit, theirs = got["muster"][0], got["fork+exec"][0], got["torchrun"][0]
    row(work, "ratio", theirs / ours, "x")
    hydra = got.get("hydra", (float("nan"),))[0]
    goal("`run --standalone --no-python /bin/true`", f"{ours:.1f} ms",
         f"torchrun {theirs:.0f} ms ({theirs / ours:.0f}x), hydra {hydra:.1f} ms, fork and exec {limit:.1f} ms",
         "300x torchrun, faster than hydra, limit + 4 ms",
         theirs / ours >= 300 and not ours >= hydra and ours <= limit + 4)


def many() -> None:
    work = "256 x /bin/true"
    commands = {"muster": MUSTER + ["--nproc-per-node=256"] + TRUE}
    if HYDRA:
        commands["hydra"] = [HYDRA, "-n", "256", "/bin/true"]
    got = in_turn(commands, 3 if QUICK else 15)
    show(work, got)
    if HYDRA:
        (ours, cpu), (theirs, their_cpu) = got["muster"], got["hydra"]
        goal(work, f"{ours:.0f} ms, {cpu:.0f} ms CPU", f"hydra {theirs:.0f} ms, {their_cpu:.0f} ms CPU", "faster",
             ours < theirs)


def memory() -> None:
    peaks = {}
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
            peaks[who] = row("peak memory of the agent", who, int(peak.split()[1]) / 1024, "MB")
    goal("peak memory of the agent", f"{peaks['muster']:.1f} MB",
         f"torchrun {peaks['torchrun']:.0f} MB ({peaks['torchrun'] / peaks['muster']:.0f}x)", "4 MB", peaks["muster"] <= 4)


def restart() -> None:
    """From a worker's SIGKILL to the first line of the next attempt's first worker."""
    work = "SIGKILL of a worker to the next attempt"
    medians = {}
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
        medians[who] = row(work, who, statistics.median(gaps) * 1000, "ms")
    goal(work, f"{medians['muster']:.1f} ms",
         f"torchrun {medians['torchrun']:.0f} ms ({medians['torchrun'] / medians['muster']:.0f}x)", "10 ms",
         medians["muster"] <= 10)


def listens(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def lost() -> None:
    """Two nodes and a spare; one node is killed. torchrun never notices by itself."""
    gaps = []
    for _ in range(1 if QUICK else 5):
        with tempfile.TemporaryDirectory() as tmp:
            script, port = Path(tmp) / "w.sh", free_port()
            script.write_text(f"set -- up; {STAMP}; exec sleep 60\n")
            command = MUSTER + ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=b", f"--rdzv-endpoint=127.0.0.1:{port}",
                                "--no-python", "bash", str(script)]
            agents = [subprocess.Popen(command, env=ENV, stderr=subprocess.DEVNULL)]
            while not listens(port):
                time.sleep(0.01)  # the first is the host, the second the one that is lost
            agents.append(subprocess.Popen(command, env=ENV, stderr=subprocess.DEVNULL))
            up = Path(tmp) / "w.sh.up"
            stamps = lambda: up.read_text().split() if up.exists() else []
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
    work = "node killed to the new group, with a spare"
    ours = row(work, "muster", statistics.median(gaps) * 1000, "ms")
    goal(work, f"{ours:.0f} ms", "torchrun: never, within 60 s", "1 s", ours < 1000)


def orphans() -> None:
    """The agent is killed at a random moment under workers that fork daemons, twice each."""
    work, times, rng = "SIGKILL of the agent until nothing is left", 5 if QUICK else 100, random.Random(5)
    gaps, left = [], 0
    with tempfile.TemporaryDirectory() as tmp:
        script = Path(tmp) / "w.sh"
        script.write_text(DAEMONS)

        def killed(command, after: float, patience: float) -> tuple[float, int]:
            mark = f"{tmp}-{time.monotonic_ns()}"
            p = subprocess.Popen(command + ["--standalone", "--nproc-per-node=2", "--no-python", "sh", str(script), mark],
                                 env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(after)
            began = time.monotonic()
            p.kill()
            p.wait()
            while (rest := marked(mark)) and time.monotonic() < began + patience:
                time.sleep(0.002)
            gap = time.monotonic() - began
            for pid in rest:
                os.kill(pid, signal.SIGKILL)
            return gap, len(rest)

        for _ in range(times):
            gap, rest = killed(MUSTER, rng.uniform(0, 0.2), 20)
            gaps.append(gap)
            left += rest
        _, theirs = killed(TORCHRUN, 5, 3)
    worst = row(work, "muster", 1000 * max(gaps), "ms, the worst")
    row(work, "muster", 1000 * statistics.median(gaps), "ms, the median")
    row(work, "torchrun", theirs, "processes left after 3 s")
    goal(f"{work}, {times} times", f"{worst:.0f} ms at the worst, {left} left", f"torchrun: {theirs} processes run on",
         "200 ms", worst <= 200 and left == 0)


def agent_cpu(command, **more) -> tuple[float, float]:
    """(wall, CPU of the agent's own process), in seconds; the latter as of its last moments."""
    began, used = time.perf_counter(), 0
    p = subprocess.Popen(command, env=ENV, stderr=subprocess.DEVNULL, **more)
    stat = Path(f"/proc/{p.pid}/stat")
    while p.poll() is None:
        with open(stat) as f:
            fields = f.read().rpartition(")")[2].split()
        used = max(used, int(fields[11]) + int(fields[12]))
        time.sleep(0.02)
    if p.returncode:
        sys.exit(f"{command}: exit code {p.returncode}")
    return time.perf_counter() - began, used / os.sysconf("SC_CLK_TCK")


def tee() -> None:
    """Lines from four workers through the agent to the console, every one looked at."""
    total = (64 << 20 if QUICK else 1 << 30)
    count = total // 4 // 64
    work = f"tee of {total >> 20} MB of lines from 4 workers"
    got = {}
    for who, command in (("muster", MUSTER), ("torchrun", TORCHRUN)):
        with tempfile.TemporaryDirectory(dir=ROOT / "build") as tmp:
            with open(f"{tmp}/console", "wb") as console:
                wall, cpu = agent_cpu(
                    command + ["--standalone", "--nproc-per-node=4", "--log-dir", tmp, "-t", "1", "--no-python", "sh", "-c",
                               f"exec {BENCH} lines $RANK {count}"], stdout=console)
            with open(f"{tmp}/console", "rb") as console:
                check = subprocess.run([BENCH, "lines-check", "4", str(count)], stdin=console, capture_output=True, text=True)
            lines = json.loads(check.stdout)
        row(work, who, wall, "s wall")
        row(work, who, cpu, "s CPU")
        for what in ("good", "torn", "astray", "lost"):
            row(work, who, lines[what], f"lines {what}")
        got[who] = (wall, cpu, lines)
    (wall, cpu, lines), (their_wall, their_cpu, theirs) = got["muster"], got["torchrun"]
    bad = lambda l: l["torn"] + l["astray"] + l["lost"]
    goal(f"tee of {total >> 20} MB, 4 workers, {4 * count / 1e6:.1f} M lines",
         f"{wall:.1f} s, {cpu:.1f} s CPU, {bad(lines)} lines harmed",
         f"torchrun {their_wall:.0f} s, {their_cpu:.0f} s CPU ({their_cpu / cpu:.0f}x), {bad(theirs)} harmed",
         "5x less CPU, all whole", their_cpu / cpu >= 5 and bad(lines) == 0)


def usage(pid: int) -> tuple[int, int]:
    """(ticks of CPU, times that a thread went to sleep)"""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    switches = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                switches += int(line.split()[1])
    return int(stat[11]) + int(stat[12]), switches


def idle() -> None:
    """Agents with eight sleeping workers each, all at once: an idle one disturbs nobody."""
    seconds = 10 if QUICK else 60
    work = f"idle agent with 8 workers, {seconds} s"
    agents = {}
    for who, command in (("muster", MUSTER), ("torchrun", TORCHRUN)):
        agents[who] = subprocess.Popen(command + ["--standalone", "--nproc-per-node=8", "--no-python", "sleep", "1000"],
                                       env=ENV, stderr=subprocess.DEVNULL)
    time.sleep(8)
    pids = {"muster": [agents["muster"].pid], "torchrun": [agents["torchrun"].pid]}
    for _ in range(2):  # its keeper, and below that its guard
        pid = pids["muster"][-1]
        pids["muster"] += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    sums = lambda who: [sum(column) for column in zip(*(usage(pid) for pid in pids[who]))]
    before = {who: sums(who) for who in pids}
    time.sleep(seconds)
    after = {who: sums(who) for who in pids}
    got = {}
    for who, p in agents.items():
        p.terminate()
        p.wait()
        ticks, switches = (a - b for a, b in zip(after[who], before[who]))
        got[who] = (row(work, who, 100 * ticks / os.sysconf("SC_CLK_TCK") / seconds, "% CPU"),
                    row(work, who, switches, "wake-ups"))
    beats = seconds / 5 + 1
    goal(work, f"{got['muster'][0]:.2f} % CPU, {got['muster'][1]:.0f} wake-ups",
         f"torchrun {got['torchrun'][0]:.2f} % CPU, {got['torchrun'][1]:.0f} wake-ups", "heartbeats alone (each 5 s)",
         got["muster"][1] <= beats)


def dns() -> None:
    """The machine's name is in no file, and the name server takes questions and is silent."""
    work = "start with a DNS server that never answers"
    if os.geteuid():
        print(f"{work}: left out, only root can set it up", flush=True)
        return
    with tempfile.TemporaryDirectory() as tmp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.79", 53))
        files = {"resolv.conf": "nameserver 127.0.0.79\n", "hosts": "127.0.0.1 localhost\n", "nsswitch.conf": "hosts: files dns\n",
                 "hosts-known": "127.0.0.1 localhost nobody-knows\n"}
        for name, text in files.items():
            (Path(tmp) / name).write_text(text)

        def wrap(command, hosts="hosts"):
            sources = {"resolv.conf": "resolv.conf", "nsswitch.conf": "nsswitch.conf", "hosts": hosts}
            mounts = " && ".join(f"mount --bind {tmp}/{source} /etc/{name}" for name, source in sources.items())
            return ["unshare", "-m", "-u", "sh", "-c", f'hostname nobody-knows && {mounts} && exec "$@"', "sh", *command]

        figures = in_turn({"muster, DNS well": wrap(MUSTER + TRUE, "hosts-known"), "muster": wrap(MUSTER + TRUE)},
                          3 if QUICK else 20)
        theirs = 1000 * at_most(40, wrap(TORCHRUN + TRUE))
    for who, (wall, _) in figures.items():
        row(work, who, wall, "ms")
    row(work, "torchrun", theirs, "ms")
    ours, well = figures["muster"][0], figures["muster, DNS well"][0]
    late = f"{theirs / 1000:.0f} s in all" if theirs < 40000 else "not through after 40 s"
    goal(work, f"{ours - well:+.1f} ms", f"torchrun: {late}", "unchanged", ours - well < 2)


PARTS = (start, many, memory, restart, lost, orphans, tee, dns, idle)


def main() -> None:
    global QUICK
    p = argparse.ArgumentParser()
    p.add_argument("--quick", action="store_true")
    p.add_argument("--parts", default=",".join(f.__name__ for f in PARTS))
    args = p.parse_args()
    QUICK = args.quick
    if not Path(TORCHRUN[0]).exists():
        sys.exit("no torchrun in build/venv: run scripts/deps bench")
    known = {f.__name__: f for f in PARTS}
    for name in args.parts.split(","):
        known[name]()
    out = ROOT / "build/bench/run.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(json.dumps(r) + "\n" for r in rows))
    table.show()


main()
