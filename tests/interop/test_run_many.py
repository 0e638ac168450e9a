"""Many at once: jobs side by side, many workers, much output, the C API's examples."""
import collections
import os
import re
import subprocess
from pathlib import Path

from run_job import MUSTER, ROOT, Job, environment, run

BUILD = ROOT / os.environ.get("MUSTER_BUILD", "build")
EXAMPLES = BUILD / "examples"
INTEROP = BUILD / "tests" / "interop"


def test_ten_standalone_jobs(tmp_path):
    jobs = [Job(tmp_path, f"job{i}", "--standalone", "--nproc-per-node=2", "--no-python", "sh", "-c",
                "echo $TORCHELASTIC_RUN_ID $MASTER_PORT $RANK") for i in range(10)]
    for job in jobs:
        assert job.wait() == 0, job.text()
    lines = [line.split() for job in jobs for line in job.text().splitlines()]
    assert len(lines) == 20
    assert len({run_id for run_id, _, _ in lines}) == 10


def test_256_workers(tmp_path):
    code, text = run(tmp_path, "--standalone", "--nproc-per-node=256", "--no-python", "/bin/true")
    assert (code, text) == (0, "")
    code, text = run(tmp_path, "--standalone", "--nproc-per-node=256", "--no-python", "sh", "-c", "echo $RANK")
    assert code == 0 and sorted(map(int, text.split())) == list(range(256))


def test_many_leave_nothing_behind(tmp_path):
    """Of forty workers that end well, no directory stays; of one that wrote there, its own."""
    (tmp_path / "tmp").mkdir()
    env = {**environment(), "TMPDIR": str(tmp_path / "tmp")}
    command = [MUSTER, "run", "--standalone", "--nproc-per-node=40", "--no-python"]
    subprocess.run(command + ["/bin/true"], check=True, env=env)
    assert list((tmp_path / "tmp").iterdir()) == []
    keep = 'if [ $RANK = 7 ]; then echo hi > "${TORCHELASTIC_ERROR_FILE%/*}/note"; fi'
    subprocess.run(command + ["sh", "-c", keep], check=True, env=env)
    assert [p.name for p in (tmp_path / "tmp").glob("*/*/*/*")] == ["7"]
    assert [p.name for p in (tmp_path / "tmp").rglob("*") if p.is_file()] == ["note"]


def test_tee_keeps_every_line(tmp_path):
    """Four workers write as fast as they can; nothing is torn, lost or out of order, and
    the files hold the very bytes."""
    lines, log = 100_000, tmp_path / "log"
    program = f"import os\nr=os.environ['RANK']\nfor i in range({lines}): print(f'line {{i}} of {{r}} ' + 'x' * (i % 97))"
    with (tmp_path / "tee.out").open("wb") as out:
        subprocess.run([MUSTER, "run", "--standalone", "--nproc-per-node=4", "--log-dir", log, "-t",
                        "1", "--no-python", "python3", "-c", program], stdout=out, check=True, env=environment())
    seen = collections.Counter()
    for line in (tmp_path / "tee.out").open():
        found = re.fullmatch(r"\[default(\d)\]:line (\d+) of (\d) (x*)\n", line)
        assert found, line
        rank, number = int(found[1]), int(found[2])
        assert number == seen[rank] and len(found[4]) == number % 97 and found[3] == found[1], line
        seen[rank] += 1
    assert seen == {r: lines for r in range(4)}
    for r in range(4):
        text, = log.glob(f"*/attempt_0/{r}/stdout.log")
        assert text.read_text().count("\n") == lines


def test_a_slow_reader_loses_nothing(tmp_path):
    """The console is a pipe that is read late: the agent waits, and stays alive."""
    lines = 30_000
    with subprocess.Popen([MUSTER, "run", "--standalone", "-t", "1", "--no-python", "seq", str(lines)],
                          stdout=subprocess.PIPE, env=environment()) as agent:
        import time
        time.sleep(0.5)
        text = agent.stdout.read().decode()
    assert agent.returncode == 0
    assert text == "".join(f"[default0]:{i}\n" for i in range(1, lines + 1))


def test_a_reader_that_goes(tmp_path):
    """`muster run -t 1 ... | head -1`: said once, and the exit code is the workers'."""
    with subprocess.Popen([MUSTER, "run", "--standalone", "-t", "1", "--no-python", "seq", "300000"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as agent:
        agent.stdout.readline()
        agent.stdout.close()
        err = agent.stderr.read().decode()
    assert agent.returncode == 0
    assert "error in log tailer for default0. BrokenPipeError" in err


def test_function_workers():
    out = subprocess.run([EXAMPLES / "example_launch_function", "4", "1000000", "2"], capture_output=True, text=True,
                         env=environment(), timeout=60)
    assert out.returncode == 0, out.stderr
    assert out.stdout.splitlines()[-1] == "total 500000500000"
    assert [line.split(":")[0] for line in out.stdout.splitlines()[:4]] == [f"rank {i}" for i in range(4)]


def launch_host(workers: int, size: int) -> subprocess.CompletedProcess:
    return subprocess.run([INTEROP / "interop_launch_host", str(workers), str(size)], capture_output=True, text=True,
                          env=environment(), timeout=120)


def test_function_workers_print_only_their_own():
    """stdout is a pipe: what the caller had not flushed yet, and its exit handler, come once."""
    out = launch_host(2, 3)
    assert out.returncode == 0, out.stderr
    lines = out.stdout.splitlines()
    assert sorted(lines[1:3]) == ["worker 0", "worker 1"]
    assert lines[:1] + lines[3:] == ["before", "rank 0: 3", "rank 1: 3", "exit handler"]


def test_function_workers_return_up_to_the_limit():
    limit = 256 << 20
    out = launch_host(1, limit)
    assert (out.returncode, out.stderr) == (0, "")
    assert f"rank 0: {limit}" in out.stdout.splitlines()
    for more in 1, 1 << 20:  # which a pipe holds, and which would keep the worker waiting
        out = launch_host(1, limit + more)
        assert out.returncode == 1
        assert "MUSTER_EFULL: rank 0 returned more than 256 MiB" in out.stderr
        assert "write a large result to a file" in out.stderr


def test_command_workers():
    out = subprocess.run([EXAMPLES / "example_launch_command", "3", "sh", "-c", "echo $RANK of $WORLD_SIZE"],
                         capture_output=True, text=True, env=environment(), timeout=60)
    assert out.returncode == 0, out.stderr
    assert sorted(out.stdout.splitlines()) == [f"{i} of 3" for i in range(3)]
    out = subprocess.run([EXAMPLES / "example_launch_command", "1", "sh", "-c", "exit 4"], capture_output=True,
                         text=True, env=environment(), timeout=60)
    assert out.returncode == 1
    assert "MUSTER_ECHILD" in out.stderr and "exitcode  : 4" in out.stderr


def test_a_rendezvous_of_ones_own(tmp_path):
    """examples/handler.c: ranks in the order of arrival, and one that waits can be ended."""
    port = tmp_path / "port"
    with subprocess.Popen([MUSTER, "store", "--bind", "127.0.0.1", "--port", "0", "--port-file", port],
                          stdout=subprocess.PIPE, text=True) as store:
        try:
            assert store.stdout.readline().startswith("listening on ")
            at = f"127.0.0.1:{port.read_text().strip()}"
            nodes = [subprocess.Popen([EXAMPLES / "example_handler", at, "job", "3", "sh", "-c",
                                       "echo $RANK of $WORLD_SIZE in $TORCHELASTIC_RUN_ID"],
                                      stdout=subprocess.PIPE, text=True, env=environment()) for _ in range(3)]
            lines = [node.communicate(timeout=100)[0] for node in nodes]
            assert [node.returncode for node in nodes] == [0, 0, 0]
            assert sorted(lines) == [f"{i} of 3 in job\n" for i in range(3)]
        finally:
            store.terminate()


def test_no_descriptors_leak(tmp_path):
    """Restarts do not pile up descriptors in the agent."""
    script = "cat /proc/$AGENT/status >/dev/null; ls /proc/$AGENT/fd | wc -l; exit 1"
    code, text = run(tmp_path, "--standalone", "--max-restarts=8", "-t", "1", "--no-python", "sh", "-c",
                     "p() { sed -n 's/^PPid:[^0-9]*//p' /proc/$1/status; }; "
                     "AGENT=$(p $(p $PPID)); " + script)  # the guard, the keeper, the agent
    counts = [int(n) for n in re.findall(r"^\[default0\]:(\d+)$", text, re.M)]
    assert code == 1 and len(counts) == 9, text
    assert counts[-1] <= counts[1] + 1, counts
