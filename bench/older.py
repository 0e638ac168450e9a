"""An older commit's programs, for benchmarks that put this tree's beside them: built once, in
build/old/COMMIT."""
from __future__ import annotations

import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def checkout(commit: str) -> Path:
    """Where the files of this commit are; this tree for an empty name."""
    if not commit:
        return ROOT
    sha = subprocess.run(["git", "rev-parse", "--short", f"{commit}^{{commit}}"], cwd=ROOT, check=True,
                         capture_output=True, text=True).stdout.strip()
    where = ROOT / "build/old" / sha
    if not (where / "meson.build").exists():
        where.mkdir(parents=True, exist_ok=True)
        tree = subprocess.run(["git", "archive", sha], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "x", "-C", where], input=tree, check=True)
    return where


def build(commit: str, target: str = "muster", options: tuple[str, ...] = (), folder: str = "build") -> Path:
    """One program of this commit, or of this tree for an empty name."""
    tree = checkout(commit)
    where = tree / folder
    if not (where / "build.ninja").exists():
        subprocess.run(["meson", "setup", str(where), *options], cwd=tree, check=True, stdout=subprocess.DEVNULL)
    if not commit or not (where / target).exists():
        subprocess.run(["ninja", "-C", str(where), target], cwd=tree, check=True, stdout=subprocess.DEVNULL)
    return where / target


def in_turns(old: Path, new: Path, times: int, play: Callable[[Path], dict[str, float]]) -> dict[str, tuple[float, float, float]]:
    """Plays both as often, one after the other. For each figure the medians of old and new, and the
    median of new / old in each turn, so that a change of the machine's mood meets both."""
    turns = []
    for i in range(times):
        order = (old, new) if i % 2 else (new, old)
        got = {program: play(program) for program in order}
        turns.append((got[old], got[new]))
    return {k: (statistics.median(a[k] for a, _ in turns), statistics.median(b[k] for _, b in turns),
                statistics.median(b[k] / a[k] if a[k] else 1.0 for a, b in turns)) for k, v in turns[0][1].items()
            if k in turns[0][0] and isinstance(v, (int, float))}


def show_turns(commit: str, rows: list[tuple[str, str, tuple[float, float, float]]]) -> None:
    """A table in Markdown: what, its format, and what in_turns() found."""
    print(f"\n| work | {commit} | now | now / {commit} |\n| --- | ---: | ---: | ---: |")
    for work, form, (a, b, ratio) in rows:
        print(f"| {work} | {form.format(a)} | {form.format(b)} | {ratio:.2f} |", flush=True)
