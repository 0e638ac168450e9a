"""The wheel as a file, and what is there after pip has installed it."""
from __future__ import annotations

import os
import re
import sys
import zipfile
from pathlib import Path

import pytest
from wheels import ROOT, run

VERSION = run(ROOT / "build/muster", "--version").stdout


def test_it_is_small_and_says_what_it_is_for(wheel: Path) -> None:
    assert wheel.stat().st_size < 5_000_000
    assert [w.suffix for w in sorted(wheel.parent.iterdir())] == [".whl", ".gz"]  # one for all
    with zipfile.ZipFile(wheel) as z:
        names = z.namelist()
        (said,) = (z.read(n).decode() for n in names if n.endswith("METADATA"))
    assert "muster/py.typed" in names
    assert any(n.endswith("licenses/LICENSE") for n in names)
    assert "Requires-Python: >=3.9\n" in said
    assert all("extra ==" in need for need in re.findall(r"^Requires-Dist: .*", said, re.M))


def test_its_tag_names_the_oldest_glibc_that_will_do(wheel: Path, tmp_path: Path) -> None:
    tag = re.fullmatch(r"muster_run-[\d.]+-py3-none-manylinux_2_(\d+)_(\w+)\.whl", wheel.name)
    assert tag[2] == os.uname().machine
    with zipfile.ZipFile(wheel) as z:
        native = [n for n in z.namelist() if z.read(n)[:4] == b"\x7fELF"]
        z.extractall(tmp_path, native)
    assert len(native) > 2
    wanted = set()
    for name in native:
        said = run("readelf", "--version-info", "--wide", tmp_path / name).stdout
        wanted |= {int(n) for n in re.findall(r"Name: GLIBC_2\.(\d+)", said)}
        assert not re.search(r"Name: GLIBC_(?!2\.\d)", said)  # no name without a number
    assert max(wanted) == int(tag[1]) == 28  # torch's own, and RHEL 8's


def test_an_old_glibc_has_what_is_asked_for_without_a_version(wheel: Path, tmp_path: Path) -> None:
    """lower() of hatch_build.py took the versions off; what is left is defined beside it, or
    was in libpthread and libdl before it moved into libc."""
    with zipfile.ZipFile(wheel) as z:
        native = [n for n in z.namelist() if z.read(n)[:4] == b"\x7fELF"]
        z.extractall(tmp_path, native)
    wanted, defined, needed = set(), set(), set()
    for name in native:
        for line in run("nm", "-D", tmp_path / name).stdout.splitlines():
            kind, symbol = line.split()[-2:]
            (wanted if kind == "U" else defined).add(symbol)  # w: may be missing
        if name.endswith("libmuster.so.0"):
            needed = set(re.findall(r"NEEDED.*\[(.*?)\]", run("readelf", "-d", tmp_path / name).stdout))
    plain = {s for s in wanted if "@" not in s} - {s.partition("@")[0] for s in defined}
    assert plain and {"libpthread.so.0", "libdl.so.2"} <= needed
    odd = [s for s in plain if not re.fullmatch(
        r"(pthread|sem)_\w+|dl(open|sym|close|error|addr)|__libc_start_main", s)]
    assert odd == []


def test_it_can_be_uploaded(wheel: Path) -> None:
    tools = ROOT / "build/wheelvenv/bin"
    run(tools / "twine", "check", "--strict", *sorted(wheel.parent.iterdir()))
    assert f'"manylinux_2_28_{os.uname().machine}"' in " ".join(
        run(tools / "auditwheel", "show", wheel, env=dict(os.environ, PATH=f"{tools}:{os.environ['PATH']}")
            ).stdout.split())


def test_the_native_part_needs_libc_and_what_lies_beside_it(venv: Path) -> None:
    beside = venv / "libexec/muster"
    needed = set()
    for library in beside.iterdir():
        needed |= set(re.findall(r"NEEDED.*\[(.*?)\]", run("readelf", "-d", library).stdout))
    assert needed <= {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2",
                      "libpthread.so.0", "libdl.so.2"} | {
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
    assert done.stderr.splitlines()[-1] == (
        "muster._native.NativeError: muster: /nonexistent/libmuster.so cannot be read: "
        "No such file or directory")


def altered(file: Path, to: Path, at: int, new: bytes) -> Path:
    data = bytearray(file.read_bytes())
    data[at : at + len(new)] = new
    to.write_bytes(data)
    to.chmod(0o755)
    return to


@pytest.mark.parametrize(("file", "variable", "code"), [
    ("libexec/muster/libmuster.so.0", "MUSTER_LIBRARY", "import muster; muster.Store.hash()"),
    ("bin/muster", "MUSTER_COMMAND", "import muster\n"
     "muster.elastic_launch(muster.LaunchConfig(1, 1, 1), 'true')()"),
    ("bin/muster", "MUSTER_COMMAND", "import sys, runpy; sys.argv = ['muster', '--version']\n"
     "runpy.run_module('muster', run_name='__main__')"),
])
def test_another_machines_file_is_an_exception_that_helps(
        venv: Path, tmp_path: Path, file: str, variable: str, code: str) -> None:
    foreign = altered(venv / file, tmp_path / "foreign", 18, b"\x16\0")  # of an S/390
    done = run(venv / "bin/python", "-c", code, ok=False,
               env=dict(os.environ, **{variable: str(foreign)}))
    assert done.returncode == 1
    assert re.search(rf"muster: {foreign} is for another type of machine than this Python, "
                     rf"which is for {os.uname().machine}; ", done.stderr.splitlines()[-1])


def test_a_file_that_is_no_library_is_an_exception_that_helps(venv: Path, tmp_path: Path) -> None:
    text = tmp_path / "lib"
    text.write_text("no library")
    done = run(venv / "bin/python", "-c", "import muster; muster.Store.hash()", ok=False,
               env=dict(os.environ, MUSTER_LIBRARY=str(text)))
    assert re.match(rf"muster._native.NativeError: muster: {text} cannot be loaded here: .*: "
                    "file too short; ", done.stderr.splitlines()[-1])


def test_a_file_that_is_gone_is_an_exception_that_helps(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "install", "-q", "--no-index", "--target", tmp_path / "t",
        wheel)
    for name in ("bin/muster", "libexec/muster/libmuster.so.0"):
        (tmp_path / "t" / name).unlink()
    env = dict(os.environ, PYTHONPATH=str(tmp_path / "t"))
    for code in ("import muster; muster.Store.hash()",
                 "import muster; muster.elastic_launch(muster.LaunchConfig(1, 1, 1), 'true')()"):
        done = run("python3", "-c", code, env=env, ok=False)
        assert "is not beside this package" in done.stderr.splitlines()[-1]
        assert "reinstall the wheel" in done.stderr.splitlines()[-1]


def test_types_and_style_are_clean() -> None:
    tools = ROOT / "build/wheelvenv/bin"
    run(tools / "mypy", cwd=ROOT / "python")
    run(tools / "ruff", "check", ".", cwd=ROOT / "python")
