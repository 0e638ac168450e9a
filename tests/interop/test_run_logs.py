"""Logs of jobs whose nodes come and go, and events in a file."""
import json
import subprocess

import pytest

from run_job import MUSTER, PATIENCE, ROOT, Job, environment, free_port, run

# Says which round this is, and goes on until the file STOP is there.
WORKER = "echo world $WORLD_SIZE; until [ -e STOP ]; do sleep 0.02; done"


def node(where, name, port, *words):
    return Job(where, name, "--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-id=grow", "--local-addr=127.0.0.1",
               f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-conf=last_call_timeout=1", *words, "--no-python", "sh", "-c",
               WORKER, env={"LOGLEVEL": "INFO"})


def test_a_new_round_keeps_the_logs_of_the_old(tmp_path):
    """torchrun wipes attempt_0 when a node joins. Its place stays the same with us; the
    files move aside."""
    port = free_port()
    said = lambda: [f.read_text() for f in tmp_path.glob("logs/grow_*/attempt_0/0/stdout.log")]
    with node(tmp_path, "one", port, "--log-dir=logs", "-r3") as one:
        one.until(lambda _: said() == ["world 1\n"])
        with node(tmp_path, "two", port, "--log-dir=/dev/null") as two:
            two.until("world 2")
            one.until(lambda _: said() == ["world 2\n"])
            (tmp_path / "STOP").touch()
            assert (one.wait(), two.wait()) == (0, 0), one.text() + two.text()
    run, = (tmp_path / "logs").iterdir()
    assert sorted(p.name for p in run.iterdir()) == ["attempt_0", "earlier"]
    kept = {str(p.relative_to(run / "earlier")): p.read_text() for p in (run / "earlier").rglob("*") if p.is_file()}
    assert kept == {"attempt_0.0/0/stdout.log": "world 1\n", "attempt_0.0/0/stderr.log": ""}
    assert f"the logs of the round that is over are in {run.relative_to(tmp_path)}/earlier/attempt_0.0" in one.text()


def test_events_in_a_file(tmp_path):
    """The records of the console, a line each; a second job adds to them."""
    names = []
    for words in (["true"], ["sh", "-c", "exit 3"]):
        code, text = run(tmp_path, "--standalone", "--event-log-handler=file:events", "--no-python", *words)
        assert code == (words != ["true"]) and '"metadata"' not in text, text
    for line in (tmp_path / "events").read_text().splitlines():
        event = json.loads(line)
        assert list(event) == ["name", "source", "timestamp", "metadata"]
        names.append((event["source"], event["name"].rpartition(".")[2]))
    begin = [("AGENT", "RENDEZVOUS"), ("AGENT", "ASSIGN_WORKER_RANKS"), ("WORKER", "START"), ("AGENT", "START_WORKERS")]
    assert names == [*begin, ("WORKER", "SUCCEEDED"), ("AGENT", "SUCCEEDED"),
                     *begin, ("WORKER", "FAILED"), ("AGENT", "FAILED")]


def test_without_inotify(tmp_path):
    """All containers of a user share 128 instances: a job runs without one, and says so once."""
    none = ["unshare", "-U", "-r", "sh", "-c", 'echo 0 > /proc/sys/user/max_inotify_instances && exec "$@"', "sh"]
    if subprocess.run([*none, "true"], capture_output=True).returncode != 0:
        pytest.skip("no user namespaces here")
    out = subprocess.run([*none, MUSTER, "run", "--standalone", "--nproc-per-node=2", "-t3", "--no-python", "sh", "-c",
                          "echo hi; echo ho >&2"], capture_output=True, text=True, cwd=tmp_path, env=environment(), timeout=100)
    assert out.returncode == 0, out.stderr
    assert sorted(out.stdout.splitlines()) == ["[default0]:hi", "[default1]:hi"]
    err = out.stderr.splitlines()
    assert sorted(line for line in err if line.startswith("[")) == ["[default0]:ho", "[default1]:ho"]
    said, = (line for line in err if "inotify" in line)
    assert said.startswith("W") and "(Too many open files): log files are looked at every 100 ms" in said


def test_a_filter_file_outlives_the_console(tmp_path):
    """`muster run -t 1 --duplicate-stdout-filters ... | head -1`: the file has every line."""
    worker = "for i in 1 2 3 4; do until [ -e GO$i ]; do sleep 0.02; done; echo zz$i; echo no; done"
    with Job(tmp_path, "job", "--standalone", "--log-dir=logs", "-t1", "--duplicate-stdout-filters=zz", "--no-python",
             "sh", "-c", worker, stdout=subprocess.PIPE) as job:
        (tmp_path / "GO1").touch()
        assert job.process.stdout.readline() == b"[default0]:zz1\n"
        job.process.stdout.close()
        for i in (2, 3, 4):
            (tmp_path / f"GO{i}").touch()
            want = "".join(f"[default0]:zz{n}\n" for n in range(1, i + 1))
            job.until(lambda _: [f.read_text() for f in tmp_path.glob("logs/*/attempt_0/filtered_stdout.log")] == [want])
        assert job.wait() == 0, job.text()
    assert job.text().count("error in log tailer for default0. BrokenPipeError") == 1


def test_logs_are_for_their_owner(tmp_path):
    """Run directories 0700 and files 0600, whatever the umask."""
    job = Job(tmp_path, "j", "--standalone", "--log-dir", tmp_path / "logs", "-r", "3", "--no-python", "sh", "-c", "echo hi")
    assert job.wait() == 0, job.text()
    (run,) = (tmp_path / "logs").iterdir()
    assert run.stat().st_mode & 0o777 == 0o700
    files = [p for p in run.rglob("*") if p.is_file()]
    assert files and all(p.stat().st_mode & 0o777 == 0o600 for p in files), files


MEETS = """
import os, time, muster
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = muster.Store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
store.set(f"here/{rank}", "")
store.wait([f"here/{r}" for r in range(world)])
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if rank == 1:
        os._exit(3)
    time.sleep(600)
"""


def test_workers_meet_again_where_stderr_is_a_pipe(tmp_path):
    """As under Slurm and in containers. The ended workers' pipes cost the next round its store: nobody heard
    its clients."""
    (tmp_path / "meets.py").write_text(MEETS)
    env = environment(PYTHONPATH=str(ROOT / "python/src"), MUSTER_LIBRARY=str(MUSTER.parent / "libmuster.so.0"))
    argv = [MUSTER, "run", "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-id=meet",
            f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--max-restarts=1", "meets.py"]
    nodes = [subprocess.Popen(argv, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, text=True,
                              stderr=subprocess.PIPE) for _ in range(2)]
    try:
        said = [n.communicate(timeout=PATIENCE)[1] for n in nodes]
    finally:
        for n in nodes:
            n.kill()  # The guard does the rest.
            n.wait()
    assert [n.returncode for n in nodes] == [0, 0], said
