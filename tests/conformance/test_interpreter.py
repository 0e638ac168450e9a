"""Which Python runs the script: PYTHON_EXEC, the active virtual environment's, the one
beside the program, python3 or python on PATH. And the completion scripts."""
from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
MUSTER = ROOT / "build" / "muster"


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def ask(env: dict[str, str], muster: Path = MUSTER, *args: str):
    done = subprocess.run([muster, "run", "--print-config", *args, "x.py"], env=env,
                          capture_output=True, text=True, check=False)
    if done.returncode:
        return done.returncode, done.stderr
    config = json.loads(done.stdout)["config"]
    return config["argv"][0][0], config["report_name"]


@pytest.fixture
def places(tmp_path):
    """A program without a Python beside it, and the places that may hold one."""
    muster = tmp_path / "alone" / "muster"
    muster.parent.mkdir()
    shutil.copy(MUSTER, muster)
    return tmp_path, muster


def test_exec_variable_wins(places):
    tmp, muster = places
    program(tmp / "venv/bin/python")
    env = {"VIRTUAL_ENV": str(tmp / "venv"), "PYTHON_EXEC": "mypython"}
    assert ask(env, muster) == ("mypython", "mypython")


def test_exec_variable_that_changes_nothing(places):
    tmp, muster = places
    python = program(tmp / "venv/bin/python3")
    env = {"VIRTUAL_ENV": str(tmp / "venv"), "PYTHON_EXEC": str(python)}
    assert ask(env, muster) == (str(python), "x.py")


def test_virtual_environment_then_beside_then_path(places):
    tmp, muster = places
    on_path = program(tmp / "path/python")
    env = {"VIRTUAL_ENV": str(tmp / "venv"), "PATH": f"relative:{tmp}/none::{tmp}/path"}
    assert ask(env, muster) == (str(on_path), "x.py")
    better = program(tmp / "path/python3")
    assert ask(env, muster)[0] == str(better)
    beside = program(muster.parent / "python3")
    assert ask(env, muster)[0] == str(beside)
    active = program(tmp / "venv/bin/python")
    assert ask(env, muster)[0] == str(active)


def test_none_at_all(places):
    tmp, muster = places
    (tmp / "path/python3").mkdir(parents=True)  # a directory is none
    code, said = ask({"PATH": f"{tmp}/path"}, muster)
    assert code == 1 and "no Python found" in said and "PYTHON_EXEC" in said
    assert ask({"PATH": f"{tmp}/path"}, muster, "--no-python")[0] == "x.py"


def complete(words: list[str]) -> list[str]:
    script = subprocess.run([MUSTER, "completion", "bash"], capture_output=True, text=True,
                            check=True).stdout
    ask_bash = script + f"""
COMP_WORDS=({' '.join(repr(w) for w in words)}); COMP_CWORD={len(words) - 1}
_muster; printf '%s\\n' "${{COMPREPLY[@]}}\""""
    done = subprocess.run(["bash", "-c", ask_bash], capture_output=True, text=True, check=True,
                          cwd=ROOT)
    assert not done.stderr
    return done.stdout.split()


def test_bash_completion():
    assert complete(["muster", "r"]) == ["run"]
    assert complete(["muster", "run", "--max"]) == ["--max-restarts"]
    assert complete(["muster", "run", "--start-method", "fork"]) == ["fork", "forkserver"]
    assert complete(["muster", "run", "--numa_binding", "s"]) == ["socket"]
    assert complete(["muster", "run", "READ"]) == ["README.md"]
    assert "--nnodes" in complete(["torchrun", "--n"])


def test_zsh_completion_is_a_function():
    script = subprocess.run([MUSTER, "completion", "zsh"], capture_output=True, text=True,
                            check=True).stdout
    assert script.startswith("#compdef muster\n")
    if zsh := shutil.which("zsh"):
        subprocess.run([zsh, "-n"], input=script, text=True, check=True)


def test_manual_page():
    text = subprocess.run([MUSTER, "help", "--man"], capture_output=True, text=True, check=True).stdout
    assert text.startswith(".TH MUSTER\\-RUN 1")
    if man := shutil.which("man"):
        done = subprocess.run([man, "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", "-"], input=text,
                              capture_output=True, text=True, check=False)
        assert not done.stderr
