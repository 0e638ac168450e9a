"""--notify: a real HTTP server and real commands hear of restarts and of the end; a dead URL costs nothing."""
from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from patience import clock
from run_job import MUSTER, Job, environment, free_port, marked


@pytest.fixture
def server():
    """Refuses the first request, as a service that is busy does. Whoever posts to /gone is refused for good."""
    got, busy = [], [True]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = 404 if self.path == "/gone" else 503 if busy else 200
            if status == 200:
                got.append(body)
            busy.clear()
            self.send_response(status)
            self.end_headers()

        def log_message(self, *words):
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}/hook", got
    httpd.shutdown()
    httpd.server_close()


def run(where, script, *words):
    (where / "train.py").write_text(script)
    job = Job(where, "out", *words, "train.py")
    try:
        return job.wait(), job.text()
    finally:
        job.end()


def until(what):
    by = clock() + 90
    while not what():
        assert clock() < by
        time.sleep(0.05)


def test_a_service_and_a_command(tmp_path, server):
    url, got = server
    said = tmp_path / "said"
    code, text = run(tmp_path, "raise ValueError('bad shard')\n", "--standalone", "--max-restarts=1",
                     f"--notify={url},cat >> {said}; echo >> {said}")
    assert code == 1, text
    until(lambda: len(got) == 2 and said.exists() and said.read_text().count("\n") >= 2)
    for events in (got, [json.loads(x) for x in said.read_text().splitlines() if x]):
        by = {e["event"]: e for e in events}
        assert set(by) == {"restart", "verdict"}
        assert "ValueError: bad shard (train.py:1). Restart 1 of 1." in by["restart"]["text"]
        assert "the job failed: rank 0 on " in by["verdict"]["text"]
        assert by["verdict"]["entry"]["cause"] == "exception" and by["verdict"]["entry"]["rank"] == 0


def test_the_end_of_a_job_that_went_well(tmp_path, server):
    url, got = server
    code, text = run(tmp_path, "", "--standalone", f"--notify={url}")
    assert code == 0, text
    until(lambda: got)
    assert got[0]["event"] == "end" and got[0]["text"].endswith("the job succeeded")


def test_a_hang(tmp_path, server):
    url, got = server
    code, text = run(tmp_path, "import threading\nthreading.Event().wait()\n", "--standalone", "--hang=1s:stop", f"--notify={url}")
    assert code == 1, text
    until(lambda: {"hang", "verdict"} <= {e["event"] for e in got})
    by = {e["event"]: e for e in got}
    assert "no rank has made progress for 1 s" in by["hang"]["text"] and "rank 0 on " in by["hang"]["text"], by
    assert by["hang"]["entry"]["cause"] == by["verdict"]["entry"]["cause"] == "hang"


def test_a_notice(tmp_path, server):
    url, got = server
    (tmp_path / "train.py").write_text("print('up', flush=True)\nimport threading\nthreading.Event().wait()\n")
    with Job(tmp_path, "out", "--standalone", "--notice=SIGUSR1:60s", f"--notify={url}", "train.py") as job:
        job.until("up")
        os.kill(job.pid, signal.SIGUSR1)
        assert job.wait() == 1, job.text()
    until(lambda: {"notice", "verdict"} <= {e["event"] for e in got})
    by = {e["event"]: e for e in got}
    assert f" is to go in 60 s (SIGUSR1 from pid {os.getpid()} " in by["notice"]["text"], by
    assert by["notice"]["entry"]["cause"] == by["verdict"]["entry"]["cause"] == "notice"


def test_what_was_not_delivered_is_said_once(tmp_path, server):
    """While the job runs, in its log, and without the address, which may hold a password."""
    url, got = server
    (tmp_path / "train.py").write_text("import os, signal\nif os.environ['TORCHELASTIC_RESTART_COUNT'] < '3': raise ValueError('x')\n"
                                       "signal.pause()\n")
    with Job(tmp_path, "out", "--standalone", "--max-restarts=3", f"--notify={url},{url.replace('hook', 'gone')}", "train.py") as job:
        job.until("--notify: target 2 was not told of the restart: the server answered with status 404")
        until(lambda: len(got) == 3)
        os.kill(job.pid, signal.SIGTERM)
        assert job.wait() == 1
        assert job.text().count("--notify: ") == 1 and "/gone" not in job.text(), job.text()


def parents(pid):
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        yield pid


def test_who_delivers_holds_nothing_of_the_jobs(tmp_path):
    """A pipe that whoever starts the job has left open, at a high number, is not kept open by it."""
    mark = f"notify-{os.getpid()}-{tmp_path.name}"
    (tmp_path / "train.py").write_text("import signal\nsignal.pause()\n")
    there, mine = os.pipe()
    high = fcntl.fcntl(mine, fcntl.F_DUPFD, 1100)
    name = os.readlink(f"/proc/self/fd/{high}")
    job = subprocess.Popen([MUSTER, "run", "--standalone", "--notify=true", "train.py"], cwd=tmp_path, pass_fds=(high,),
                           env=environment(MARK=mark), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        def holds(pid):
            return name in [os.readlink(x) for x in Path(f"/proc/{pid}/fd").iterdir()]

        def lets_go():
            try:
                outside = [p for p in marked(mark) if p != job.pid and job.pid not in parents(p)]
                return len(outside) == 1 and holds(job.pid) and not holds(outside[0])
            except OSError:  # One of them has ended, or closed a file, meanwhile.
                return False
        until(lets_go)
    finally:
        job.kill()
        job.wait()
        for fd in (there, mine, high):
            os.close(fd)


def test_a_dead_url_delays_nobody(tmp_path):
    """Nobody listens; the job ends, and whoever reads its output is done, while it is still tried."""
    began = clock()
    code, text = run(tmp_path, "", "--standalone", f"--notify=http://127.0.0.1:{free_port()}/")
    assert code == 0, text
    assert clock() - began < 60  # the minute for which it is tried
