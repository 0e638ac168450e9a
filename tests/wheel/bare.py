"""A root directory with a Python and the C library in it, and nothing else.

No compiler, no program but sh, and of shared libraries only those that this Python itself
was linked with: what a machine looks like on which nobody ever built anything.
"""
from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

ABOUT = """
import ensurepip, json, sys, sysconfig
print(json.dumps([sys.version_info[:2], sys.executable, sysconfig.get_path("stdlib")]))
"""


def about(python: str | Path) -> tuple[tuple[int, ...], str, str] | None:
    """Its version, its path and its library's; None if it does not run or cannot make
    virtual environments."""
    done = subprocess.run([python, "-c", ABOUT], capture_output=True, text=True)
    if done.returncode:
        return None
    version, executable, stdlib = json.loads(done.stdout)
    return tuple(version), executable, stdlib


def version(python: str) -> str:
    known = about(python)
    assert known
    return "python" + ".".join(map(str, known[0]))


def interpreters() -> list[str]:
    """The plain python3, and the oldest and newest from 3.9 on that are here."""
    plain = about("python3")
    assert plain, "python3 -m venv works, see scripts/deps"
    places = [*Path.home().glob(".pyenv/versions/3.*/bin/python3"),
              *filter(None, (shutil.which(f"python3.{m}") for m in range(9, 20)))]
    found = {a[0]: a[1] for a in map(about, places) if a and a[0] >= (3, 9)}
    ends = [v for v in (min(found, default=None), max(found, default=None)) if v]
    return [plain[1], *dict.fromkeys(found[v] for v in ends if v != plain[0])]


def libraries(*files: Path) -> set[str]:
    """What they are linked with, and the rest of the C library, which every machine has."""
    said = subprocess.run(["ldd", *files], capture_output=True, text=True).stdout
    found = set(re.findall(r"(/\S+) \(0x", said))
    (libc,) = [Path(f) for f in found if Path(f).name == "libc.so.6"]
    return found | {str(libc.with_name(n)) for n in ("libpthread.so.0", "libdl.so.2", "libm.so.6")}


class Root:
    """The directory `path`, made into such a machine. Its /job is open to both sides."""

    def __init__(self, path: Path, python: str) -> None:
        known = about(python)
        assert known
        _, self.python, stdlib = known
        self.path = path
        self.job = path / "job"
        wheels = "/usr/share/python-wheels"  # where Debian keeps the pip of new environments
        self._shown = [d for d in (stdlib, wheels) if Path(d).is_dir()]
        for name in ("tmp", "proc", "dev", "etc", "bin", "job", *self._shown):
            self._inside(name).mkdir(parents=True)
        (path / "etc/hosts").write_text("127.0.0.1 localhost\n")
        certificates = Path("/etc/ssl/certs/ca-certificates.crt")
        if certificates.exists():  # Debian's pip wants it from the beginning, whatever it is to do
            self._inside(str(certificates)).parent.mkdir(parents=True)
            shutil.copy(certificates, self._inside(str(certificates)))
        shell, executable = Path("/bin/sh").resolve(), Path(self.python).resolve()
        modules = Path(stdlib, "lib-dynload").glob("*.so")
        shutil.copy(shell, path / "bin/sh")
        for name in {str(executable), *libraries(shell, executable, *modules)}:
            self._inside(name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name, self._inside(name))
        if not self._inside(self.python).exists():
            self._inside(self.python).parent.mkdir(parents=True, exist_ok=True)
            self._inside(self.python).symlink_to(executable)

    def _inside(self, name: str) -> Path:
        return self.path / name.lstrip("/")

    def run(self, *argv: object) -> str:
        """Runs a command there, with only its own processes in sight; what it printed."""
        steps = [f"mount --bind {name} {self._inside(name)}" for name in self._shown]
        steps += [f"mount -t proc proc {self.path}/proc", f"mount --rbind /dev {self.path}/dev",
                  f'chroot {self.path} "$@"']
        done = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "env", "-i",
             "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp", "LANG=C.UTF-8",
             "sh", "-ec", "; ".join(steps), "sh", *map(str, argv)],
            capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, f"{argv}:\n{done.stdout}\n{done.stderr}"
        return done.stdout
