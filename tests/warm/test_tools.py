"""Debuggers, profilers and coverage see the same of a warm worker as of a plain one: each is run both ways."""
import json
import pstats
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/interop"))
from patience import clock  # noqa: E402
from run_job import PATIENCE, Job, free_port, run  # noqa: E402

FRAMEWORKS = ROOT / "build/frameworks/bin/python"
SOURCE = """\
import threading


def fib(n):
    if n < 2:
        return n
    return fib(n - 1) + fib(n - 2)


def unused():
    return 1


def main():
    total = fib(5)
    t = threading.Thread(target=fib, args=(3,))
    t.start()
    t.join()
    print("total", total, flush=True)


main()
"""


def coverage_data(where):
    """Lines, arcs and contexts of the script, as coverage itself reads them."""
    files = sorted(str(p) for p in where.glob(".coverage*") if p.suffix != ".rc")
    subprocess.run([FRAMEWORKS, "-m", "coverage", "combine", "-q", "--data-file=all", *files], cwd=where, check=True)
    subprocess.run([FRAMEWORKS, "-m", "coverage", "json", "-q", "--data-file=all", "--include=tool.py", "-o", "out.json"],
                   cwd=where, check=True)
    got = json.loads((where / "out.json").read_text())["files"]["tool.py"]
    return len(files), got["executed_lines"], got["missing_lines"], got.get("executed_branches")


def profile_data(where):
    rows = pstats.Stats(str(where / "prof")).stats
    return sorted((name, line, calls) for (file, line, name), (calls, *_) in rows.items() if file.endswith("tool.py"))


def nothing(where):
    return None


PROCESS_START = "import coverage\ncoverage.process_startup()\n"
TOOLS = {
    "coverage": (["-m", "coverage", "run", "--branch", "tool.py"], {}, coverage_data),
    "coverage-parallel": (["-m", "coverage", "run", "--parallel-mode", "--concurrency=multiprocessing,thread", "tool.py"],
                          {}, coverage_data),
    "coverage-process-startup": (["tool.py"], {"COVERAGE_PROCESS_START": ".coveragerc", "PYTHONPATH": "custom"},
                                 coverage_data),
    "cProfile": (["-m", "cProfile", "-o", "prof", "tool.py"], {}, profile_data),
    "pdb": (["-m", "pdb", "-c", "b fib", "-c", "c", "-c", "bt", "-c", "p n", "-c", "s", "-c", "l", "-c", "q", "tool.py"],
            {}, nothing),
    "tracemalloc": (["tool.py"], {"PYTHONTRACEMALLOC": "3"}, nothing),
}


def place(where):
    where.mkdir()
    (where / "tool.py").write_text(SOURCE)
    (where / "custom").mkdir()
    (where / "custom/sitecustomize.py").write_text(PROCESS_START)
    (where / ".coveragerc").write_text("[run]\nparallel = true\nbranch = true\nsource = .\n")
    return where


@pytest.mark.skipif(not FRAMEWORKS.exists(), reason="build/frameworks is not there")
@pytest.mark.parametrize("tool", TOOLS)
def test_tool(tmp_path, tool):
    words, env, look = TOOLS[tool]
    got = []
    for kind in ("plain", "warm"):
        where = place(tmp_path / kind)
        warm = ["--warm=json"] if kind == "warm" else []
        code, text = run(where, *warm, "--redirects=3", "--log-dir=logs", *words, env={"PYTHON_EXEC": str(FRAMEWORKS), **env})
        assert "ordinary way" not in text, text
        said = [p.read_text().replace(str(where), "WHERE") for p in sorted((where / "logs").rglob("std*.log"))]
        got.append((code, said, look(where)))
    assert got[0] == got[1]


class Debugger:
    """What an editor says to debugpy: requests of the debug adapter protocol, one after the other."""

    def __init__(self, port):
        by = clock() + PATIENCE
        while True:
            try:
                self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
                break
            except ConnectionRefusedError:
                assert clock() < by, "debugpy does not listen"
                time.sleep(0.05)
        self.file, self.number, self.events = self.socket.makefile("rb"), 0, []

    def send(self, command, **arguments):
        self.number += 1
        text = json.dumps({"seq": self.number, "type": "request", "command": command, "arguments": arguments}).encode()
        self.socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
        return self.number

    def message(self):
        length = 0
        while (line := self.file.readline()) not in (b"\r\n", b""):
            length = int(line.split(b":")[1])
        return json.loads(self.file.read(length))

    def answer(self, number):
        while True:
            got = self.message()
            if got["type"] == "event":
                self.events.append(got)
            elif got["type"] == "response" and got["request_seq"] == number:
                assert got["success"], got
                return got.get("body")

    def ask(self, command, **arguments):
        return self.answer(self.send(command, **arguments))

    def event(self, name):
        while True:
            for i, got in enumerate(self.events):
                if got["event"] == name:
                    return self.events.pop(i).get("body")
            got = self.message()
            if got["type"] == "event":
                self.events.append(got)


def debug(where, port):
    """Stops at a line, looks around, and lets it go on."""
    d = Debugger(port)
    d.ask("initialize", adapterID="test", pathFormat="path")
    attached = d.send("attach", justMyCode=False)
    d.event("initialized")
    d.ask("setBreakpoints", source={"path": str(where / "tool.py")}, breakpoints=[{"line": 6, "condition": "n == 0"}])
    d.ask("configurationDone")
    d.answer(attached)
    thread = d.event("stopped")["threadId"]
    frames = d.ask("stackTrace", threadId=thread)["stackFrames"]
    mine = [(f["name"], f["line"]) for f in frames if f["source"].get("path", "").endswith("tool.py")]
    scope = d.ask("scopes", frameId=frames[0]["id"])["scopes"][0]["variablesReference"]
    values = [(v["name"], v["value"]) for v in d.ask("variables", variablesReference=scope)["variables"]]
    total = d.ask("evaluate", expression="fib(n + 7)", frameId=frames[0]["id"], context="repl")["result"]
    d.ask("setBreakpoints", source={"path": str(where / "tool.py")}, breakpoints=[])
    d.ask("continue", threadId=thread)
    return mine, values, total, frames[-1]["name"]


@pytest.mark.skipif(not FRAMEWORKS.exists(), reason="build/frameworks is not there")
def test_debugpy(tmp_path):
    got = []
    for kind in ("plain", "warm"):
        where, port = place(tmp_path / kind), free_port()
        warm = ["--warm=json"] if kind == "warm" else []
        with Job(where, "job", *warm, "-m", "debugpy", "--listen", f"127.0.0.1:{port}", "--wait-for-client", "tool.py",
                 env={"PYTHON_EXEC": str(FRAMEWORKS)}) as job:
            seen = debug(where, port)
            assert job.wait() == 0 and "total 5" in job.text() and "ordinary way" not in job.text(), job.text()
        got.append(seen)
    assert got[0] == got[1] and got[0][0][0] == ("fib", 6) and got[0][2] == "13", got
