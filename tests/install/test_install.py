"""What a user gets from `make install`, `make static` and `make deb`."""
from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = r"""
#include <muster/error.h>
#include <stdio.h>
/* A name that the library uses inside: no clash, and ours is the one we call. */
int buf_reserve(void);
int buf_reserve(void) { return 7; }
int main(void)
{
    printf("%s %s %d\n", muster_version(), muster_code_name(-1), buf_reserve());
    return 0;
}
"""


def run(*argv: object, **kwargs) -> str:
    done = subprocess.run([str(a) for a in argv], cwd=ROOT, text=True, capture_output=True,
                          **kwargs)
    assert done.returncode == 0, f"{argv}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory) -> Path:
    """`make install` of a build of its own: the one in build/ belongs to other tests."""
    work = tmp_path_factory.mktemp("install")
    make_install(work, work / "usr")
    return work / "usr"


def make_install(work: Path, prefix: Path) -> None:
    run("make", "-s", "install", f"BUILD={work}/build", f"PREFIX={prefix}")
    assert not (work / "build/muster-sim").exists()  # what is not installed is not built


def flags(prefix: Path, *options: str) -> list[str]:
    env = dict(os.environ, PKG_CONFIG_PATH=str(prefix / "lib/pkgconfig"))
    return run("pkg-config", "--cflags", "--libs", *options, "muster", env=env).split()


def version() -> str:
    return run(ROOT / "build/muster", "--version").split()[1]


def test_another_prefix_takes_effect_at_once(prefix: Path) -> None:
    """It did so one call late, and then wrote into the home of whoever had called before."""
    work = prefix.parent
    before = {p: p.lstat().st_mtime_ns for p in prefix.rglob("*")}
    make_install(work, work / "other")
    assert {p: p.lstat().st_mtime_ns for p in prefix.rglob("*")} == before
    names = {p.relative_to(prefix) for p in before}
    assert {p.relative_to(work / "other") for p in (work / "other").rglob("*")} == names
    assert {Path("bin/muster"), Path("lib/libmuster.so"), Path("lib/pkgconfig/muster.pc"),
            Path("share/bash-completion/completions/muster.bash")} <= names  # lib, not lib64
    run("make", "-s", "uninstall", f"BUILD={work}/build")
    assert not [p for p in (work / "other").rglob("*") if not p.is_dir()]
    assert (prefix / "bin/muster").exists()


def test_the_guides_program_builds_by_the_guides_line(prefix: Path, tmp_path: Path) -> None:
    guide = (ROOT / "docs/guides/embedding.md").read_text()
    (tmp_path / "prog.c").write_text(re.search(r"```c\n(.*?)```", guide, re.S)[1])
    line = re.search(r"^    (cc prog.c .*)$", guide, re.M)[1]
    # What `make install` to /usr/local finds by itself: pkg-config there, and ldconfig.
    env = dict(os.environ, PKG_CONFIG_PATH=str(prefix / "lib/pkgconfig"), LD_LIBRARY_PATH=str(prefix / "lib"))
    subprocess.run(line, shell=True, cwd=tmp_path, env=env, check=True)
    done = subprocess.run(["./a.out"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "visitor number 1\n"), done.stderr


def test_a_program_links_the_shared_library(prefix: Path, tmp_path: Path) -> None:
    (tmp_path / "p.c").write_text(PROGRAM)
    run("cc", "-o", tmp_path / "p", tmp_path / "p.c", *flags(prefix),
        f"-Wl,-rpath,{prefix}/lib")
    assert run(tmp_path / "p").split() == [version(), "MUSTER_ENOMEM", "7"]
    assert "libmuster.so" in run("ldd", tmp_path / "p")


def test_a_program_links_the_archive(prefix: Path, tmp_path: Path) -> None:
    (tmp_path / "p.c").write_text(PROGRAM)
    libs = [f for f in flags(prefix, "--static") if f != "-lmuster"]
    run("cc", "-o", tmp_path / "p", tmp_path / "p.c", prefix / "lib/libmuster.a", *libs)
    assert run(tmp_path / "p").split() == [version(), "MUSTER_ENOMEM", "7"]
    assert "libmuster.so" not in run("ldd", tmp_path / "p")


@pytest.mark.parametrize("name", ["libmuster.so", "libmuster.a"])
def test_only_public_names_are_in_sight(prefix: Path, name: str) -> None:
    dynamic = ["-D"] if name.endswith(".so") else []
    out = run("nm", "-g", "--defined-only", *dynamic, prefix / "lib" / name)
    names = [line.split()[-1] for line in out.splitlines() if len(line.split()) == 3]
    assert "muster_version" in names
    assert [n for n in names if not n.startswith("muster_")] == []


def test_the_headers_stand_alone_in_c_and_cxx(prefix: Path, tmp_path: Path) -> None:
    for header in sorted((prefix / "include/muster").glob("*.h")):
        source = tmp_path / "h.c"
        source.write_text(f"#include <muster/{header.name}>\nint x;\n")
        for language in ("c", "c++"):
            run("cc", "-x", language, "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
                f"-I{prefix}/include", source)


def test_the_man_pages_are_there(prefix: Path) -> None:
    found = {p.name for p in (prefix / "share/man").rglob("*.[1-8]")}
    assert {"libmuster.3", "muster.1", "muster-run.1", "muster-store.1"} <= found


def test_the_static_binary_runs_in_an_empty_root(tmp_path: Path) -> None:
    run("make", "-s", "static")
    shutil.copy(ROOT / "build/static/muster", tmp_path)
    assert os.listdir(tmp_path) == ["muster"]
    assert run("chroot", tmp_path, "/muster", "--version").split()[1] == version()
    job = run("chroot", tmp_path, "/muster", "run", "--nproc-per-node=2", "--no-python",
              "/muster", "--version")
    assert job.split() == ["muster", version()] * 2


def test_the_debian_package_holds_what_it_should(tmp_path: Path) -> None:
    package = ROOT / run("make", "-s", "deb").split()[-1]
    run("dpkg-deb", "-x", package, tmp_path)
    found = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    for wanted in ("usr/bin/muster", "usr/include/muster/error.h",
                   "usr/share/doc/muster/copyright"):
        assert wanted in found
    depends = run("dpkg-deb", "-f", package, "Depends")
    assert all(name in depends for name in ("libc6", "libmicrohttpd", "libncursesw"))  # page and top
    assert run("dpkg-deb", "-f", package, "Version").strip() == version()
    said = dict(re.findall(r"^(\w+): (.*)", (ROOT / "packaging/published").read_text(), re.M))
    assert run("dpkg-deb", "-f", package, "Maintainer").strip() == said["maintainer"]
    assert (run("dpkg-deb", "-f", package, "Homepage").strip() or "none") == said["home"]
    assert run(tmp_path / "usr/bin/muster", "--version").split()[1] == version()


def test_the_debian_package_installs_and_goes(tmp_path: Path) -> None:
    """dpkg itself, with a database and a root of its own."""
    package = ROOT / run("make", "-s", "deb").split()[-1]
    dpkg = ["dpkg", f"--root={tmp_path}", "--force-depends", "--force-not-root",
            "--force-script-chrootless"]
    for folder in ("var/lib/dpkg/updates", "var/lib/dpkg/info", "var/log"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    for file in ("status", "available"):
        (tmp_path / "var/lib/dpkg" / file).touch()
    run(*dpkg, "-i", package)
    assert "ok installed" in run(*dpkg, "-s", "muster")
    assert run(tmp_path / "usr/bin/muster", "--version").split()[1] == version()
    run(*dpkg, "-r", "muster")
    assert not (tmp_path / "usr/bin/muster").exists()
