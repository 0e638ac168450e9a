"""The man pages, written and generated: groff finds nothing wrong, and every public function is there."""
from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAN = [*sorted((ROOT / "docs/man").glob("*.[1-8]")), ROOT / "build/docs/muster-run.1",
       *(ROOT / f"build/docs/muster_{p.stem}.3" for p in sorted((ROOT / "include/muster").glob("*.h")))]


@pytest.mark.parametrize("path", MAN, ids=lambda p: p.name)
def test_man_pages_are_well_formed(path: Path) -> None:
    if path.read_text().startswith(".so "):
        return  # one line, see below
    done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", str(path)],
                          capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_command_has_a_page() -> None:
    """In the sources and among what is installed; a link names a page that is there."""
    said = subprocess.run([ROOT / "build/muster", "--help"], capture_output=True, text=True, check=True).stdout
    commands = re.findall(r"^  ([a-z]+)  ", said.partition("commands:")[2], re.M)
    there = {p.name: p for p in MAN}
    installed = (ROOT / "docs/meson.build").read_text()
    assert {"run", "top", "stacks"} <= set(commands)
    for name in (f"muster-{c}.1" for c in commands):
        assert name in there and name in installed
        if link := re.match(r"\.so man1/(.*)\n", there[name].read_text()):
            assert link[1] in there


def test_the_reference_has_every_function() -> None:
    """Each public function stands in the page of its header, with what its comment says."""
    for header in sorted((ROOT / "include/muster").glob("*.h")):
        page = (ROOT / f"build/docs/muster_{header.stem}.3").read_text()
        functions = re.findall(r"MUSTER_API[^;]*?\b(muster_\w+)\(", header.read_text())
        assert functions or header.name == "error.h"
        missing = [f for f in functions if page.count(f) < 2]  # NAME, and its declaration
        assert missing == [], header.name
