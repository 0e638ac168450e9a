"""What the workflow of a release puts on its page: its steps are run here, GitHub's own command stood in for."""
from __future__ import annotations

import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import release_steps
from wheels import ROOT, run

MACHINE = os.uname().machine
VERSION = run(ROOT / "build/muster", "--version").stdout

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("apt-get", "dpkg-deb", "aarch64-linux-gnu-gcc", "qemu-aarch64-static"))),
    reason="needs apt, a compiler for aarch64 and qemu")


@pytest.fixture(scope="module")
def page(wheel: Path, arm_wheel: Path, tmp_path_factory) -> Path:
    """A folder after the workflow: the files are built by the targets that it names, in the tests' own build."""
    (built,) = (s["run"].split()[1:] for s in release_steps.steps() if s["run"].startswith("make "))
    assert built == ["static", "static-aarch64", "wheel", "wheel-aarch64"]
    run("make", "-s", *built[:2], cwd=ROOT, timeout=None)
    where = tmp_path_factory.mktemp("release")
    (where / "build").mkdir()
    for target, made in zip(built, ("static", "static-aarch64", "dist", "dist-aarch64")):
        assert (ROOT / "build" / made).is_dir(), target
        (where / "build" / made).symlink_to(ROOT / "build" / made)
    run(sys.executable, ROOT / "tests/wheel/release_steps.py", "v1.2.3", "the files by their names", cwd=where)
    return where


def test_the_files_and_their_checksums(page: Path) -> None:
    files = sorted(p.name for p in (page / "release").iterdir())
    wheels = [f"muster_run-{VERSION.split()[1]}-py3-none-manylinux_2_28_{m}.whl" for m in ("aarch64", "x86_64")]
    assert files == ["SHA256SUMS", "muster-aarch64", "muster-x86_64", *wheels, f"muster_run-{VERSION.split()[1]}.tar.gz"]
    said = run("sha256sum", "-c", "SHA256SUMS", cwd=page / "release").stdout.splitlines()
    assert sorted(said) == [f"{name}: OK" for name in files if name != "SHA256SUMS"]
    assert (page / "gh.log").read_text().splitlines() == [
        "release", "create", "v1.2.3", "--title", "v1.2.3", "--notes-file", "notes.md",
        *(f"release/{name}" for name in sorted(files))]


def test_the_file_for_arm_runs_a_job(page: Path) -> None:
    program = page / "release/muster-aarch64"
    assert "statically linked" in run("file", "-L", program).stdout if shutil.which("file") else True
    done = run("qemu-aarch64-static", program, "run", "--nproc-per-node=2", "--no-python", "sh", "-c",
               "echo rank $RANK of $WORLD_SIZE")
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]


def test_the_line_of_the_notes_gets_it(page: Path, tmp_path: Path) -> None:
    """The address is GitHub's; the same line with ours in its place brings a program that runs."""
    line = re.search(r"```sh\n(.*)\n```", (page / "notes.md").read_text())[1]
    address = "https://github.com/somebody/muster/releases/download/v1.2.3"
    assert line == f"curl -fLo muster {address}/muster-$(uname -m) && chmod +x muster"
    serve = functools.partial(http.server.SimpleHTTPRequestHandler, directory=page / "release")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = line.replace(address, f"http://127.0.0.1:{server.server_address[1]}")
        subprocess.run(here, shell=True, cwd=tmp_path, check=True, capture_output=True, timeout=100)
        server.shutdown()
    assert run(tmp_path / "muster", "--version").stdout == VERSION
