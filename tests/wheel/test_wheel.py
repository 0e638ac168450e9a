"""The wheel as a file, and what is there after pip has installed it."""
from __future__ import annotations

import os
import re
import sys
import zipfile
from pathlib import Path

from conftest import ROOT, run

VERSION = run(ROOT / "build/muster", "--version").stdout


def test_it_is_small_and_says_what_it_is_for(wheel: Path) -> None:
    assert wheel.stat().st_size < 5_000_000
    assert re.fullmatch(r"muster-[\d.]+-py3-none-manylinux_2_\d+_\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as z:
        assert "muster/py.typed" in z.namelist()


def test_the_native_part_needs_libc_and_what_lies_beside_it(venv: Path) -> None:
    beside = venv / "libexec/muster"
    needed = set()
    for library in beside.iterdir():
        needed |= set(re.findall(r"NEEDED.*\[(.*?)\]", run("readelf", "-d", library).stdout))
    assert needed <= {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"} | {
        path.name for path in beside.iterdir()}
    assert str(beside / "libuv.so.1") in os.path.realpath(
        re.search(r"libuv\.so\.1 => (\S+)", run("ldd", beside / "libmuster.so.0").stdout)[1])


def test_three_ways_to_the_same_command(venv: Path) -> None:
    assert run(venv / "bin/muster", "--version").stdout == VERSION
    assert run(venv / "bin/python", "-m", "muster", "--version").stdout == VERSION
    code = "import muster; print('muster', muster.__version__)"
    assert run(venv / "bin/python", "-c", code).stdout == VERSION


def test_an_install_with_target_finds_its_native_part(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "install", "-q", "--no-index", "--target", tmp_path / "t", wheel)
    env = dict(os.environ, PYTHONPATH=str(tmp_path / "t"))
    assert run("python3", "-m", "muster", "--version", env=env).stdout == VERSION


def test_importing_loads_no_torch_and_no_library(venv: Path) -> None:
    code = ("import sys; before = set(sys.modules); import muster;"
            "print(*sorted(set(sys.modules) - before))")
    loaded = run(venv / "bin/python", "-c", code).stdout.split()
    assert "muster" in loaded
    assert {"torch", "ctypes", "subprocess", "asyncio"}.isdisjoint(loaded)


def test_a_missing_library_is_an_exception_that_helps(venv: Path) -> None:
    code = "from muster import _native; _native.library()"
    env = dict(os.environ, MUSTER_LIBRARY="/nonexistent/libmuster.so")
    done = run(venv / "bin/python", "-c", code, env=env, ok=False)
    assert done.returncode == 1
    assert "/nonexistent/libmuster.so cannot be loaded here" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("muster._native.NativeError")


def test_types_and_style_are_clean() -> None:
    tools = ROOT / "build/wheelvenv/bin"
    run(tools / "mypy", cwd=ROOT / "python")
    run(tools / "ruff", "check", ".", cwd=ROOT / "python")
