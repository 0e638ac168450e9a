"""Jobs that are looked at: a job with a page, and how to ask for it."""
from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interop"))
from patience import clock  # noqa: E402,F401
from run_job import MUSTER, ROOT, Job, free_port  # noqa: E402,F401

WORKER = """\
import os, sys, time, pathlib
where = pathlib.Path(sys.argv[1])
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
print("rank", rank, "attempt", attempt, "begins", flush=True)
print("a word on stderr from rank", rank, file=sys.stderr, flush=True)
(where / f"began.{rank}.{attempt}").touch()
while not (where / "end").exists():
    if (where / f"fail.{rank}").exists():
        (where / f"fail.{rank}").unlink()
        raise RuntimeError("bad data shard 17 <b>")
    time.sleep(0.02)
"""


def write_worker(where: Path) -> Path:
    script = where / "train.py"
    script.write_text(WORKER)
    return script


def start(where: Path, *words, name="job", run_id="seen", nproc=2, page="127.0.0.1:0", env=None) -> Job:
    page = [f"--status-http={page}"] if page else []
    return Job(where, name, "--rdzv-id", run_id, "--nproc-per-node", nproc, *page, *words,
               write_worker(where), where, env=env)


def until(holds, what="it", patience=60):
    """Waits until holds() returns something true, and returns that."""
    by = clock() + patience
    while True:
        found = holds()
        if found:
            return found
        assert clock() < by, f"{what} did not happen within {patience} s"
        time.sleep(0.05)


def muster(*words, check=True, env=None) -> subprocess.CompletedProcess:
    done = subprocess.run([str(MUSTER), *map(str, words)], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "COLUMNS": "200", **(env or {})})
    assert not check or done.returncode == 0, done.stderr
    return done


def status(job) -> dict | None:
    """The job's status by its agent's process number, or None while it has none."""
    done = muster("status", job.pid, "--json", check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def url(job) -> str:
    return until(lambda: muster("status", "--url", job.pid, check=False).stdout.strip(), "the page")


def get(address: str, headers=None, timeout=20):
    """(status code, headers, text)"""
    request = urllib.request.Request(address, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as r:
            return r.status, dict(r.headers), r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, dict(e.headers), e.read().decode()


def running(job, count=1):
    """Waits until the job's agent tells of so many nodes at work."""
    def holds():
        s = status(job)
        good = [n for n in (s or {}).get("nodes", []) if n["state"] == "running"]
        return s if len(good) >= count and s["job"]["state"] == "running" else None
    return until(holds, f"{count} nodes at work")


def stop(*jobs):
    for j in jobs:
        if j.process.poll() is None:
            j.process.terminate()
    for j in jobs:
        j.wait()
