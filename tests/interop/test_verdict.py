"""One verdict for the job: real gloo in two nodes, one rank fails, both nodes tell the same and exit alike."""
import json
import os
import pty
import re
import select
import subprocess
import time
from pathlib import Path

import pytest
from patience import clock
from run_job import MUSTER, Job, environment, free_port
from schemas import fits

WORKER = Path(__file__).with_name("verdict_worker.py")
NODES = ("--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-id=verdict")


def pair(where, *words, env=None, kinds=("muster", "muster"), wait=90):
    """Outputs and exit codes of two nodes; the first one serves the store."""
    port = free_port()
    both = (*NODES, f"--rdzv-endpoint=127.0.0.1:{port}")
    jobs = []
    try:
        for i, kind in enumerate(kinds):
            own = ("--local-addr=127.0.0.1", f"--rdzv-conf=is_host={1 - i}")
            jobs.append(Job(where, f"n{i}", *both, *own, *(words if kind == "muster" else ()), WORKER, kind=kind, env=env))
        codes = [job.wait(wait) for job in jobs]
        return [job.text() for job in jobs], codes
    finally:
        for job in jobs:
            job.end()


def verdict(text):
    """The lines below torch's box."""
    at = text.rfind("muster: the job failed")
    assert at >= 0, text[-3000:]
    return text[at:]


@pytest.mark.parametrize("how,says", [
    ("raise", r"RuntimeError: bad data shard 17\n +File \".*ways_to_fail.py\", line \d+, in load"),
    ("exit", r"exited with code 7"),
    ("segv", r"crashed: SIGSEGV"),
    ("kill", r"killed by SIGKILL; the kernel does not tell by whom"),
])
def test_culprit(tmp_path, how, says):
    """Victims fail within milliseconds of it, on both nodes; no restarts."""
    texts, codes = pair(tmp_path, env={"HOW": how})
    assert codes == [1, 1], texts
    assert verdict(texts[0]) == verdict(texts[1])
    assert re.search(r"the job failed: rank 3 on \S+ \(local rank 1, pid \d+\): " + says, verdict(texts[0])), verdict(texts[0])
    assert "3 other ranks on 2 nodes were stopped because of it; no restarts were allowed" in verdict(texts[0])
    assert len(verdict(texts[0]).splitlines()) <= 10
    assert "To enable traceback see" not in texts[1].split("Root Cause")[-1] or how == "exit"


def test_the_verdict_does_not_wait_for_the_goodbye(tmp_path):
    texts, codes = pair(tmp_path, env={"HOW": "exit", "TORCH_LOGS": "distributed"})
    assert codes == [1, 1], texts
    last = [text for text in texts if "' has closed the rendezvous '" in text]  # whoever was the first to say so
    assert last, texts
    for text in last:
        assert "' has closed the rendezvous '" in verdict(text), text[-3000:]


def test_restart_budget_of_the_job(tmp_path):
    """One count a round, the same on both nodes, told in one line; only the host's --max-restarts counts."""
    port = free_port()
    both = (*NODES, f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1")
    env = {"AT": "1", "STEPS": "60"}
    report = [tmp_path / "r0.json", tmp_path / "r1.json"]
    events = tmp_path / "events.jsonl"
    with Job(tmp_path, "n0", *both, "--rdzv-conf=is_host=1", "--max-restarts=3", f"--report={report[0]}", f"--event-log-handler=file:{events}", WORKER, env=env) as a, \
            Job(tmp_path, "n1", *both, "--rdzv-conf=is_host=0", "--max-restarts=0", f"--report={report[1]}", WORKER, env=env) as b:
        assert a.wait(120) == 0, a.text()[-3000:]
        assert b.wait(20) == 0, b.text()[-3000:]
        for job in (a, b):
            lines = re.findall(r"^muster: rank 3 on \S+ failed: RuntimeError: bad data shard 17 \(ways_to_fail.py:\d+\)\. Restart (\d) of 3\.$", job.text(), re.M)
            assert lines == ["1", "2"], job.text()[-3000:]
            assert len(re.findall(r"^muster: 4 ranks on 2 nodes started again after [\d.]+ m?s$", job.text(), re.M)) == 2, job.text()[-3000:]
            assert sorted(set(re.findall(r"BEGIN \d (\d)", job.text()))) == ["0", "1", "2"]
    stories = [json.loads(r.read_text()) for r in report]
    assert stories[0] == stories[1]
    assert stories[0]["outcome"] == "succeeded" and stories[0]["restarts"] == 2 and len(stories[0]["rounds"]) >= 3
    assert stories[0]["rounds"][-1]["exit_codes"] == [{"first_rank": 0, "count": 4, "code": 0}]
    assert stories[0]["restart_causes"][0]["rank"] == 3
    rounds = [{p["phase"]: p for p in r["phases"]} for r in stories[0]["rounds"]]
    rounds = [r for r in rounds if "start" in r]  # one that was given up while ranks were agreed on has none
    assert len(rounds) == 3
    assert set(rounds[0]) == {"rendezvous", "ranks", "start", "first_request"}, rounds[0]
    assert set(rounds[1]) == {"stop", "output", "judge", "rendezvous", "ranks", "start", "first_request"}, rounds[1]
    for p in rounds[1].values():
        assert 0 <= p["min_us"] <= p["median_us"] <= p["max_us"] < 60e6 and p["slowest_node"] in (1, 2)
    told = [e for e in map(json.loads, events.read_text().splitlines()) if e["metadata"]["duration_ms"] is not None]
    names = {e["name"].rsplit(".", 1)[1] for e in told}
    assert names == {"RENDEZVOUS", "ASSIGN_WORKER_RANKS", "START_WORKERS", "STOP_WORKERS", "PASS_OUTPUT", "JUDGE", "FIRST_REQUEST"}, names
    fits(stories[0], "report")


def test_report_of_a_failure(tmp_path):
    report = tmp_path / "r.json"
    texts, codes = pair(tmp_path, f"--report={report}", "-r", "3", f"--log-dir={tmp_path}/logs")
    assert codes == [1, 1]
    story = json.loads(report.read_text())
    fits(story, "report")
    assert story["outcome"] == "failed" and story["verdict"]["rank"] == 3
    assert story["verdict"]["text"] == "RuntimeError: bad data shard 17"
    assert "bad data shard" in story["verdict"]["last_words"]
    log = re.search(r"its output: (\S+)   the whole story: ", verdict(texts[0])).group(1)
    assert "bad data shard 17" in Path(log).read_text()
    assert {n["host"] for n in story["nodes"]} and len(story["nodes"]) == 2
    event = [n for n in story["rounds"][-1]["exit_codes"] if n["first_rank"] <= 3 < n["first_rank"] + n["count"]]
    assert event[0]["code"] == 1


def test_report_that_cannot_be_written(tmp_path):
    with Job(tmp_path, "j", "--standalone", "--no-python", "--report=/proc/r.json", "true") as job:
        assert job.wait() == 0
        assert "the report /proc/r.json cannot be written: No such file" in job.text()


def test_report_to_a_pipe(tmp_path):
    """What is not a regular file is written to, not replaced: --report=/dev/stderr, say."""
    pipe = tmp_path / "r"
    os.mkfifo(pipe)
    with Job(tmp_path, "j", "--standalone", "--no-python", f"--report={pipe}", "true") as job:
        assert job.wait() == 0
        assert f"the report {pipe} cannot be written" in job.text()  # Nobody reads it.
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)) as reader:
        with Job(tmp_path, "j", "--standalone", "--no-python", f"--report={pipe}", "true") as job:
            assert job.wait() == 0
        assert json.load(reader)["outcome"] == "succeeded"
    assert pipe.is_fifo() and sorted(p.name for p in tmp_path.iterdir()) == ["j.out", "r"]


def test_finish(tmp_path):
    """As torchrun: the node whose workers are well goes on to their own end."""
    with Job(tmp_path, "n0", *NODES, f"--rdzv-endpoint=127.0.0.1:{(port := free_port())}", "--rdzv-conf=is_host=1", "--on-failure=finish",
             "--local-addr=127.0.0.1", "--no-python", "sh", "-c", "sleep 4; echo DONE") as a, \
            Job(tmp_path, "n1", *NODES, f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-conf=is_host=0", "--local-addr=127.0.0.1",
                "--no-python", "sh", "-c", "sleep 1; exit 9") as b:
        assert b.wait() == 1
        assert a.wait() == 0, a.text()
        assert a.text().count("DONE") == 2


def test_garbage_is_harmless(tmp_path):
    with Job(tmp_path, "j", "--standalone", "--nproc-per-node=2", WORKER, env={"HOW": "garbage", "WHO": "1"}) as job:
        assert job.wait() == 1
        last = job.out.read_bytes().split(b"muster: the job failed")[-1]
    assert b"\\x1b[2J\\xff\\x00 over and out \\x1b]0;title\\x07" in last and b"\x1b" not in last


def test_torchrun_serves(tmp_path):
    """No coordinator then: our node tells what happened to its own workers."""
    texts, codes = pair(tmp_path, env={"HOW": "raise"}, kinds=("torchrun", "muster"), wait=120)
    assert codes[1] == 1
    assert "RuntimeError: bad data shard 17" in verdict(texts[1])


def test_torchrun_in_the_group(tmp_path):
    """A rank of ours fails for good: torchrun's node sees a closed run, ours tell the verdict."""
    texts, codes = pair(tmp_path, env={"HOW": "raise", "WHO": "1"}, kinds=("muster", "torchrun"), wait=120)
    assert codes[0] == 1
    assert "RuntimeError" in verdict(texts[0])


def test_terminal_stays_a_terminal(tmp_path):
    """Both streams are the terminal: a worker sees one, of the same size, and its words are kept."""
    script = tmp_path / "t.py"
    script.write_text("import os, sys\nprint('TTY', sys.stdout.isatty(), sys.stderr.isatty(), os.get_terminal_size(2))\n"
                      "sys.stderr.write('50%\\r100%\\n')\nraise ValueError('on a terminal')\n")
    pid, master = pty.fork()
    if pid == 0:
        os.execve(str(MUSTER), ["muster", "run", "--standalone", str(script)], {**environment(), "TERM": "xterm"})
    import fcntl
    import struct
    import termios
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))
    out = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:
            break
        if not part:
            break
        out += part
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    text = out.decode()
    assert "TTY True True os.terminal_size(columns=99, lines=33)" in text, text
    assert "50%\r100%\r\n" in text
    assert re.search(r"the job failed: \x1b\[31mrank 0 on \S+ \(local rank 0, pid \d+\): ValueError: on a terminal\x1b\[0m", text), text


@pytest.mark.parametrize("lines", [1, 5000])
def test_pipe_keeps_order_and_words(tmp_path, lines):
    """A pipe stays one, and all that was written arrives, in order, however much at once, though the reader is late."""
    script = tmp_path / "p.py"
    script.write_text("import os, stat\nassert stat.S_ISFIFO(os.fstat(2).st_mode)\n"
                      f"for i in range(0, 200000, {lines}): os.write(2, b''.join(b'line %d\\n' % k for k in range(i, i + {lines})))\nraise SystemExit(5)\n")
    with subprocess.Popen([str(MUSTER), "run", "--standalone", str(script)], stderr=subprocess.PIPE, env=environment(), cwd=tmp_path) as p:
        select.select([p.stderr], [], [], 60)
        time.sleep(0.2)  # Every pipe on the way is full by now, most often.
        text = p.communicate(timeout=100)[1].decode()
    assert re.findall(r"^line (\d+)$", text.split("muster: its last words")[0], re.M) == [str(i) for i in range(200000)]
    assert "exited with code 5" in verdict(text) and "line 199999" in verdict(text)


def test_one_pipe_for_both(tmp_path):
    """`2>&1 | tee`: lines of both streams come in the order in which the worker wrote them, and a reader that goes away
    ends the worker as it does without a launcher between."""
    words = [str(MUSTER), "run", "--standalone", "--no-python", "sh", "-c"]
    run = subprocess.run([*words, "i=0; while [ $i -lt 300 ]; do echo e$i >&2; echo o$i; i=$((i+1)); done; exit 5"], stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, env=environment(), cwd=tmp_path, text=True, timeout=60, check=False)
    assert re.findall(r"^[eo]\d+$", run.stdout, re.M) == [f"{s}{i}" for i in range(300) for s in "eo"]
    assert verdict(run.stdout).count("\n          ") == 4 and "  o299\n" in verdict(run.stdout), verdict(run.stdout)
    with subprocess.Popen([*words, "exec yes"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment(), cwd=tmp_path) as p:
        assert p.stdout.readline() == b"y\n"
        p.stdout.close()
        try:
            assert p.wait(60) == 1
        finally:
            p.kill()  # no matter if it is gone


def test_teed_lines_in_a_traceback(tmp_path):
    """-t 1 >file 2>&1: what is shown of a worker's stdout is not part of its traceback, wherever it lands."""
    script = tmp_path / "t.py"
    script.write_text("import os, time\n"
                      "os.write(2, b'Traceback (most recent call last):\\n  File \"a.py\", line 6, in m\\n')\n"
                      "print('step: 1', flush=True)\n"
                      "by = time.monotonic() + 60\n"
                      "while b':step: 1\\n' not in open('j.out', 'rb').read() and time.monotonic() < by: time.sleep(0.01)\n"
                      "os.write(2, b'ValueError: bad data\\n')\nos._exit(1)\n")
    with Job(tmp_path, "j", "--standalone", "--log-dir=logs", "-t=1", script) as job:
        assert job.wait() == 1
        assert "line 6, in m\n[default0]:step: 1\nValueError" in job.text(), job.text()
        assert re.match(r"muster: the job failed: rank 0 on \S+ \(local rank 0, pid \d+\): ValueError: bad data\n", verdict(job.text())), job.text()


def test_tee_alone(tmp_path):
    """-t shows the words, keeps them in a file, and the verdict has them and the file's name."""
    run = subprocess.run([str(MUSTER), "run", "--standalone", "--log-dir=logs", "-t=3", "--no-python", "sh", "-c", "echo 'disk is full' >&2; exit 7"],
                         stderr=subprocess.PIPE, env=environment(), cwd=tmp_path, text=True, timeout=60, check=False)
    assert run.returncode == 1
    assert "[default0]:disk is full\n" in run.stderr
    said = verdict(run.stderr)
    path = re.search(r"its output: (logs/\S+/attempt_0/0/stderr.log)", said)
    assert "exited with code 7" in said and "  disk is full\n" in said and path, said
    assert (tmp_path / path[1]).read_text() == "disk is full\n"


def test_hundreds_of_restarts(tmp_path):
    """Restarts with one cause are counted, not repeated; the report has the first and the last of everything."""
    with Job(tmp_path, "j", "--standalone", "--max-restarts=400", "--report=report.json", "--log-dir=logs", "--log-attempts=5",
             "--no-python", "sh", "-c", "exit 3") as job:
        assert job.wait(300) == 1
        text = job.text()
    lines = re.findall(r"^muster: rank 0 on \S+ failed: exited with code 3.* Restart (\d+) of 400\.(?: \((\d+) restarts? with)?", text, re.M)
    assert [int(n) for n, _ in lines[:3]] == [1, 2, 3] and int(lines[-1][0]) == 400, lines
    assert len(lines) + sum(int(left or 0) for _, left in lines) == 400 and len(lines) < 50, lines
    assert len(text.splitlines()) < 200, text
    report = json.loads((tmp_path / "report.json").read_text())
    fits(report, "report")
    assert report["restarts"] == 400 and len(report["rounds"]) + report["rounds_omitted"] == 401
    for name in ("rounds", "failures", "restart_causes"):
        assert report[name][0]["round"] == 0 and report[name][-1]["round"] >= 399, name
    (run,) = (tmp_path / "logs").iterdir()
    kept = {int(d.name.removeprefix("attempt_")) for d in run.iterdir()}
    assert kept == {0, 396, 397, 398, 399, 400}, kept


def test_recorded_error(tmp_path):
    """@record's error file has the exception and the frame, though nothing reaches stderr."""
    script = tmp_path / "r.py"
    script.write_text("import sys\nfrom torch.distributed.elastic.multiprocessing.errors import record\n\n\n"
                      "def load():\n    raise KeyError('shard')\n\n\n@record\ndef main():\n    load()\n\n\n"
                      "sys.excepthook = lambda *e: None\nmain()\n")
    with Job(tmp_path, "j", "--standalone", script) as job:
        assert job.wait(90) == 1
        assert re.search(r"the job failed: rank 0 on \S+ \(local rank 0, pid \d+\): KeyError: 'shard'\n +File \".*r.py\", line 6, in load\n", job.text()), job.text()


def test_shared_file(tmp_path):
    """2>file: our own log lines are not a worker's words, and that others write there, too, is said."""
    out = tmp_path / "out"
    script = 'echo "words of $RANK" >&2; if [ $RANK = 1 ]; then sleep 0.5; exit 7; fi; exec sleep 60'
    with open(out, "wb") as f:
        run = subprocess.run([str(MUSTER), "run", "--standalone", "--nproc-per-node=2", "--max-restarts=1", "--no-python", "sh", "-c", script],
                             stdout=f, stderr=f, env=environment(), timeout=60)
    assert run.returncode == 1
    said = verdict(out.read_text())
    assert "muster: the last lines of the file that it and others wrote to:\n" in said and "words of 1" in said, said
    assert "Sending process" not in said and "Restart 1" not in said, said


def test_stops_at_once(tmp_path):
    """Two nodes: from the failure to the last worker gone, little more than the workers take."""
    port = free_port()
    both = (*NODES, f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1", "--no-python", "sh", "-c")
    with Job(tmp_path, "n0", *both[:-3], "--rdzv-conf=is_host=1", *both[-3:], "echo UP; exec sleep 60") as a, \
            Job(tmp_path, "n1", *both[:-3], "--rdzv-conf=is_host=0", *both[-3:], "sleep 2; echo FAIL; exit 3") as b:
        b.until("FAIL")
        failed = clock()
        assert b.wait() == 1 and a.wait() == 1
        took = clock() - failed
        assert took < 5, (took, a.text(), b.text())
