"""pip in a clone: `pip install .` and `pip install ./python` are one package, and say what a build lacks."""
from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from wheels import ROOT, run

PYTHON = ROOT / "build/wheelvenv/bin/python"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What pip copies or reads of a clone, with a PATH on which nothing can be built."""
    tree = tmp_path / "clone"
    shutil.copytree(ROOT, tree, ignore=lambda folder, names: [
        n for n in names if n in (".git", "build", "tests", "bench", "node_modules", "__pycache__")])
    return tree


@pytest.mark.parametrize("where", [".", "./python"])
def test_what_a_build_lacks_is_in_the_last_line(clone: Path, tmp_path: Path, where: str) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "dirname", "env", "cat", "id", "find"):
        (tools / name).symlink_to(shutil.which(name))
    done = run(PYTHON, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-build-isolation", "--no-deps",
               "-w", tmp_path / "out", where, cwd=clone, ok=False, env={"PATH": str(tools), "HOME": str(tmp_path)})
    assert done.returncode == 1
    said = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
    (ours,) = (line for line in said if "muster cannot be built here: " in line)
    assert "missing for 'bundle': cc meson ninja pkg-config libuv" in ours
    assert "Debian calls it: gcc meson ninja-build" in ours, ours
    assert "Traceback" not in done.stderr


def test_both_folders_are_the_same_package(tmp_path: Path) -> None:
    names = []
    for where in (".", "./python"):
        out = tmp_path / where.replace("/", "_")
        run(PYTHON, "-m", "build", "--no-isolation", "--sdist", "-o", out, where, cwd=ROOT,
            env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1"))
        names += [p.name for p in out.iterdir()]
    assert len(names) == 2 and len(set(names)) == 1 and names[0].startswith("muster_run-")
