"""Restarts by cause, and exit codes that say something: real workers, one node and two, torchrun beside them."""
from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest
from etcd_server import Etcd
from patience import clock
from run_job import MUSTER, PATIENCE, Job, environment, free_port
from schemas import fits

COUNT = "import os; open(os.path.join(os.environ['WHERE'], 'starts' + os.environ['RANK']), 'a').write('x')\n"
SCRIPTS = {
    "missing": "import no_such_module\n",
    "syntax": "exec('if:')\n",
    "value": "raise ValueError('bad shard ' + os.environ['TORCHELASTIC_RESTART_COUNT'])\n",
    "usage": "raise SystemExit(2)\n",
    "seven": "raise SystemExit(7)\n",
    "segv": "os.kill(os.getpid(), 11)\n",
    "well": "",
}


@pytest.fixture(scope="module")
def etcd(tmp_path_factory):
    with Etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


def run(where, script, *words, kind="muster", nproc=1, env=None, patience=120):
    """Exit code, output, and how often rank 0 was started."""
    (where / "train.py").write_text(COUNT + SCRIPTS[script])
    job = Job(where, "out", f"--nproc-per-node={nproc}", *words, "train.py", kind=kind,
              env={"WHERE": str(where), **(env or {})})
    try:
        code = job.wait(patience)
        starts = where / "starts0"
        return code, job.text(), len(starts.read_text()) if starts.exists() else 0
    finally:
        job.end()


DEFAULT = ("--standalone", "--max-restarts=100", "--restart-policy=default", "--exit-codes=cause")


@pytest.mark.parametrize("script, starts, code, says", [
    ("missing", 1, 93, "a restart would fail in the same way: not restarted (exit code 93)"),
    ("syntax", 1, 93, "a restart would fail in the same way: not restarted (exit code 93)"),
    ("usage", 1, 93, "a restart would fail in the same way: not restarted (exit code 93)"),
    ("value", 3, 93, "as in the two attempts before, without progress in between: not restarted (exit code 93)"),
])
def test_default(tmp_path, script, starts, code, says):
    got, text, started = run(tmp_path, script, *DEFAULT)
    assert (got, started) == (code, starts), text
    assert says in text


def test_torchrun_beside_it(tmp_path):
    """torchrun retries what cannot work; so do we without the option, and exit alike."""
    for kind in ("torchrun", "muster"):
        (tmp_path / kind).mkdir()
        code, text, started = run(tmp_path / kind, "missing", "--standalone", "--max-restarts=2", kind=kind)
        assert (code, started) == (1, 3), text


def test_progress_begins_anew(tmp_path):
    """The file changes in the third attempt: that failure is the first of a new series."""
    (tmp_path / "progress").write_text("")
    SCRIPTS["progress"] = ("if os.environ['TORCHELASTIC_RESTART_COUNT'] == '2': open('progress', 'w').write('step')\n"
                           "raise ValueError('bad shard')\n")
    code, text, started = run(tmp_path, "progress", *DEFAULT, f"--progress-file={tmp_path}/progress")
    assert (code, started) == (93, 5), text


@pytest.mark.parametrize("words, script, starts, code", [
    (("--restart-policy=exit:7:stop", "--max-restarts=5"), "seven", 1, 93),
    (("--restart-policy=SystemExit:stop,exit:7:restart", "--max-restarts=2"), "seven", 3, 1),
    (("--restart-budget=2/1h",), "seven", 3, 1),
    (("--restart-budget=5/1h", "--max-restarts=1"), "seven", 2, 1),
    (("--restart-policy=signal:SIGSEGV:stop", "--max-restarts=5"), "segv", 1, 93),
    (("--restart-policy=default",), "seven", 1, 1),
    (("--restart-policy=default",), "well", 1, 0),
])
def test_rules_and_codes(tmp_path, words, script, starts, code):
    got, text, started = run(tmp_path, script, "--standalone", "--exit-codes=cause", *words)
    assert (got, started) == (code, starts), text


def test_file_and_report(tmp_path):
    (tmp_path / "rules").write_text("# what this site wants\nexit:7:free  # flaky node\n\nany:stop\n")
    SCRIPTS["flaky"] = "raise SystemExit(7 if len(open(os.environ['WHERE'] + '/starts0').read()) < 4 else 9)\n"
    code, text, started = run(tmp_path, "flaky", "--standalone", f"--restart-policy={tmp_path}/rules", "--report=r.json",
                              "--restart-backoff=50ms..1s")
    assert (code, started) == (1, 4), text
    report = json.loads((tmp_path / "r.json").read_text())
    fits(report, "report")
    assert [r["decided"] for r in report["restart_causes"]] == ["free"] * 3
    assert all(r["rule"] == "exit:7:free" and r["restart"] == 0 for r in report["restart_causes"])
    assert report["verdict"]["decided"] == "rule" and report["verdict"]["rule"] == "any:stop"
    waits = [r["wait_us"] for r in report["restart_causes"]]
    assert 50_000 <= waits[0] <= waits[1] * 1.01 <= waits[2] * 1.02 and waits[2] <= 200_000, waits


def test_print_config_explains(tmp_path):
    done = subprocess.run([MUSTER, "run", "--print-config", "--restart-policy=oom:stop", "--restart-budget=5/1h",
                           "--exit-codes=cause", "x.py"], capture_output=True, text=True, timeout=60, env=environment())
    config = json.loads(done.stdout)["config"]
    assert config["restart_policy"][0] == "oom:stop - the job ends"
    assert "node:free - restarted, not counted" in config["restart_policy"]
    assert config["restart_policy"][-1] == "anything else - restarted, and counted, at most 5/1h"
    assert config["exit_codes"] == "cause"


@pytest.mark.parametrize("backend", ["c10d", "static", "etcd-v3"])
def test_two_nodes(tmp_path, backend, request):
    """One place decides for both nodes; on static each does, and says so. The other node's policy differs: it is told."""
    (tmp_path / "train.py").write_text(
        COUNT + "import time\nif os.environ['RANK'] == '1': raise ValueError('bad shard')\ntime.sleep(100)\n")
    port = free_port()
    where = {"c10d": ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=policy"),
             "static": ("--master-addr=127.0.0.1", f"--master-port={port}"),
             "etcd-v3": ("--rdzv-backend=etcd-v3", "--rdzv-id=policy", "--rdzv-conf=last_call_timeout=1")}[backend]
    if backend == "etcd-v3":
        where += (f"--rdzv-endpoint={request.getfixturevalue('etcd').endpoint}",)
    jobs = []
    try:
        for i in range(2):
            own = {"c10d": (f"--rdzv-conf=is_host={1 - i}",), "static": (f"--node-rank={i}",), "etcd-v3": ()}[backend]
            policy = "default" if i == 0 else "default,oom:stop"
            jobs.append(Job(tmp_path, f"n{i}", "--nnodes=2", "--max-restarts=100", "--exit-codes=cause",
                            "--local-addr=127.0.0.1", f"--restart-policy={policy}", *where, *own, "train.py",
                            env={"WHERE": str(tmp_path)}))
        codes = [job.wait() for job in jobs]
        assert codes == [93, 93], [job.text() for job in jobs]
        assert len((tmp_path / "starts1").read_text()) == 3
        for job in jobs:
            assert "as in the two attempts before, without progress in between: not restarted" in job.text()
        alone = "each node decides about restarts for itself"
        assert [alone in job.text() for job in jobs] == [backend == "static"] * 2
        told = ["but the node that hosts the job decides, with " in job.text() for job in jobs]
        if backend == "etcd-v3":  # Either may host it; the other one is told.
            assert sorted(told) == [False, True], [job.text() for job in jobs]
        else:
            assert told == [False, backend == "c10d"], [job.text() for job in jobs]
    finally:
        for job in jobs:
            job.end()


@pytest.mark.parametrize("host", ["muster", "torchrun"])
def test_beside_torchrun(tmp_path, host):
    """A worker of our node fails: this node decides for itself, whoever serves the store, and says so."""
    (tmp_path / "train.py").write_text(
        COUNT + "import time\nif 'OURS' in os.environ: raise ValueError('bad shard')\n"
        "parent = os.getppid()\nwhile os.getppid() == parent: time.sleep(0.1)\n")  # torchrun may be killed before it
    port = free_port()
    jobs = []
    try:
        for i, kind in enumerate(("muster", "torchrun") if host == "muster" else ("torchrun", "muster")):
            ours = ("--restart-policy=default", "--exit-codes=cause") if kind == "muster" else ()
            jobs.append(Job(tmp_path, kind, "--nnodes=2", "--max-restarts=50", "--rdzv-backend=c10d",
                            f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=mixed", f"--rdzv-conf=is_host={1 - i}",
                            "--local-addr=127.0.0.1", *ours, "train.py", kind=kind,
                            env={"WHERE": str(tmp_path), **({"OURS": "1"} if kind == "muster" else {})}))
        ours = next(job for job in jobs if job.out.name == "muster.out")
        assert ours.wait() == 93, ours.text()
        assert ours.text().count("ValueError: bad shard\n") >= 3
        assert "as in the two attempts before" in ours.text()
        assert "each node decides about restarts for itself" in ours.text()
    finally:
        for job in jobs:
            job.end()


def test_backoff_is_shown_and_ends_with_a_signal(tmp_path):
    """While it waits, `muster status` says so; SIGTERM ends the wait."""
    SCRIPTS["late"] = "raise SystemExit(7)\n"
    (tmp_path / "train.py").write_text(COUNT + SCRIPTS["late"])
    job = Job(tmp_path, "out", "--standalone", "--restart-budget=3/1h", "--restart-backoff=300s..300s",
              "--status-http=127.0.0.1:0", "train.py",
              env={"WHERE": str(tmp_path), "TMPDIR": str(tmp_path)})
    try:
        job.until("Restart 1, in 300.0 s; 2 left of 3/1h")
        by, told = clock() + PATIENCE, ""
        while not re.search(r"back-off: the next attempt begins in \d+\.\d s", told):  # It waits once it has stopped its workers.
            assert clock() < by, told
            told = subprocess.run([MUSTER, "status", str(job.pid)], capture_output=True, text=True, timeout=60,
                                  env=environment(TMPDIR=str(tmp_path), COLUMNS="200")).stdout
        assert "1 restart (2 left)" in told, told
        shown = subprocess.run([MUSTER, "status", str(job.pid), "--url"], capture_output=True, text=True, timeout=60,
                               env=environment(TMPDIR=str(tmp_path))).stdout
        page = re.search(r"(http://\S+?)/(\?\S*)?\s", shown)
        url = f"{page[1]}/metrics{page[2] or ''}"
        done = subprocess.run([MUSTER, "status", str(job.pid), "--json"], capture_output=True, text=True, timeout=60,
                              env=environment(TMPDIR=str(tmp_path)))
        status = json.loads(done.stdout)
        status = status["jobs"][0] if "jobs" in status else status
        fits(status, "status")
        shown = status["job"]
        assert (shown["restarts_left"], shown["decided"], shown["rule"]) == (2, "restart", "3/1h"), shown
        assert shown["backoff_until"] > status["job"]["began"]
        with urllib.request.urlopen(url) as page:
            metrics = page.read().decode()
        assert "\nmuster_job_restarts_left 2\n" in metrics and "\nmuster_job_backoff 1\n" in metrics
        assert "\nmuster_job_restart_refused 0\n" in metrics
        os.kill(job.pid, signal.SIGTERM)
        assert job.wait() == 1
        assert len((tmp_path / "starts0").read_text()) == 1
    finally:
        job.end()


ELASTIC = """
import os, pathlib, time
where, world = pathlib.Path(os.environ["WHERE"]), os.environ["WORLD_SIZE"]
print("up", os.environ["RANK"], "of", world, flush=True)
while not (where / "end").exists():
    if world == "2" and os.environ["RANK"] == "0" and (where / "fail").exists():
        (where / "fail").unlink()
        raise ValueError("once")
    time.sleep(0.02)
"""


@pytest.mark.parametrize("backend", ["c10d", "etcd-v3"])
def test_a_newcomer_waits_for_those_who_wait(tmp_path, backend, request):
    """One node would be enough; the one that comes in the back-off does not begin without the others."""
    (tmp_path / "train.py").write_text(ELASTIC)
    port, jobs = free_port(), []

    def start():
        i = len(jobs)
        where = ((f"--rdzv-endpoint={request.getfixturevalue('etcd').endpoint}", "--rdzv-conf=last_call_timeout=1")
                 if backend == "etcd-v3" else
                 (f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-conf=last_call_timeout=1,is_host={int(i == 0)}"))
        jobs.append(Job(tmp_path, f"n{i}", "--nnodes=1:3", f"--rdzv-backend={backend}", "--rdzv-id=newcomer", *where,
                        "--max-restarts=3", "--restart-backoff=5s..5s", "--local-addr=127.0.0.1", "train.py",
                        env={"WHERE": str(tmp_path)}))

    try:
        start()
        start()
        for job in jobs:
            job.until(" of 2\n")
        (tmp_path / "fail").touch()
        for job in jobs:
            job.until("Restart 1 of 3, in 5.0 s")
        start()
        for job in jobs:
            job.until(" of 3\n")
        (tmp_path / "end").touch()
        assert [job.wait() for job in jobs] == [0, 0, 0], [job.text() for job in jobs]
        assert " of 1\n" not in jobs[2].text()
    finally:
        for job in jobs:
            job.end()


def test_a_lost_node_is_worth_another_try(tmp_path):
    """min 2: the agent of the other node is killed, and the job cannot go on."""
    (tmp_path / "train.py").write_text(COUNT + "import time\ntime.sleep(100)\n")
    port = free_port()
    jobs = []
    try:
        for i in range(2):
            jobs.append(Job(tmp_path, f"n{i}", "--nnodes=2", "--exit-codes=cause", "--restart-policy=node:stop",
                            "--local-addr=127.0.0.1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
                            "--rdzv-id=lost", f"--rdzv-conf=is_host={1 - i}", "train.py", env={"WHERE": str(tmp_path)}))
        jobs[0].until(lambda _: (tmp_path / "starts0").exists() and (tmp_path / "starts1").exists())
        os.kill(jobs[1].pid, signal.SIGKILL)
        assert jobs[0].wait() == 75, jobs[0].text()
        assert "(exit code 75)" in jobs[0].text()
    finally:
        for job in jobs:
            job.end()


def test_a_hang_has_a_code(tmp_path):
    SCRIPTS["hangs"] = "import threading\nthreading.Event().wait()\n"
    code, text, started = run(tmp_path, "hangs", "--standalone", "--exit-codes=cause", "--hang=1s:stop")
    assert (code, started) == (124, 1), text



POD = """
set -e
mount -t tmpfs none {pod}
cp -a /dev/null /dev/zero /dev/random /dev/urandom {pod}/
: > {pod}/termination-log
mount --move {pod} /dev
cd {where}
status=0
{muster} run --standalone --failure=short --exit-codes=cause train.py || status=$?
cat /dev/termination-log > {where}/told
exit $status
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs namespaces of its own")
def test_the_verdict_of_a_pod(tmp_path):
    """As PID 1 the verdict is also where Kubernetes looks for it."""
    (tmp_path / "train.py").write_text("import no_such_module\n")
    (tmp_path / "pod").mkdir()
    script = POD.format(pod=tmp_path / "pod", where=tmp_path, muster=MUSTER)
    # The shell is PID 1 of one namespace, and muster that of one below it.
    inner = script.replace(f"{MUSTER} run", f"unshare --pid --fork --mount-proc {MUSTER} run")
    done = subprocess.run(["unshare", "--mount", "sh", "-c", inner], capture_output=True, text=True, timeout=120,
                          env=environment())
    assert done.returncode == 93, done.stderr
    told = (tmp_path / "told").read_text()
    assert told.startswith("muster: the job failed: rank 0 on ") and told in done.stderr, told + done.stderr


GUIDE = (Path(__file__).resolve().parents[2] / "docs/guides/restarts.md").read_text()


def test_what_the_guide_says_to_schedulers(tmp_path):
    """Codes are those that we exit with, commands are understood, Python runs as it stands."""
    yaml = pytest.importorskip("yaml")
    job, jobset = (yaml.safe_load(x) for x in re.findall(r"```yaml\n(.*?)```", GUIDE, re.S))
    rules = {r["action"]: r["onExitCodes"]["values"] for r in job["spec"]["podFailurePolicy"]["rules"]}
    assert rules == {"FailJob": [93], "Ignore": [75]}
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"  # podFailurePolicy wants it
    assert jobset["spec"]["failurePolicy"]["rules"][0]["onJobFailureReasons"] == ["PodFailurePolicy"]
    (lsf,) = re.findall(r"bsub .* (muster run .*)", GUIDE)
    (tmp_path / "train.py").write_text("")
    for words in (job["spec"]["template"]["spec"]["containers"][0]["command"], lsf.split()):
        done = subprocess.run([MUSTER, "run", "--print-config", *words[2:]], capture_output=True, text=True, timeout=60,
                              env=environment(), cwd=tmp_path)
        config = json.loads(done.stdout)["config"]
        assert config["exit_codes"] == "cause" and config["notice"], done.stderr
    (snippet,) = re.findall(r"```python\n(.*?)```", GUIDE, re.S)
    (tmp_path / "muster").symlink_to(MUSTER)
    done = subprocess.run([environment()["PYTHON_EXEC"], "-c", snippet + "\nassert Train()() == 0\n"], timeout=60,
                          cwd=tmp_path, env=environment(PATH=f"{tmp_path}:{os.environ['PATH']}"))
    assert done.returncode == 0
