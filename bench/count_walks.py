"""How far one has to walk through the source to follow what a job does: `bench/count walks` runs it.

The programs are built with -finstrument-functions and without optimisation; bench/walk_trace.c,
preloaded, notes each function that is entered and left, and every read and write. Two agents, a store
and commands run on this machine, and something happens:

- join: node 1 waits, node 2 comes; from the first step of node 2's agent until its worker runs
- failure: the worker of node 2 is killed; until node 1 prints the cause of the job's failure
- warm restart: the same with --warm and a restart; until the workers of both nodes run again
- SET: from the caller's muster_store_set until the store is done with it
- status: `muster status JOB`, from its start to its end: node 1 is asked, and asks node 2

A walk is followed backwards from its end: what a process does at the time began when it read something,
which another process wrote (bytes are matched by their place in the stream), and so on until the
beginning. What a process does in between (a part of the walk) counts, nothing else that runs beside it.
Where the loop calls something without a read (a timer, a deferred call) the part is continued with
what the loop called before. A restart of two nodes has two walks, one to each worker; both count.

- hops: functions on the way. In a part that are those that are still active when it ends, since they
  have written; the calls of drivers that lead to a decision (a function in a core/), and in core/ the
  calls into other files; and where there are none of these, the last call. Functions that call
  nothing else are helpers and do not count, nor do base/, loop/, net/ and store/connect*, which only
  carry. Each function counts once for each process: whoever comes through it again knows it.
- files: in which these are
- returns: how often the walk goes on in a file that it was in before and had left

The same code gives about the same walk: a message may arrive in two pieces, and a timer may come in
between. Of several runs the one with the median of hops is taken.

By hand somebody counted in 79be2d8: join 172 hops, 33 files, 60 returns; failure 228, 31, 86; warm restart
391, 54, 157; SET 38, 12; status 133. By these rules (medians of three) it is 402, 66, 186; 301, 59, 119; 367,
60, 165; 39, 14; 128. The join is so much longer since its five connections are opened on the way. Runs
differ by up to a tenth.
"""
from __future__ import annotations

import bisect
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from older import ROOT, build, checkout

OPTIONS = ("-Doptimization=0", "-Dc_args=-finstrument-functions")
FOLDER = "build/walk"
CARRIERS = ("base/", "loop/", "net/", "store/connect")
SHELL_WORKER = ('echo "$EPOCHREALTIME $BASHPID" > "$0/new.$RANK"; '
                'mv "$0/new.$RANK" "$0/$RANK.$TORCHELASTIC_RESTART_COUNT"; exec sleep 100')
WARM_WORKER = """
import os, sys, time
at, rank, attempt = sys.argv[1], os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
text = f"{time.time()} {os.getpid()}"
with open(f"{at}/new.{rank}", "w") as f:
    f.write(text)
os.rename(f"{at}/new.{rank}", f"{at}/{rank}.{attempt}")
time.sleep(100)
"""

ENTERED, LEFT, READ, WRITTEN, STARTED, PAIRED = range(1, 7)  # as in walk_trace.c
UNIX, SENDS = 1 << 61, 1 << 60


@dataclass
class Step:
    at: float
    kind: int
    thread: int
    what: int
    count: int
    function: str = ""
    file: str = ""  # from src/
    root: bool = False  # called by the loop
    helper: bool = False  # calls nothing


@dataclass
class Call:
    """A function that was entered in a part of a walk, and what it called there."""
    step: Step
    active: bool  # at the end of the part
    calls: list[Call] = field(default_factory=list)


class Trace:
    """What one process did."""

    def __init__(self, path: Path, name: str) -> None:
        self.pid, self.name = int(path.name.split(".")[0]), name
        self.steps: list[Step] = []
        with path.open("rb") as f:
            raw = f.read(os.stat(f.fileno()).st_blocks * 512)  # its end is a hole
        for ns, kind, thread, what, count in struct.iter_unpack("=QIIQQ", raw[:len(raw) // 32 * 32]):
            if not kind:
                break
            self.steps.append(Step(ns / 1e9, kind, thread, what, count))
        self._give_names(path.with_suffix(".maps"))
        self._find_helpers()

    def _give_names(self, maps: Path) -> None:
        places = mapped(maps)
        starts = [place[0] for place in places]

        def object_of(address: int) -> tuple[str, int]:
            i = bisect.bisect(starts, address) - 1
            return (places[i][2], address - places[i][3]) if i >= 0 and address < places[i][1] else ("", 0)

        entered = [s for s in self.steps if s.kind == ENTERED]
        where = {a: object_of(a) for a in {s.what for s in entered}}
        by_loop = {a: "libuv" in object_of(a)[0] for a in {s.count for s in entered}}
        names: dict[int, tuple[str, str]] = {}
        for program in {p for p, _ in where.values() if p}:
            found = names_of(program, sorted(o for p, o in where.values() if p == program))
            names |= {a: found[o] for a, (p, o) in where.items() if p == program}
        for s in entered:
            s.function, s.file = names.get(s.what, ("?", ""))
            s.root = by_loop[s.count]

    def _find_helpers(self) -> None:
        stacks: dict[int, list[Step]] = {}
        for s in self.steps:
            stack = stacks.setdefault(s.thread, [])
            if s.kind == ENTERED:
                s.helper = True
                if stack:
                    stack[-1].helper = False
                stack.append(s)
            elif s.kind == LEFT:
                while stack and stack[-1].what != s.what:  # it was left by longjmp or exec
                    stack.pop()
                if stack:
                    s.root = stack.pop().root


def mapped(maps: Path) -> list[tuple[int, int, str, int]]:
    """start, end, file, and where the file begins"""
    first: dict[str, int] = {}
    out = []
    for line in maps.read_text().splitlines():
        if m := re.match(r"(\w+)-(\w+) \S+ \w+ \S+ \d+ +(/.*)", line):
            start, end, path = int(m[1], 16), int(m[2], 16), m[3]
            out.append((start, end, path, first.setdefault(path, start)))
    return sorted(out)


def names_of(program: str, addresses: list[int]) -> dict[int, tuple[str, str]]:
    """Function and file, from src/, of each; the file is empty if it is not ours."""
    out = subprocess.run(["addr2line", "-f", "-e", program], input="\n".join(map(hex, addresses)), capture_output=True,
                         text=True).stdout.split("\n")
    return {a: (name, place.rpartition(":")[0].rpartition("src/")[2] if "src/" in place else "")
            for a, name, place in zip(addresses, out[::2], out[1::2])}


class World:
    """All processes, and who wrote what another one read."""

    def __init__(self, at: Path, names: dict[int, str]) -> None:
        self.traces = [Trace(p, names.get(int(p.name.split(".")[0]), "")) for p in sorted(at.glob("*.trace"))]
        moves = sorted(((s.at, t, i) for t in self.traces for i, s in enumerate(t.steps) if s.kind in (READ, WRITTEN)),
                       key=lambda move: move[0])
        pairs: dict[int, int] = {}
        for s in (s for t in self.traces for s in t.steps if s.kind == PAIRED):
            pairs[s.what], pairs[s.count] = s.count, s.what
        ends: dict[int, list[int]] = {}  # of each write to a channel: up to which byte
        writers: dict[int, list[tuple[Trace, int]]] = {}
        for _, t, i in moves:
            s = t.steps[i]
            if s.kind == WRITTEN:
                last = ends.setdefault(s.what, [])
                last.append((last[-1] if last else 0) + s.count)
                writers.setdefault(s.what, []).append((t, i))
        read: dict[int, int] = {}
        self.cause: dict[tuple[int, int], tuple[Trace, int]] = {}
        for _, t, i in moves:
            s = t.steps[i]
            if s.kind != READ:
                continue
            channel = pairs.get(s.what | SENDS, 0) if s.what & UNIX else s.what
            read[channel] = read.get(channel, 0) + s.count
            n = bisect.bisect_left(ends.get(channel, []), read[channel])
            found = writers.get(channel, [])[n:n + 1]
            if found and found[0][0] is not t:
                self.cause[id(t), i] = found[0]

    def last_step(self, pid: int, end: float) -> tuple[Trace, int]:
        return max(((t, i) for t in self.traces if t.pid == pid for i, s in enumerate(t.steps) if s.at <= end),
                   key=lambda found: found[0].steps[found[1]].at)

    def back(self, trace: Trace, index: int, begin: float) -> Iterator[tuple[Trace, list[Call]]]:
        """The parts of the walk that led to this step, the last one first."""
        before: tuple[Trace, int] | None = (trace, index)
        while before:
            trace, index = before
            before, thread, part, closed = None, trace.steps[index].thread, [], 0
            for i in range(index, -1, -1):
                s = trace.steps[i]
                if s.at < begin:
                    break
                if s.thread != thread:
                    continue
                if s.kind == READ and (id(trace), i) in self.cause:
                    before = self.cause[id(trace), i]
                    break
                if s.kind == STARTED:
                    parents = [t for t in self.traces if t.pid == s.what and t.steps and t.steps[0].at < s.at]
                    before = self.last_step(s.what, s.at) if parents else None
                    break
                if s.kind == LEFT and s.root and i != index:
                    before = trace, i
                    break
                if s.kind == LEFT:
                    closed += 1
                elif s.kind == ENTERED:
                    part.append((s, closed))
                    closed = max(0, closed - 1)
            yield trace, nested(part[::-1])


def nested(part: list[tuple[Step, int]]) -> list[Call]:
    """Calls with what they called. The number says how deep among those that have returned: 0 is active."""
    top: list[Call] = []
    stack: list[tuple[int, Call]] = []
    for step, depth in part:
        while stack and stack[-1][0] and (depth == 0 or stack[-1][0] >= depth):
            stack.pop()
        call = Call(step, depth == 0)
        (stack[-1][1].calls if stack else top).append(call)
        stack.append((depth, call))
    return top


def counts(step: Step) -> bool:
    return bool(step.file) and not step.file.startswith(CARRIERS)


def decides(call: Call) -> bool:
    """Whether it is, or leads to, a decision: a function in a core/."""
    return counts(call.step) and "/core/" in call.step.file or any(decides(c) for c in call.calls if not c.step.helper)


def hops(call: Call) -> Iterator[Step]:
    """This function and those below it that are on the way."""
    if counts(call.step):
        yield call.step
    below = [c for c in call.calls if c.active or not c.step.helper]
    driver = "/core/" not in call.step.file
    for c in below:
        leads_on = decides(c) if driver else counts(c.step) and c.step.file != call.step.file
        if c.active or leads_on or (c is below[-1] and not any(b.active for b in below)):
            yield from hops(c)


class Walk:
    def __init__(self, parts: list[tuple[Trace, list[Call]]]) -> None:
        """The parts in their order."""
        self.hops: list[tuple[str, Step]] = []
        seen = set()
        for trace, calls in parts:
            for step in (s for call in calls if call.active or not call.step.helper for s in hops(call)):
                if (trace.pid, step.file, step.function) not in seen:
                    seen.add((trace.pid, step.file, step.function))
                    self.hops.append((trace.name or f"process {trace.pid}", step))

    def figures(self) -> str:
        files = [step.file for _, step in self.hops]
        turns = [b for a, b in zip([""] + files, files) if a != b]
        return f"{len(files)} hops, {len(set(files))} files, {len(turns) - len(set(turns))} returns"


class Reader(threading.Thread):
    """Notes when each line came."""

    def __init__(self, pipe) -> None:  # noqa: ANN001
        super().__init__(daemon=True)
        self.pipe, self.lines = pipe, []
        self.start()

    def run(self) -> None:
        for line in self.pipe:
            self.lines.append((time.time(), line))

    def when(self, pattern: str) -> float:
        return wait_for(lambda: next((at for at, line in list(self.lines) if re.search(pattern, line)), 0.0), self.text)

    def text(self) -> str:
        return "".join(line for _, line in self.lines)


def wait_for(what: Callable, said: Callable[[], str], seconds: float = 60):  # noqa: ANN201
    until = time.monotonic() + seconds
    while not (found := what()):
        if time.monotonic() > until:
            sys.exit(f"a walk does not come to its end:\n{said()}")
        time.sleep(0.01)
    return found


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Stage:
    """The programs of a commit under the tracer."""

    def __init__(self, commit: str, at: Path) -> None:
        self.commit, self.tree, self.at = commit, checkout(commit), at
        self.muster = build(commit, "muster", OPTIONS, FOLDER)
        library = at / "walk_trace.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-D_GNU_SOURCE", "-o", library, ROOT / "bench/walk_trace.c"], check=True)
        self.env = {**os.environ, "LD_PRELOAD": str(library), "WALK_DIR": str(at)}
        self.names: dict[int, str] = {}
        self.running: list[subprocess.Popen[str]] = []
        self.readers: list[Reader] = []
        self.stamps = at / "stamps"
        self.stamps.mkdir()
        self.run_id = ""

    def start(self, name: str, *argv: object) -> tuple[subprocess.Popen[str], Reader]:
        p = subprocess.Popen([str(a) for a in argv], env=self.env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT)
        self.names[p.pid] = name
        self.running.append(p)
        self.readers.append(Reader(p.stdout))
        return p, self.readers[-1]

    def close(self) -> None:
        for p in self.running:
            if p.poll() is None:
                p.terminate()
        for p in self.running:
            try:
                p.wait(20)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()

    def text(self) -> str:
        return "\n".join(r.text() for r in self.readers)

    def two_nodes(self, restarts: int = 0, warm: bool = False) -> None:
        """Starts a job whose node 2 comes when node 1 waits, and waits until both workers run."""
        port = free_port()
        self.run_id = f"walk{port}"
        command = [self.muster, "run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d",
                   f"--rdzv-endpoint=localhost:{port}", f"--rdzv-id={self.run_id}", f"--max-restarts={restarts}"]
        if warm:
            script = self.at / "worker.py"
            script.write_text(WARM_WORKER)
            command += ["--warm=os", script, self.stamps]
        else:
            command += ["--no-python", shutil.which("bash"), "-c", SHELL_WORKER, self.stamps]
        self.one = self.start("agent 1", *command)
        time.sleep(1)
        self.two = self.start("agent 2", *command)
        self.wait_for_attempt(0)
        time.sleep(1)  # until nobody has anything more to say

    def wait_for_attempt(self, attempt: int) -> None:
        wait_for(lambda: all((self.stamps / f"{rank}.{attempt}").exists() for rank in (0, 1)), self.text)

    def worker(self, rank: int, attempt: int) -> tuple[float, int]:
        """When it ran, and its pid."""
        when, pid = (self.stamps / f"{rank}.{attempt}").read_text().split()
        return float(when), int(pid)

    def far_rank(self) -> int:
        """The rank of node 2's worker."""
        for rank in (0, 1):
            pid = self.worker(rank, 0)[1]
            while pid > 1 and pid != self.two[0].pid:
                pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if pid > 1:
                return rank
        sys.exit("node 2 has no worker")

    def kill_far(self) -> float:
        pid = self.worker(self.far_rank(), 0)[1]
        now = time.time()
        os.kill(pid, signal.SIGKILL)
        return now

    def walk(self, begin: float, *ends: tuple[float, int]) -> Walk:
        """To what these processes did last before these times."""
        world = World(self.at, self.names)
        parts: list[tuple[Trace, list[Call]]] = []
        for end, pid in ends:
            parts += list(world.back(*world.last_step(pid, end), begin))[::-1]
        return Walk(parts)


def join(stage: Stage) -> Walk:
    stage.two_nodes()
    ran, pid = stage.worker(stage.far_rank(), 0)
    world = World(stage.at, stage.names)
    begin = min(s.at for t in world.traces if t.pid == stage.two[0].pid for s in t.steps
                if s.file.startswith("agent/core/agent_core"))
    return stage.walk(begin, (ran, pid))


def failure(stage: Stage) -> Walk:
    stage.two_nodes()
    begin = stage.kill_far()
    return stage.walk(begin, (stage.one[1].when("SIGKILL"), stage.one[0].pid))


def warm_restart(stage: Stage) -> Walk:
    stage.two_nodes(restarts=3, warm=True)
    begin = stage.kill_far()
    stage.wait_for_attempt(1)
    return stage.walk(begin, *(stage.worker(rank, 1) for rank in (0, 1)))


def store_set(stage: Stage) -> Walk:
    program = stage.at / "store_cli"
    version = re.search(r"version: '(\S+)'", (stage.tree / "meson.build").read_text())[1]
    library = build(stage.commit, f"libmuster.so.{version}", OPTIONS, FOLDER)
    subprocess.run(["cc", "-o", program, stage.tree / "tests/interop/store_cli.c", f"-I{stage.tree}/include", library,
                    f"-Wl,-rpath,{library.parent}"], check=True)
    port = free_port()
    store, _ = stage.start("store", stage.muster, "store", "--port", port)
    time.sleep(1)
    client, answers = stage.start("client", program, "tcp", "127.0.0.1", port, 5000)
    begin = 0.0
    for n in (2, 3):  # it has said that it is connected; the first SET grows tables
        wait_for(lambda: len(answers.lines) == n - 1, answers.text)
        time.sleep(0.2)
        begin = time.time()
        client.stdin.write("set key value\n")
        client.stdin.flush()
        wait_for(lambda: len(answers.lines) == n, answers.text)
    time.sleep(0.2)
    return stage.walk(begin, (time.time(), store.pid))


def status(stage: Stage) -> Walk:
    stage.two_nodes()
    begin = time.time()
    command, _ = stage.start("muster status", stage.muster, "status", stage.run_id)
    command.wait(30)
    return stage.walk(begin, (time.time(), command.pid))


WALKS = {"hosted join until the worker is started": join, "failure on node 2 until node 1 prints the cause": failure,
         "warm restart, two nodes": warm_restart, "store SET": store_set, "`muster status`, two nodes": status}


def measure(commit: str, runs: int, show: bool) -> dict[str, str]:
    figures = {}
    for name, play in WALKS.items():
        walks = []
        for _ in range(1 if show else runs):
            with tempfile.TemporaryDirectory() as at:
                stage = Stage(commit, Path(at))
                try:
                    walks.append(play(stage))
                finally:
                    stage.close()
        walk = sorted(walks, key=lambda w: len(w.hops))[len(walks) // 2]
        figures[f"walk: {name}"] = walk.figures()
        if show:
            print(f"\n{name}: {walk.figures()}")
            last = ""
            for process, step in walk.hops:
                print("{:14} {:42} {}".format("" if process == last else process, step.file, step.function))
                last = process
    return {} if show else figures
