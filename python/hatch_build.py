"""Builds the native part with meson and puts it into the wheel.

The command goes where scripts go, so that `muster` starts without a Python; the library,
which holds nearly all of it, goes to <prefix>/libexec/muster, where the command finds it, and
so do the few shared libraries that it needs beside libc.
"""
from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # only version() is wanted
    BuildHookInterface = object

LIBC = ("libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "ld-linux")
HERE = Path(__file__).resolve().parent
NATIVE = HERE / "native" if (HERE / "native").is_dir() else HERE.parent


def version() -> str:
    match = re.search(r"version: '([^']+)'", (NATIVE / "meson.build").read_text())
    assert match, "meson.build states the version"
    return match[1]


def run(*argv: str) -> str:
    if shutil.which(argv[0]) is None:
        raise RuntimeError(f"building muster from source needs {argv[0]}; on Debian, "
                           "scripts/deps of the source repository installs what it takes")
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}:\n{done.stdout}{done.stderr}")
    return done.stdout


def libc_tag(binaries: list[Path]) -> str:
    """The oldest glibc on which these run, as a platform tag."""
    found = {(2, 17)}
    for path in binaries:
        for major, minor in re.findall(r"GLIBC_(\d+)\.(\d+)", run("objdump", "-T", str(path))):
            found.add((int(major), int(minor)))
    major, minor = max(found)
    return f"manylinux_{major}_{minor}_{platform.machine()}"


def notices(files: list[str]) -> dict[str, str]:
    """Licences of the libraries inside, as Debian states them: file -> place in the wheel."""
    if shutil.which("dpkg") is None:
        return {}
    owners = subprocess.run(["dpkg", "-S", *files], capture_output=True, text=True).stdout
    names = sorted({line.split(":")[0] for line in owners.splitlines()})
    paths = {f"/usr/share/doc/{name}/copyright": name for name in names}
    return {path: f"share/doc/muster/{name}.copyright" for path, name in paths.items()
            if Path(path).is_file()}


def inside(work: Path, beside: list[str]) -> list[str]:
    """The libraries inside, by their real names: those beside ours, and those linked in."""
    linked = re.findall(r"(/\S+\.a)\b", (work / "build.ninja").read_text())
    found = {str(Path(f).resolve()) for f in (*beside, *linked) if not f.startswith(str(work))}
    return sorted(found | {f.removeprefix("/usr") for f in found})  # one of a merged /usr


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        if sys.platform != "linux":
            raise RuntimeError(f"muster runs on Linux; this is {sys.platform}")
        work = HERE / "build" if NATIVE.name == "native" else NATIVE / "build" / "bundle"
        if not (work / "build.ninja").exists():
            run("meson", "setup", str(work), str(NATIVE), "--prefix", "/", "--libdir", "lib",
                "-Dbundle=libs", "-Dtests=false", "-Dbuildtype=release")
        run("ninja", "-C", str(work))
        out = work / "wheel"  # an installation: the command's run path is then the final one
        run("meson", "install", "-C", str(work), "--no-rebuild", "--strip", "--destdir",
            str(out))
        command, library = out / "bin/muster", (out / "lib/libmuster.so.0").resolve()
        needs = run("ldd", str(work / "libmuster.so.0"))
        beside = {name: path for name, path in re.findall(r"(\S+) => (/\S+)", needs)
                  if not name.startswith(LIBC)}
        build_data["pure_python"] = False
        binaries = [command, library, *map(Path, beside.values())]
        build_data["tag"] = f"py3-none-{libc_tag(binaries)}"
        build_data["shared_scripts"] = {str(command): "muster"}
        build_data["shared_data"] = {
            str(library): "libexec/muster/libmuster.so.0",
            **{path: f"libexec/muster/{name}" for name, path in beside.items()},
            **notices(inside(work, list(beside.values()))),
        }
