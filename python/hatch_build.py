"""Builds the native part with meson and puts it into the wheel.

The command goes where scripts go, so that `muster` starts without a Python; the library,
which holds nearly all of it, goes to <prefix>/libexec/muster, where the command finds it, and
so do the few shared libraries that it needs beside libc.

With MUSTER_CROSS=FOLDER, which packaging/sysroot has made, it is built for another machine.
"""
from __future__ import annotations

import os
import platform
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
    from hatchling.metadata.plugin.interface import MetadataHookInterface
except ImportError:  # only version() is wanted
    BuildHookInterface = MetadataHookInterface = object

LIBC = ("libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "ld-linux")
HERE = Path(__file__).resolve().parent
NATIVE = HERE / "native" if (HERE / "native").is_dir() else HERE.parent
CROSS = Path(os.environ["MUSTER_CROSS"]).resolve() if "MUSTER_CROSS" in os.environ else None
LOCAL = NATIVE / "build/root"  # what packaging/local has unpacked, if anything
MACHINES = {62: "x86_64", 183: "aarch64"}  # by the number in an ELF file


def version() -> str:
    match = re.search(r"version: '([^']+)'", (NATIVE / "meson.build").read_text())
    assert match, "meson.build states the version"
    return match[1]


def published(key: str) -> str:
    """What packaging/published says."""
    match = re.search(rf"^{key}: (.*)", (NATIVE / "packaging/published").read_text(), re.M)
    assert match, f"packaging/published states the {key}"
    return match[1]


def missing() -> str:
    """What a build lacks here, and the line that installs it; "" if nothing."""
    deps = NATIVE / "scripts/deps"
    done = subprocess.run([str(deps), "--check", "bundle"], capture_output=True, text=True)
    return done.stderr.strip().replace("deps: ", "") if done.returncode else ""


def run(*argv: str) -> str:
    if shutil.which(argv[0]) is None:
        raise RuntimeError(f"building muster from source needs {argv[0]}; on Debian, "
                           "scripts/deps of the source repository installs what it takes")
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}:\n{done.stdout}{done.stderr}")
    return done.stdout


def machine(binary: Path) -> str:
    (number,) = struct.unpack_from("<H", binary.read_bytes(), 18)
    return MACHINES.get(number, platform.machine())


def beside_it(library: Path) -> dict[str, str]:
    """The shared libraries that this one needs beside libc: name -> file."""
    if CROSS is None:
        local = "LD_LIBRARY_PATH=" + ":".join(map(str, LOCAL.glob("**/lib/*-linux-gnu")))
        found = re.findall(r"(\S+) => (/\S+)", run("env", local, "ldd", str(library)))
        return {name: path for name, path in found if not name.startswith(LIBC)}
    out: dict[str, str] = {}
    todo = [str(library)]
    while todo:
        for name in re.findall(r"NEEDED.*\[(.*?)\]", run("readelf", "-d", todo.pop())):
            if name.startswith(LIBC) or name in out:
                continue
            out[name] = str(next((CROSS / "root").rglob(name)).resolve())
            todo.append(out[name])
    return out


def libc_tag(binaries: list[Path]) -> str:
    """The oldest glibc on which these run, as a platform tag."""
    found = {(2, 17)}
    for path in binaries:
        for major, minor in re.findall(r"GLIBC_(\d+)\.(\d+)", run("objdump", "-p", str(path))):
            found.add((int(major), int(minor)))
    major, minor = max(found)
    return f"manylinux_{major}_{minor}_{machine(binaries[0])}"


# The glibc of torch's own wheels and of RHEL 8.
OLDEST = (2, 28)
# What binaries made with a newer one ask for and an old one can give: what has only moved into
# libc.so.6 since, from libpthread.so.0 and libdl.so.2, which our library names among its needs
# (meson.build); and what packaging/old_glibc.c has.
OLD_ENOUGH = re.compile(
    r"pthread_\w+|sem_\w+|dl(open|sym|close|error|addr)|__libc_start_main"
    r"|l?stat(64)?|fstat(at)?(64)?|gettid|close_range"
    r"|__isoc23_(strtou?ll?|[fs]scanf)|pidfd_send_signal"
)
VERSYM, VERNEED, VER_NDX_GLOBAL = 0x6FFFFFFF, 0x6FFFFFFE, 1


def is_newer(version: str) -> bool:
    number = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", version)
    return number is not None and (int(number[1]), int(number[2])) > OLDEST


class Elf:
    """A shared object or program for a 64-bit little-endian machine, as bytes."""

    def __init__(self, path: Path) -> None:
        self.data = bytearray(path.read_bytes())
        if self.data[:6] != b"\x7fELF\x02\x01":
            raise RuntimeError(f"{path} is not for a 64-bit little-endian machine")
        (start,) = struct.unpack_from("<Q", self.data, 0x28)
        size, count = struct.unpack_from("<HH", self.data, 0x3A)
        # Of each section: type, offset, size, link.
        self.sections = []
        for at in range(start, start + size * count, size):
            kind, offset, length, link = struct.unpack_from("<4xI16xQQI", self.data, at)
            self.sections.append((kind, offset, length, link))

    def section(self, kind: int) -> tuple[int, int, int]:
        return next((s[1:] for s in self.sections if s[0] == kind), (0, 0, 0))

    def text(self, table: int, at: int) -> str:
        start = self.sections[table][1] + at
        return self.data[start : self.data.index(0, start)].decode()


def lower(path: Path) -> None:
    """Lets a binary run on OLDEST: what it wants of a newer glibc and an old one has too is
    asked for without a version, which every glibc answers with the one that it has. If it
    wants more than that it stays as it is, and the tag of the wheel says so."""
    elf = Elf(path)
    versions, _, symbols = elf.section(VERSYM)
    needs, size, strings = elf.section(VERNEED)
    if not size:
        return
    newer: dict[int, tuple[int, int, int]] = {}  # index -> its entry, an older one's hash, name
    at = needs
    while True:
        count, _, aux, following = struct.unpack_from("<2xHIII", elf.data, at)
        entries, here = [], at + aux
        for _ in range(count):
            hashed, _, index, name, step = struct.unpack_from("<IHHII", elf.data, here)
            entries.append((elf.text(strings, name), index, here, hashed, name))
            here += step
        old = [e for e in entries if not is_newer(e[0])]
        for version, index, entry, _, _ in entries:
            if is_newer(version) and old:
                newer[index] = (entry, old[0][3], old[0][4])
        if not following:
            break
        at += following
    _, start, length, names = elf.sections[symbols]
    wanted = []
    for i in range(length // 24):
        (index,) = struct.unpack_from("<H", elf.data, versions + 2 * i)
        if index & 0x7FFF in newer:
            (name,) = struct.unpack_from("<I", elf.data, start + 24 * i)
            wanted.append((i, elf.text(names, name)))
    if not all(OLD_ENOUGH.fullmatch(name) for _, name in wanted):
        return
    for i, _ in wanted:
        struct.pack_into("<H", elf.data, versions + 2 * i, VER_NDX_GLOBAL)
    for entry, hashed, name in newer.values():  # Nobody uses it now; it must only be there.
        struct.pack_into("<I", elf.data, entry, hashed)
        struct.pack_into("<I", elf.data, entry + 8, name)
    path.chmod(0o755)
    path.write_bytes(elf.data)


def notices(files: list[str]) -> dict[str, str]:
    """Licences of the libraries inside, as Debian states them: file -> place in the wheel."""
    root, owned = (CROSS / "root", CROSS / "owners") if CROSS else (LOCAL, LOCAL / "owners")
    paths: dict[str, str] = {}
    if owned.is_file():
        own = {f.removeprefix(str(root)) for f in files}
        lines = owned.read_text().splitlines()
        names = {n for n, f in (line.split(": ", 1) for line in lines) if f in own}
        paths = {f"{root}/usr/share/doc/{name}/copyright": name for name in names}
    if not CROSS and shutil.which("dpkg"):
        owners = subprocess.run(["dpkg", "-S", *files], capture_output=True, text=True).stdout
        names = {line.split(":")[0] for line in owners.splitlines()}
        paths |= {f"/usr/share/doc/{name}/copyright": name for name in names}
    return {path: f"share/doc/muster/{name}.copyright" for path, name in sorted(paths.items())
            if Path(path).is_file()}


def inside(work: Path, beside: list[str]) -> list[str]:
    """The libraries inside, by their real names: those beside ours, and those linked in."""
    linked = re.findall(r"(/\S+\.a)\b", (work / "build.ninja").read_text())
    found = {str(Path(f).resolve()) for f in (*beside, *linked) if not f.startswith(str(work))}
    return sorted(found | {f.removeprefix("/usr") for f in found})  # one of a merged /usr


class CustomMetadataHook(MetadataHookInterface):  # type: ignore[misc]
    def update(self, metadata: dict[str, Any]) -> None:
        metadata["authors"] = [{"name": published("maintainer").partition(" <")[0]}]
        home = published("home")
        metadata["urls"] = {} if home == "none" else {
            "Homepage": home, "Source": home, "Changes": f"{home}/blob/main/CHANGES.md"}


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        if sys.platform != "linux":
            raise RuntimeError(f"muster runs on Linux; this is {sys.platform}")
        if not CROSS and (lacks := missing()):
            # The last line of what pip shows of us; no trace of calls above it.
            sys.exit(f"muster cannot be built here: {lacks}".replace("\n", "; "))
        os.environ["PATH"] = f"{LOCAL}/bin:{os.environ['PATH']}"
        os.environ["MUSTER_WHEEL"] = "1"  # see packaging/local
        work = HERE / "build" if NATIVE.name == "native" else NATIVE / "build" / "bundle"
        if CROSS:
            work = CROSS / "bundle"
        if not (work / "build.ninja").exists():
            run("meson", "setup", str(work), str(NATIVE), "--prefix", "/", "--libdir", "lib",
                "-Dbundle=libs", "-Dtests=false", "-Dbuildtype=release",
                *(["--cross-file", str(CROSS / "cross.ini")] if CROSS else []))
        run("ninja", "-C", str(work))
        out = work / "wheel"  # an installation: the command's run path is then the final one
        run("meson", "install", "-C", str(work), "--no-rebuild", "--strip", "--destdir",
            str(out))
        command, library = out / "bin/muster", (out / "lib/libmuster.so.0").resolve()
        beside = beside_it(work / "libmuster.so.0")
        build_data["pure_python"] = False
        originals = list(beside.values())
        for name, path in beside.items():
            copy = out / "beside" / name
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, copy)
            beside[name] = str(copy)
        binaries = [command, library, *map(Path, beside.values())]
        for binary in binaries:
            lower(binary)
        build_data["tag"] = f"py3-none-{libc_tag(binaries)}"
        build_data["shared_scripts"] = {str(command): "muster"}
        build_data["shared_data"] = {
            str(library): "libexec/muster/libmuster.so.0",
            **{path: f"libexec/muster/{name}" for name, path in beside.items()},
            **notices(inside(work, originals)),
        }
