"""Jobs of `muster run` and torchrun for tests: started, waited for, cleaned up by pid."""
from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from patience import clock
from ports import free_port  # noqa: F401 (for whoever starts jobs)

ROOT = Path(__file__).resolve().parents[2]
MUSTER = ROOT / os.environ.get("MUSTER_BUILD", "build") / "muster"
VENV = ROOT / "build" / "venv" / "bin"
PATIENCE = 120


def environment(**more) -> dict:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "TORCHELASTIC_"))}
    return {**env, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": str(VENV / "python"), **more}


class Job:
    """One agent, its output in a file (or stdout elsewhere)."""

    def __init__(self, where: Path, name: str, *words, kind="muster", env=None, stdin=subprocess.DEVNULL, stdout=None,
                 before=()):
        self.out = where / f"{name}.out"
        program = [str(MUSTER), "run"] if kind == "muster" else [str(VENV / "torchrun")]
        with self.out.open("w") as out:
            self.process = subprocess.Popen([*map(str, before), *program, *map(str, words)], stdout=stdout or out,
                                            stderr=out, stdin=stdin, cwd=where, env=environment(**(env or {})))

    @property
    def pid(self) -> int:
        return self.process.pid

    def text(self) -> str:
        return self.out.read_text(errors="replace")

    def until(self, what, patience=PATIENCE):
        """Waits until the text holds `what` (or what(text) is true)."""
        holds = what if callable(what) else lambda text: what in text
        by = clock() + patience
        while not holds(self.text()):
            assert clock() < by, f"no {what} in {self.out.name}:\n{self.text()[-3000:]}"
            assert self.process.poll() is None or holds(self.text()), \
                f"{self.out.name} ended without {what}:\n{self.text()[-3000:]}"
            time.sleep(0.02)

    def wait(self, patience=PATIENCE) -> int:
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.out.name} goes on:\n{self.text()[-3000:]}") from None

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)  # The guard does the rest.
            self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


def run(where: Path, *words, kind="muster", env=None, patience=PATIENCE):
    """Runs to the end: (exit code, output)."""
    with Job(where, f"run{time.monotonic_ns()}", *words, kind=kind, env=env) as job:
        return job.wait(patience), job.text()


# A worker that forks two daemons, one of them deaf to signals; its argument marks them all.
DAEMONS = """
(setsid sh -c 'trap "" TERM INT HUP; while :; do sleep 0.1; done' "$1" >/dev/null 2>&1 &)
( ( sh -c 'while :; do sleep 0.1; done' "$1" >/dev/null 2>&1 & ) & )
echo up
while :; do sleep 0.1; done
"""


def marked(mark: str) -> list[int]:
    """Living processes with the mark in their command line or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if mark.encode() in text and state != "Z":
            found.append(int(entry.name))
    return found


def until_gone(mark: str, patience=20):
    by = clock() + patience
    while left := marked(mark):
        assert clock() < by, [(p, Path(f"/proc/{p}/cmdline").read_bytes()) for p in left]
        time.sleep(0.01)
