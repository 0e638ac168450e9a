"""Metrics: what torch's ConsoleMetricHandler prints of torchrun, and --metrics-handler of
muster. Names and values in order; times are times. torchrun looks at its workers ten
times a second and says each time that they are healthy; we say it once (DIFFERENCES.md),
so those lines are left out on both sides."""
from __future__ import annotations

import json
import re
import subprocess

import pytest

from conform import MUSTER, ROOT, base_env

RUN = "export ZYGOTE_METRICS=1; [ $SIDE = muster ] && H=--metrics-handler=console; "
LINE = re.compile(r"\[(\d{10}\.\d+)\]\[(\w+)\]: (.*)=(-?\d+)")
LOOK = "LocalElasticAgent._monitor_workers"
ROWS = [
    ("all is well", "torchrun $H --no-python true", 20),
    ("a role", "torchrun $H --role 'a b' --nproc-per-node 2 --no-python true 2>/dev/null", 20),
    ("one restart, then well", "torchrun $H --max-restarts 3 --no-python sh -c '[ $TORCHELASTIC_RESTART_COUNT = 1 ]' 2>/dev/null", 36),
    ("restarts are used up", "torchrun $H --max-restarts 1 --no-python false 2>/dev/null", 38),
    ("no restarts", "torchrun $H --nproc-per-node 2 --no-python sh -c 'exit $RANK' 2>/dev/null", 22),
    ("nothing to start", "torchrun $H --no-python ./nope 2>/dev/null", 10),
    ("nobody to meet", "torchrun $H --nnodes 2 --rdzv-backend c10d --rdzv-endpoint localhost:$PORT0 "
     "--rdzv-conf join_timeout=1,last_call_timeout=1 --no-python true 2>/dev/null", 6),
    ("a signal", "bg $H --no-python sh -c 'echo up; exec sleep 30'; kill -TERM $P; wait $P; cat bg.out", 10),
]


def measured(out: str) -> list[str]:
    """Names and values, without the looks at healthy workers."""
    found = [(m[3], "some" if m[3].endswith(".duration.ms") else m[4]) for m in LINE.finditer(out)]
    text = "\n".join(f"{name}={value}" for name, value in found) + "\n"
    healthy = (rf"{re.escape(LOOK)}.success=1\n{re.escape(LOOK)}.duration.ms=some\n"
               r"workers\.[^\n]*\.remaining_restarts=\d+\nworkers\.[^\n]*\.healthy=1\n")
    looking = rf"{re.escape(LOOK)}.failure=1\n{re.escape(LOOK)}.duration.ms=some\n"  # when the signal came
    return re.sub(looking, "", re.sub(healthy, "", text)).splitlines()


@pytest.mark.parametrize("shell,count", [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
def test_row(bench, shell, count):
    pair = bench.pair(RUN + shell)
    theirs, ours = measured(pair.torch.out), measured(pair.muster.out)
    assert ours == theirs, (pair.torch.out, pair.muster.out)
    assert len(ours) == count, ours
    assert all(m[2] == "torchelastic" for m in LINE.finditer(pair.muster.out))


def run(tmp_path, *words):
    return subprocess.run([MUSTER, "run", *words], cwd=tmp_path, env=base_env(), capture_output=True, text=True, timeout=60)


def test_file(tmp_path):
    """The fields of torch's MetricData; a second job adds its own."""
    for _ in range(2):
        done = run(tmp_path, "--metrics-handler=file:m.jsonl", "--no-python", "sleep", "0.05")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    rows = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert len(rows) == 48  # 20, and 4 for the one look at healthy workers
    assert all(list(row) == ["timestamp", "group_name", "name", "value"] for row in rows)
    took = {row["name"]: row["value"] for row in rows}
    assert took["SimpleElasticAgent.run.duration.ms"] >= 50
    assert took["workers.default.healthy"] == took["workers.default.run_success_no_retries"] == 1


@pytest.mark.parametrize("name,says", [("q", "'q'"), ("file:", "'file:'"), ("file:no/such/dir/m", "no/such/dir/m: No such file")])
def test_no_such_handler(tmp_path, name, says):
    done = run(tmp_path, f"--metrics-handler={name}", "--no-python", "touch", "ran")
    assert done.returncode == 1 and says in next(x for x in done.stderr.splitlines() if ": error: " in x), done.stderr
    assert not (tmp_path / "ran").exists()


def test_documented():
    rows = (ROOT / "docs" / "DIFFERENCES.md").read_text().splitlines()
    assert any("--metrics-handler" in row and "healthy" in row for row in rows)
