"""The interpreter behind the shim of a version manager is asked for once, and is what workers run."""
from __future__ import annotations

from pathlib import Path

import pytest
from run_job import VENV, run

WORKER = """
import os, sys
os.write(1, f"RAN {sys.executable} {os.environ.get('SHIMMED')}\\n".encode())  # in one piece: two workers write
"""
MANAGER = """#!/bin/sh
echo "$*" >>{asked}
case "$1" in
which) {which};;
exec) shift 2; SHIMMED=yes exec {python} "$@";;
esac
"""
SHIMS = {  # as pyenv and asdf write them
    "pyenv": '#!/usr/bin/env bash\nset -e\nprogram="${{0##*/}}"\nexport PYENV_ROOT="{root}"\nexec "{manager}" exec "$program" "$@"\n',
    "asdf": '#!/usr/bin/env bash\n# asdf-plugin: python 3.11\nexec {manager} exec "python" "$@" # asdf_allow: asdf exec\n',
}


def shim(where: Path, kind: str, which: str) -> Path:
    """Two programs: one as the manager makes them, and the manager's own part in it."""
    manager, program = where / kind, where / "python"
    manager.write_text(MANAGER.format(asked=where / "asked", which=which, python=VENV / "python"))
    program.write_text(SHIMS[kind].format(root=where, manager=manager))
    for path in (manager, program):
        path.chmod(0o755)
    return program


@pytest.mark.parametrize("kind", SHIMS)
@pytest.mark.parametrize("warm", [(), ("--warm=json",)], ids=["cold", "warm"])
def test_the_interpreter_behind_a_shim(tmp_path, kind, warm):
    (tmp_path / "w.py").write_text(WORKER)
    python = shim(tmp_path, kind, f"echo {VENV / 'python'}")
    code, text = run(tmp_path, "--nproc-per-node=2", *warm, "w.py", env={"PYTHON_EXEC": str(python)})
    assert code == 0 and text.splitlines() == [f"RAN {VENV / 'python'} None"] * 2, text
    assert (tmp_path / "asked").read_text() == "which python\n"


@pytest.mark.parametrize("which", ["exit 1", "echo not-a-path", "echo /nowhere/python", "true"])
def test_a_manager_that_does_not_know(tmp_path, which):
    """Then the shim itself is run, as by torchrun."""
    (tmp_path / "w.py").write_text(WORKER)
    code, text = run(tmp_path, "w.py", env={"PYTHON_EXEC": str(shim(tmp_path, "pyenv", which))})
    assert code == 0 and text == f"RAN {VENV / 'python'} yes\n", text


def test_another_wrapper_is_left_alone(tmp_path):
    (tmp_path / "w.py").write_text("import os; print('RAN', os.environ['MINE'], flush=True)\n")
    wrapper = tmp_path / "python"
    wrapper.write_text(f"#!/bin/sh\nMINE=yes exec {VENV / 'python'} \"$@\"\n")
    wrapper.chmod(0o755)
    for warm in ((), ("--warm=json",)):
        code, text = run(tmp_path, *warm, "w.py", env={"PYTHON_EXEC": str(wrapper)})
        assert code == 0 and text == "RAN yes\n", text


PYENV = Path.home() / ".pyenv/shims/python3"


@pytest.mark.skipif(not PYENV.exists(), reason="no pyenv here")
def test_pyenv(tmp_path):
    (tmp_path / "w.py").write_text(WORKER)
    code, text = run(tmp_path, "w.py", env={"PYTHON_EXEC": str(PYENV)})
    assert code == 0 and text.startswith(f"RAN {Path.home()}/.pyenv/versions/"), text
