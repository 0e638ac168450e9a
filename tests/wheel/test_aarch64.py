"""The wheel for 64-bit Arm, built on this machine and run by qemu."""
from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from wheels import ROOT, run

pytestmark = pytest.mark.skipif(
    os.uname().machine == "aarch64" or not all(map(shutil.which, (
        "apt-get", "dpkg-deb", "aarch64-linux-gnu-gcc", "qemu-aarch64-static"))),
    reason="needs apt, a compiler for aarch64 and qemu")


@pytest.fixture(scope="module")
def unpacked(arm_wheel: Path, tmp_path_factory) -> Path:
    """Its files where pip would put them, below a prefix."""
    out = tmp_path_factory.mktemp("arm")
    with zipfile.ZipFile(arm_wheel) as z:
        for name in z.namelist():
            if match := re.match(r"[^/]*\.data/(data|scripts)/(.*)", name):
                to = out / ("bin" if match[1] == "scripts" else "") / match[2]
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(z.read(name))
                to.chmod(0o755)
    return out


def arm(unpacked: Path, *words: object, **how) -> subprocess.CompletedProcess[str]:
    """The command as on such a machine: with nothing but libc and what the wheel has."""
    return run("qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu", unpacked / "bin/muster", *words,
               **how)


def test_it_says_what_it_is_for(arm_wheel: Path, unpacked: Path) -> None:
    assert re.fullmatch(r"muster_run-[\d.]+-py3-none-manylinux_2_28_aarch64\.whl", arm_wheel.name)
    assert arm_wheel.stat().st_size < 5_000_000
    binaries = [p for p in unpacked.rglob("*") if p.is_file() and p.read_bytes()[:4] == b"\x7fELF"]
    wanted = set()
    for path in binaries:
        said = run("readelf", "-h", "-V", path).stdout
        assert re.search(r"Machine:\s+AArch64", said), path
        wanted |= {int(n) for n in re.findall(r"Name: GLIBC_2\.(\d+)", said)}
    assert len(binaries) > 2 and max(wanted) == 28
    with zipfile.ZipFile(arm_wheel) as z:
        licences = {n.rpartition("/")[2].replace("t64.", ".") for n in z.namelist() if n.endswith(".copyright")}
        assert any(n.endswith("licenses/LICENSE") for n in z.namelist())
    assert {"libuv1.copyright", "libssl-dev.copyright", "libhwloc15.copyright"} <= licences
    run(ROOT / "build/wheelvenv/bin/twine", "check", "--strict", arm_wheel)


def test_pip_takes_it_for_such_a_machine(arm_wheel: Path, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--only-binary=:all:",
           "--disable-pip-version-check", "--target", tmp_path / "t", "--platform"]
    run(*pip, "manylinux_2_28_aarch64", arm_wheel)
    assert (tmp_path / "t/libexec/muster/libmuster.so.0").exists()
    assert run(*pip, "manylinux_2_28_x86_64", arm_wheel, ok=False).returncode != 0


def test_the_page_and_top_are_inside(unpacked: Path, tmp_path: Path) -> None:
    command = tmp_path / "muster"
    command.write_text(f'#!/bin/sh\nexec qemu-aarch64-static -L /usr/aarch64-linux-gnu {unpacked}/bin/muster "$@"\n')
    command.chmod(0o755)
    done = run(sys.executable, ROOT / "tests/wheel/bare_views.py", command, env=dict(os.environ, TERM="xterm"))
    assert done.stdout.splitlines()[-2:] == ["page True", "top True 0"]


def test_it_runs_a_job(unpacked: Path) -> None:
    assert arm(unpacked, "--version").stdout == run(ROOT / "build/muster", "--version").stdout
    done = arm(unpacked, "run", "--nproc-per-node=2", "--max-restarts=1", "--no-python", "sh", "-c",
               "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && echo rank $RANK of $WORLD_SIZE")
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
