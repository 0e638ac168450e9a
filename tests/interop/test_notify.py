"""--notify: a real HTTP server and real commands hear of restarts and of the end; a dead URL costs nothing."""
from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from patience import clock
from run_job import Job, free_port


@pytest.fixture
def server():
    """Refuses the first request, as a service that is busy does."""
    got, busy = [], [True]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = 503 if busy else 200
            if not busy:
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


def test_a_dead_url_delays_nobody(tmp_path):
    """Nobody listens; the job ends, and whoever reads its output is done, while it is still tried."""
    began = clock()
    code, text = run(tmp_path, "", "--standalone", f"--notify=http://127.0.0.1:{free_port()}/")
    assert code == 0, text
    assert clock() - began < 60  # the minute for which it is tried
