"""bench/count runs and finds something to count. What the figures are is no business of a test."""
from __future__ import annotations

import re
import subprocess

from rig import PYTHON, ROOT


def table(*args: str) -> dict[str, str]:
    out = subprocess.run([PYTHON, "bench/count", *args], cwd=ROOT, check=True, capture_output=True, text=True,
                         timeout=280).stdout
    rows = re.findall(r"^\| ([^|]+?) +\| ([^|]+) \|$", out, re.M)
    return {name: figure for name, figure in rows if name != "---"}


def test_sizes() -> None:
    figures = table("size")
    assert int(figures["message kinds"]) > 10
    assert int(figures["lines of src/"].replace(",", "")) > 10_000


def test_messages_between_two_nodes() -> None:
    figures = table("net", "--runs", "1", "--trips", "20,200")
    start = next(v for k, v in figures.items() if k.startswith("round trips, start"))
    again = next(v for k, v in figures.items() if k.startswith("round trips, kill"))
    assert float(start) > 1 and float(again) > 0.2  # one
    assert int(figures["connections of a remote node to the host"].split()[0]) >= 1


def test_walks() -> None:
    figures = table("walks", "--runs", "1")
    assert len(figures) == 5
    for walk in figures.values():
        hops, files = (int(n) for n in re.findall(r"(\d+) (?:hops|files)", walk))
        assert hops >= files > 3
