"""pip install on a bare machine, with each of the interpreters, and all that then works."""
from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from bare import Root, interpreters, version

HERE = Path(__file__).parent


@pytest.mark.parametrize("python", interpreters(), ids=version)
def test_a_machine_with_python_and_nothing_else(wheel: Path, tmp_path: Path, python: str) -> None:
    root = Root(tmp_path / "root", python)
    shutil.copy(wheel, root.job)
    shutil.copy(HERE / "bare_job.py", root.job)
    root.run(root.python, "-m", "venv", "/job/v")
    root.run("/job/v/bin/pip", "install", "-q", "--no-index", "--disable-pip-version-check",
             f"/job/{wheel.name}")

    out = root.run("/job/v/bin/muster", "run", "--nproc-per-node=2", "--no-python", "sh", "-c",
                   "echo rank $RANK")
    assert sorted(out.splitlines()) == ["rank 0", "rank 1"]
    (root.job / "t.py").write_text("import sys; print(sys.prefix)")
    assert root.run("/job/v/bin/python", "-m", "muster", "run", "/job/t.py") == "/job/v\n"
    assert root.run("/job/v/bin/python", "/job/bare_job.py").splitlines() == [
        "{0: 0, 1: 10, 2: 20, 3: 30}", "rank 1 True KeyError: 'the reason'",
        "KeyboardInterrupt", "nothing left", "b'v'"]


def test_the_page_and_top_are_inside(wheel: Path, tmp_path: Path) -> None:
    """No libmicrohttpd, no ncurses: of those the machine has the descriptions of terminals, which are on every one."""
    root = Root(tmp_path / "root", interpreters()[0])
    for library in [p for name in ("ncurses", "tinfo", "microhttpd") for p in root.path.rglob(f"lib{name}*.so*")]:
        library.unlink()
    xterm = subprocess.run(["infocmp", "-x", "xterm"], capture_output=True, text=True, check=True).stdout
    subprocess.run(["tic", "-x", "-o", root.path / "etc/terminfo", "-"], input=xterm, text=True, check=True,
                   capture_output=True)
    shutil.copy(wheel, root.job)
    shutil.copy(HERE / "bare_views.py", root.job)
    root.run(root.python, "-m", "venv", "/job/v")
    root.run("/job/v/bin/pip", "install", "-q", "--no-index", "--disable-pip-version-check", f"/job/{wheel.name}")
    out = root.run("/bin/sh", "-c", "TERM=xterm exec /job/v/bin/python /job/bare_views.py /job/v/bin/muster")
    assert out.splitlines()[-2:] == ["page True", "top True 0"]
