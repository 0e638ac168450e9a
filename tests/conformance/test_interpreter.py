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
    assert complete(["muster", "r"]) == ["run", "report"]
    assert complete(["muster", "run", "--max"]) == ["--max-restarts"]
    assert complete(["muster", "run", "--start-method", "fork"]) == ["fork", "forkserver"]
    assert complete(["muster", "run", "--numa_binding", "s"]) == ["socket"]
    assert complete(["muster", "run", "READ"]) == ["README.md"]
    assert "--nnodes" in complete(["torchrun", "--n"])
    assert complete(["muster", "run", "--start-method", "=", "fork"]) == ["fork", "forkserver"]
    assert "file:" in complete(["muster", "run", "--event-log-handler", "="])


def script_for(shell: str, *argv: str) -> str:
    return subprocess.run([MUSTER, *(argv or ("completion", shell))], capture_output=True, text=True,
                          check=True).stdout


def test_torchrun_prints_the_same(tmp_path):
    """torch 2.15's own option, for which torch needs another package."""
    (tmp_path / "torchrun").symlink_to(MUSTER)
    for shell in ("bash", "zsh", "tcsh"):
        assert script_for(shell) == script_for(shell, "run", "--print-completion", shell)
        done = subprocess.run([tmp_path / "torchrun", f"--print_completion={shell}"], capture_output=True,
                              text=True, check=True)
        assert done.stdout == script_for(shell) and not done.stderr
    done = subprocess.run([MUSTER, "completion", "csh"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "bash|zsh|fish|tcsh" in done.stderr


def need(shell: str) -> str:
    return shutil.which(shell) or pytest.skip(f"there is no {shell} here")


def test_zsh_completion_is_a_function():
    script = script_for("zsh")
    assert script.startswith("#compdef muster torchrun\n")
    subprocess.run([need("zsh"), "-n"], input=script, text=True, check=True)


def test_fish_completion(tmp_path):
    (tmp_path / "muster.fish").write_text(script_for("fish"))
    assert "a number, or a range MIN:MAX." in script_for("fish")  # as --help says it

    def ask(line: str) -> list[str]:
        done = subprocess.run([need("fish"), "--no-config", "-c",
                               f"source {tmp_path}/muster.fish; complete -C '{line}'"],
                              capture_output=True, text=True, check=True, cwd=ROOT)
        assert not done.stderr
        return [w.partition("\t")[0] for w in done.stdout.splitlines()]

    assert ask("muster la") == ["launch"]
    assert ask("muster run --max") == ["--max-restarts"]
    assert ask("muster run --start-method fork") == ["fork", "forkserver"]
    assert "README.md" in ask("torchrun READ")
    assert "--nnodes" in ask("torchrun --nn")


def test_tcsh_completion(tmp_path):
    """tcsh completes on a terminal alone; that it takes the rules can be seen without."""
    (tmp_path / "c.csh").write_text(script_for("tcsh") + "complete\n")
    done = subprocess.run([need("tcsh"), "-f", tmp_path / "c.csh"], capture_output=True, text=True, check=True)
    assert not done.stderr
    assert done.stdout.startswith("muster\t") and "\ntorchrun\t" in done.stdout
    assert "'n/--start-method/(spawn fork forkserver)/'" in done.stdout


def test_manual_page():
    text = (MUSTER.parent / "docs/muster-run.1").read_text()
    assert text.startswith(".TH MUSTER\\-RUN 1")
    if man := shutil.which("man"):
        done = subprocess.run([man, "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", "-"], input=text,
                              capture_output=True, text=True, check=False)
        assert not done.stderr
