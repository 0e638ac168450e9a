"""README from top to bottom, as a new user would: every command in it is executed."""
from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interop"))
from ports import free_port  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", TEXT, re.S)
            for line in block.splitlines() if line]
PLAIN = re.sub(r"```.*?```|<!-- published.*?<!-- end -->", "", TEXT, flags=re.S)
EXAMPLES = [re.sub(r"\\\n\s*", " ", block).strip() for block in re.findall(r"(?:^    .*\n)+", PLAIN, re.M)]
ENV = dict(os.environ, PATH=f"{ROOT / 'build'}:{os.environ['PATH']}", OMP_NUM_THREADS="1",
           PYTHON_EXEC=sys.executable)


def test_what_there_is_to_execute() -> None:
    assert COMMANDS[:2] == ["make demo", "make test"]  # the second is what runs this
    assert len(COMMANDS) >= 3 and len(EXAMPLES) == 1


def test_what_a_newcomer_looks_for() -> None:
    """Two minutes: gain first, a moving picture, three boxes of output, eight rows beside the others, five numbers."""
    assert len(TEXT.splitlines()) < 150
    assert "0.1 s" in TEXT.splitlines()[2] and "docs/guides/images/demo.svg" in TEXT.split("## ")[0]
    boxes = re.findall(r"```\n(.*?)```", re.sub(r"```sh\n.*?```", "", TEXT, flags=re.S), re.S)
    assert len(boxes) == 3 and "the job failed" in boxes[0] and "<-- differs" in boxes[1] and "missing" in boxes[2]
    tables = [t.splitlines()[2:] for t in TEXT.split("\n\n") if re.match(r"\| (\| muster|work)", t)]
    assert [len(t) for t in tables] == [8, 5]
    assert "GPUs yet" in TEXT and "`make trials-gpu`" in TEXT


@pytest.mark.parametrize("command", [
    c for c in COMMANDS if c != "make test"])
def test_commands(command: str) -> None:
    done = subprocess.run(command, shell=True, cwd=ROOT, env=ENV, text=True,
                          capture_output=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    if command == "make demo":
        assert "kill -9" in done.stdout and "ended well" in done.stdout
    if "echo rank" in command:
        assert sorted(done.stdout.splitlines()) == [f"rank {r} of 4" for r in range(4)]


def test_demo_torch() -> None:
    assert "`make demo-torch`" in TEXT
    done = subprocess.run(["make", "demo-torch"], cwd=ROOT, env=ENV, text=True,
                          capture_output=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9" in done.stdout and "ended well" in done.stdout
    assert re.search(r"to the next finished step(?: +[0-9.]+ s){3}", done.stdout), done.stdout


def test_every_target_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"(?:`|^)make ([a-z][a-z-]*)", TEXT, re.M))
    assert {"demo", "test", "bench", "wheel", "static", "deb", "install", "soak"} <= named
    assert [t for t in named if not re.search(rf"^{t}:", makefile, re.M)] == []


def test_the_store() -> None:
    text = (ROOT / "docs/guides/from-torchrun.md").read_text()
    (command,) = re.findall(r"```sh\n(muster store.*)\n```", text)
    server = subprocess.Popen(shlex.split(command.replace("29400", "0")), env=ENV, text=True,
                              stdout=subprocess.PIPE)
    assert server.stdout.readline().startswith("listening on 127.0.0.1:")
    server.terminate()
    assert server.wait(10) == 0


def test_two_machines(tmp_path: Path) -> None:
    """Both lines here, with this machine for the first host and a script of ours."""
    (tmp_path / "train.py").write_text(
        "import os; os.write(1, f\"rank {os.environ['RANK']}\\n\".encode())")
    port = free_port()
    assert "first-host:29400" in EXAMPLES[0] and "--nproc-per-node=8" in EXAMPLES[0]
    command = EXAMPLES[0].replace("first-host:29400", f"127.0.0.1:{port}")
    nodes = [subprocess.Popen(shlex.split(command), cwd=tmp_path, env=ENV, text=True,
                              stdout=subprocess.PIPE) for _ in range(2)]
    out = "".join(n.communicate(timeout=100)[0] for n in nodes)
    assert [n.returncode for n in nodes] == [0, 0]
    assert sorted(out.split("\n")) == sorted(["", *[f"rank {r}" for r in range(16)]])


def test_the_program_of_the_embedding_guide(tmp_path: Path) -> None:
    text = (ROOT / "docs/guides/embedding.md").read_text()
    (source,) = re.findall(r"```c\n(.*?)```", text, re.S)
    (tmp_path / "p.c").write_text(source)
    subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "-o", tmp_path / "p",
                    tmp_path / "p.c", f"-I{ROOT}/include", f"-L{ROOT}/build", "-lmuster",
                    f"-Wl,-rpath,{ROOT}/build"], check=True)
    done = subprocess.run([tmp_path / "p"], text=True, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "visitor number 1\n"), done.stderr
