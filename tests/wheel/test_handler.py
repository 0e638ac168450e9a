"""muster.torch's handler under real torchrun, and under what calls torch's launcher itself."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from wheels import ROOT, free_port, run

BIN = Path(sys.executable).parent  # of build/venv: torch and torchrun are there


def test_torchrun_with_the_plug_in_and_muster_run_in_one_group(env, tmp_path: Path) -> None:
    script = tmp_path / "t.py"
    script.write_text("import os, torch.distributed as d; d.init_process_group('gloo')\n"
                      "import torch; t = torch.ones(1); d.all_reduce(t)\n"
                      "print('rank', d.get_rank(), 'sum', int(t), flush=True)\n"
                      "d.destroy_process_group()\n")
    port = free_port()
    common = ["--nnodes=3", "--nproc-per-node=1", f"--rdzv-endpoint=127.0.0.1:{port}",
              "--rdzv-id=mixed", "--local-addr=127.0.0.1", script]
    commands = [[BIN / "torchrun", "--rdzv-backend=muster", *common],
                [ROOT / "build/muster", "run", "--rdzv-backend=c10d", *common],
                [BIN / "torchrun", "--rdzv-backend=c10d", *common]]
    nodes = [subprocess.Popen([str(c) for c in argv], stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.STDOUT,
                              env=dict(env, OMP_NUM_THREADS="1", PYTHON_EXEC=sys.executable))
             for argv in commands]
    out = [n.communicate(timeout=120)[0] for n in nodes]
    assert [n.returncode for n in nodes] == [0, 0, 0], "\n----\n".join(out)
    lines = sorted(line for text in out for line in text.splitlines() if "sum" in line)
    assert lines == [f"rank {r} sum 3" for r in range(3)]


def test_accelerates_own_launcher_with_the_plug_in(env, tmp_path: Path) -> None:
    """`accelerate launch` does not run torchrun but calls it; the plug-in gets in all the same."""
    frameworks = ROOT / "build/frameworks/bin"
    home = tmp_path / "home"
    home.mkdir()
    done = run(frameworks / "accelerate", "launch", "--multi_gpu", "--num_processes=2",
               "--num_machines=1", "--rdzv_backend=muster", f"--main_process_port={free_port()}",
               "--mixed_precision=no", "--dynamo_backend=no",
               ROOT / "tests/frameworks/train_accelerate.py", tmp_path / "state",
               env=dict(env, HOME=str(home), OMP_NUM_THREADS="1"))
    said = sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))
    assert [line[:len("rank 0 of 2 MULTI_CPU")] for line in said] == [
        "rank 0 of 2 MULTI_CPU", "rank 1 of 2 MULTI_CPU"], done.stderr
