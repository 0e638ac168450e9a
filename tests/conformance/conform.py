"""Runs one piece of shell twice, with torchrun and with muster in its place, and
compares what a user sees.

In the shell text `torchrun` is PyTorch's (through the zygote) the first time and a link
to our program the second time, in an empty directory each time. What is printed must be
equal once the names that differ from run to run are taken out (see `normalise`).
"""
from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/interop"))
from ports import free_ports  # noqa: E402

from argparse_words import older_words  # noqa: E402

VENV = ROOT / "build" / "venv"
MUSTER = Path(os.environ.get("MUSTER", ROOT / "build" / "muster"))
HERE = Path(__file__).resolve().parent
SUFFIX = r"_[a-z0-9_]{8}"
UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

# What both sides find in their directory. bg: a shell ignores SIGINT and SIGQUIT for
# what it starts in the background, which muster would respect (DIFFERENCES.md). up:
# torchrun's second node waits up to a minute if it comes before the first.
SETUP = r"""
cat > env.py <<'X'
import os,sys
for k in sorted(os.environ):
    if k.startswith(("RANK","LOCAL_","ROLE_","GROUP_","WORLD_","MASTER_","TORCHELASTIC_","TORCH_NCCL_A","OMP_")): print(k+"="+os.environ[k])
X
cat > trap.sh <<'X'
for s in INT TERM HUP QUIT USR1; do trap "echo $s; [ -n \"$STAY\" ] || exit 0" $s; done
echo up; i=0; while [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done
X
up() { until ss -ltnH "sport = :$PORT0" | grep -q .; do sleep 0.05; done; }
bg() { env --default-signal torchrun "$@" >bg.out 2>bg.err & P=$!; for i in $(seq 200); do grep -q up bg.out 2>/dev/null && break; sleep 0.05; done; sleep 0.1; [ -f .agent ] && A=$(cat .agent) || A=$P; }
"""


@dataclass
class Outcome:
    out: str
    code: int
    directory: Path

    def lines(self) -> list[str]:
        return self.out.splitlines()


@dataclass
class Pair:
    torch: Outcome
    muster: Outcome


class Zygote:
    def __init__(self, directory: Path):
        self.path = directory / "zygote"
        env = base_env()
        self.process = subprocess.Popen(
            [VENV / "bin/python", HERE / "zygote.py", self.path], env=env,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        line = self.process.stdout.readline()
        assert line == b"ready\n", line

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=30)


def base_env() -> dict[str, str]:
    return {
        "PATH": f"{VENV}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": os.environ.get("HOME", "/"),
        "VIRTUAL_ENV": str(VENV),
        "OMP_NUM_THREADS": "1",
        "LANG": "C.UTF-8",
    }


def end_all_in(directory: Path) -> None:
    """Kills what a case has left behind: processes that stand in its directory."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and directory in (p := Path(os.readlink(entry / "cwd")), *p.parents):
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            pass  # gone, or not ours


@dataclass
class Bench:
    """Where the cases of one test session run."""
    zygote: Zygote
    directory: Path
    kept: list[Path] = field(default_factory=list)

    def run(self, script: str, side: str, timeout: float = 120, real: bool = False,
            env: dict[str, str] | None = None) -> Outcome:
        work = Path(tempfile.mkdtemp(prefix=f"{side}-", dir=self.directory))
        self.kept.append(work)
        bin_dir = work / ".bin"
        bin_dir.mkdir()
        (work / ".tmp").mkdir()
        self._install(bin_dir, side, real)
        variables = base_env() | {"TMPDIR": str(work / ".tmp"), "SIDE": side} | (env or {})
        variables["PATH"] = f"{bin_dir}:{variables['PATH']}"
        if side == "torch" and not real:
            variables["ZYGOTE"] = str(self.zygote.path)
        for i, port in enumerate(free_ports(3)):
            variables[f"PORT{i}"] = str(port)
        process = subprocess.Popen(
            ["bash", "-c", SETUP + script], cwd=work, env=variables, text=True,
            errors="backslashreplace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True)
        try:
            out, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            end_all_in(work)
            try:
                out, _ = process.communicate(timeout=20)
            except subprocess.TimeoutExpired as e:
                out = (e.output or b"").decode("utf-8", "backslashreplace")
            out += "\nTIMED OUT"
        return Outcome(out, process.returncode, work)

    def _install(self, bin_dir: Path, side: str, real: bool):
        if side == "muster":
            (bin_dir / "torchrun").symlink_to(MUSTER)
            (bin_dir / "launch").write_text(f'#!/bin/sh\nexec {MUSTER} launch "$@"\n')
        elif real:
            (bin_dir / "torchrun").symlink_to(VENV / "bin/torchrun")
            (bin_dir / "launch").write_text(
                f'#!/bin/sh\nexec {VENV}/bin/python -m torch.distributed.launch "$@"\n')
        else:
            head = f"#!{VENV}/bin/python -IS\n"
            body = (HERE / "client.py").read_text()
            (bin_dir / "torchrun").write_text(head + body)
            (bin_dir / "launch.py").write_text(head + body)
            (bin_dir / "launch").symlink_to("launch.py")
        for f in bin_dir.iterdir():
            if not f.is_symlink():
                f.chmod(0o755)

    def pair(self, script: str, timeout: float = 120, real: bool = False,
             env: dict[str, str] | None = None) -> Pair:
        if TORCH_ONLY:
            theirs = self.run(script, "torch", timeout, real, env)
            return Pair(theirs, theirs)
        with ThreadPoolExecutor(1) as pool:  # mostly they wait
            theirs = pool.submit(self.run, script, "torch", timeout, real, env)
            ours = self.run(script, "muster", timeout, False, env)
            return Pair(theirs.result(), ours)

    def clean(self):
        for work in self.kept:
            end_all_in(work)
            shutil.rmtree(work, ignore_errors=True)
        self.kept.clear()


LOG = re.compile(r"^([VIWEC])\d{4} \d\d:\d\d:\d\d\.\d{3}\d* +\d+ \S+\] ?")
EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt)(?:: |$)")
OURS = re.compile(r"^(?:torchrun|muster run|muster launch|launch\.py|run\.py): error: ?")
CAUSE = re.compile(r"^E\d{4} .* muster/agent\] rank \d+ on \S+ \(pid \d+\) (?:died|ended with code)")
REMEDY = re.compile(r"^(?:torchrun|muster run|muster launch): (?!error: )")
NUMBERS = [
    (re.compile(r"(pid[:=] ?|PID |[Pp]rocess |pid )\d+"), r"\1N"),
    (re.compile(r"(?<=time      : )\S+"), "TIME"),
    (re.compile(UUID), "UUID"),
    (re.compile(rf"(UUID|none|torchelastic|job\w*){SUFFIX}(?=/|$|\s)"), r"\1_SFX"),
    (re.compile(r"of binary: \S*python\S*"), "of binary: PY"),
    (re.compile(r"^([=-])\1{47,57}$"), r"\1 as wide as the block"),  # which holds a pid
]


def drop_tracebacks(lines: list[str]) -> list[str]:
    """Python's frames are not part of what is compared; the last line of each is."""
    out: list[str] = []
    inside = False
    for line in lines:
        bare = LOG.sub("", line)
        if bare == "Traceback (most recent call last):":
            inside = True
            continue
        if inside and (bare.startswith(" ") or not bare):
            continue
        if bare.startswith(("During handling of the above", "The above exception was the")):
            continue
        inside = False
        out.append(line)
    return out


# What torchrun has nothing to say about: where it listens, and to whom.
DOORS = re.compile(r"muster/rendezvous\] .*(this job has no secret|listens on every address)")
VERDICT = re.compile(r"^muster: (the job failed|its |\d+ other rank|no restarts were|all \d+ restarts|the one restart|rank \d+ on |the whole story"
                     r"|\d+ ranks? on \d+ nodes? started again after |\S+ left the job|\S+ was lost )"
                     r"|^ {10}( {2})?\S|.*muster/agent\] stopped by SIG")


def normalise(text: str, directory: Path) -> list[str]:
    """A line each, without what differs from run to run or only in Python's dress."""
    text = text.replace(str(directory), "DIR")
    out = []
    for line in drop_tracebacks(text.splitlines()):
        if DOORS.search(line):
            continue
        if REMEDY.match(line) or CAUSE.match(line) or re.match(r"^bash: line \d+: +\d+ ", line) or line.startswith("usage: ") or \
                re.match(r"^ {8,}(\[-|training_script)", line):
            continue
        if VERDICT.match(line):  # Ours, below torch's box: see docs/DIFFERENCES.md.
            continue
        line = LOG.sub(r"\1] ", line)
        line = EXCEPTION.sub("ERROR: ", line) if not OURS.match(line) else \
            OURS.sub("ERROR: ", line)
        for pattern, to in NUMBERS:
            line = pattern.sub(to, line)
        out.append(older_words(line))
    return out


# CONFORM=torch looks whether the patterns are true of torchrun, without muster.
TORCH_ONLY = os.environ.get("CONFORM") == "torch"


def same(pair: Pair, ordered: bool = True) -> None:
    if TORCH_ONLY:
        return
    theirs = normalise(pair.torch.out, pair.torch.directory)
    ours = normalise(pair.muster.out, pair.muster.directory)
    if not ordered:
        theirs, ours = sorted(theirs), sorted(ours)
    if sys.version_info >= (3, 12) and len(ours) == len(theirs):  # whose mkdtemp() makes torchrun's --log-dir absolute; see DIFFERENCES.md
        theirs = [o if t == f"DIR/{os.path.normpath(o)}" else t for o, t in zip(ours, theirs)]
    assert "TIMED OUT" not in theirs + ours, (theirs, ours)
    assert ours == theirs


def expect(pair: Pair, pattern: str) -> None:
    """The whole of our output, as a pattern: equal must not mean equally empty."""
    side = pair.torch if TORCH_ONLY else pair.muster
    ours = "\n".join(normalise(side.out, side.directory))
    assert re.fullmatch(pattern, ours, re.S), ours
