"""What scripts/deps says on a machine that lacks things: without apt, without dpkg, without sudo."""
from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("sh", "dirname", "cat", "mkdir", "touch", "env", "find", "grep", "python3", "cc", "tail", "cksum", "cut",
         "tr", "make", "test", "echo")


@pytest.fixture
def machine(tmp_path: Path):
    """A copy of the scripts, and a PATH with a few tools and what a test adds; nothing is installed."""
    tree = tmp_path / "tree"
    (tree / "scripts").mkdir(parents=True)
    for file in ("scripts/deps", "Makefile", "meson.build"):
        shutil.copy(ROOT / file, tree / file)
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name in TOOLS:
        if found := shutil.which(name):
            (bin_ / name).symlink_to(found)

    def program(name: str, text: str) -> None:
        (bin_ / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin_ / name).chmod(0o755)

    def run(*words: str, user: int = 1000) -> subprocess.CompletedProcess[str]:
        program("id", f"echo {user}")
        return subprocess.run(words or ["scripts/deps", "build"], cwd=tree, capture_output=True, text=True,
                              env={"PATH": str(bin_), "HOME": str(tmp_path)}, timeout=300)

    run.program = program
    return run


def test_a_machine_without_apt_and_dpkg_names_what_is_missing(machine) -> None:
    done = machine()
    assert done.returncode == 1 and done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first.startswith("deps: missing for 'build': meson ninja pkg-config libuv jansson")
    assert second.startswith("deps: Debian calls it: meson ninja-build pkg-config libuv1-dev")
    assert "; Fedora: meson ninja-build pkgconf-pkg-config libuv-devel" in second


def test_a_fedora_like_machine_gets_its_own_line(machine) -> None:
    machine.program("dnf", "echo dnf must not be run >&2; exit 1")
    machine.program("sudo", "echo sudo must not be run >&2; exit 1")
    for words in (["scripts/deps", "test"], ["scripts/deps", "--check", "build"], ["make"]):
        done = machine(*words)
        assert done.returncode != 0 and "must not be run" not in done.stderr
        assert "deps: to install it: sudo dnf install meson ninja-build pkgconf-pkg-config" in done.stderr


@pytest.mark.parametrize("words", [["make"], ["make", "demo"], ["make", "test"]], ids=" ".join)
def test_a_user_without_sudo_gets_the_line_for_root(machine, words: list[str]) -> None:
    machine.program("apt-get", "echo apt must not be run >&2; exit 1")
    done = machine(*words)
    assert done.returncode != 0 and "must not be run" not in done.stderr
    assert "deps: to install it: as root: apt-get install meson ninja-build" in done.stderr


def test_a_sudo_that_refuses_still_leaves_the_line(machine) -> None:
    machine.program("apt-get", "exit 0")
    machine.program("sudo", "echo sudo: a password is required >&2; exit 1")
    done = machine()
    assert done.returncode == 1 and "sudo: a password is required" in done.stderr
    assert "deps: to install it: sudo apt-get install meson" in done.stderr


def test_dpkg_alone_does_not_make_a_package(machine) -> None:
    """dpkg-deb is on every Debian; what names the libraries that a package depends on is not."""
    machine.program("dpkg-deb", "exit 0")
    done = machine("scripts/deps", "--check", "deb")
    assert done.returncode != 0 and "dpkg-dev" in done.stderr, done.stderr


@pytest.mark.parametrize("target", ["all", "asan", "tsan", "sim"])
def test_make_alone_installs_nothing(machine, target: str) -> None:
    machine.program("apt-get", "echo apt must not be run >&2; exit 1")
    done = machine("make", target, user=0)
    assert done.returncode != 0 and "must not be run" not in done.stderr
    assert "deps: to install it: apt-get install meson" in done.stderr


def test_the_simulator_needs_no_more_than_the_product(tmp_path: Path) -> None:
    """`make sim` where nobody has run a test yet: cmocka is not there."""
    hide = tmp_path / "pkg-config"
    hide.write_text(f'#!/bin/sh\ncase "$*" in *cmocka*) exit 1 ;; esac\nexec {shutil.which("pkg-config")} "$@"\n')
    hide.chmod(0o755)
    subprocess.run(["meson", "setup", tmp_path / "b", ROOT], check=True, capture_output=True, timeout=300,
                   env={**os.environ, "PKG_CONFIG": str(hide), "CMAKE": "false"})
    targets = subprocess.run(["ninja", "-C", tmp_path / "b", "-t", "targets", "all"], check=True,
                             capture_output=True, text=True).stdout
    assert "\nmuster-sim: " in targets and "test_store" not in targets


def test_what_is_there_is_not_asked_for() -> None:
    done = subprocess.run(["scripts/deps", "--check", "build"], cwd=ROOT, capture_output=True, text=True,
                          env={**os.environ, "PATH": os.environ["PATH"]}, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
