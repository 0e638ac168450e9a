"""A job with --rdzv-serve on the hosts of a rig, for tests/hosts/test_serve.py and tests/trials/serve."""
from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Sequence

from rig import MUSTER, PYTHON, ROOT, Host, Process, Rig

TRAIN = str(Path(__file__).with_name("serve_train.py"))
SLEEP = str(Path(__file__).with_name("serve_sleep.py"))
UP = re.compile(r"up rank (\d+) of (\d+) master (\S+) at ([\d.]+)")


def now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


class Job:
    def __init__(self, rig: Rig, tmp: Path, *options: str, script: str = SLEEP, serving: int = 0,
                 nnodes: str = "", endpoint: str = "", serve: bool = True) -> None:
        count = len(rig.hosts)
        serving = serving or count
        self.rig, self.tmp, self.script, self.options = rig, tmp, script, list(options)
        if serve:
            self.options.append("--rdzv-serve")
        self.nnodes = nnodes or f"{count // 2 + 1}:{count}"
        self.endpoint = endpoint or ",".join(h.name for h in rig.hosts[:serving])
        self.nodes: dict[int, Process] = {}
        self.past: list[Process] = []  # of hosts that were killed: their losses count too

    def start(self, *which: int) -> None:
        for i in which or range(len(self.rig.hosts)):
            if i in self.nodes:
                self.past.append(self.nodes[i])
            self.nodes[i] = self.rig[i].start(
                [MUSTER, "run", f"--nnodes={self.nnodes}", "--nproc-per-node=1", "--max-restarts=1",
                 "--rdzv-backend=etcd-v3", f"--rdzv-endpoint={self.endpoint}", "--rdzv-id=job",
                 *self.options, self.script, str(self.tmp)],
                PYTHON_EXEC=PYTHON, OMP_NUM_THREADS="1")

    def round(self, which: Sequence[int], after: float, world: int = 0, timeout: float = 90) -> tuple[float, str]:
        """When the last of these had a worker in a round that began after that time, and its MASTER_ADDR."""
        end = now() + timeout
        world = world or len(which)
        while True:
            ups = []
            for i in which:
                found = [m for m in UP.finditer(self.nodes[i].output())
                         if float(m[4]) > after and int(m[2]) == world]
                ups += found[-1:]
                code = self.nodes[i].popen.poll()
                assert code is None, f"{self.rig[i].name} ended with {code}:\n{self.said()}"
            if len(ups) == len(which) and len({m[3] for m in ups}) == 1 \
                    and sorted(int(m[1]) for m in ups) == list(range(world)):
                return max(float(m[4]) for m in ups), ups[0][3]
            assert now() < end, f"no round of {world} within {timeout} s:\n{self.said()}"
            time.sleep(0.02)

    def kill(self, i: int) -> float:
        """Kills everything on the host at once and leaves its network as it is. Returns when that was."""
        host, at = self.rig[i], now()
        while found := host.processes():
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self.nodes[i].popen.wait()
        return at

    def losses(self) -> list[tuple[int, float]]:
        return [(int(m[1]), float.fromhex(m[2])) for n in [*self.past, *self.nodes.values()]
                for m in re.finditer(r"LOSS (\d+) (\S+)", n.output())]

    def said(self) -> str:
        return "\n".join(f"---- {self.rig[i].name}\n{n.output()[-5000:]}" for i, n in self.nodes.items())

    def end(self) -> None:
        (self.tmp / "stop").touch()
        for i, n in self.nodes.items():
            assert n.wait(120) == 0, self.said()
        for host in self.rig.hosts:
            assert host.processes() == {}, host.processes()
