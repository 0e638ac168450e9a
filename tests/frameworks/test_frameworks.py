"""Jobs of Accelerate, Lightning and torchx, started by muster where torchrun was.

The frameworks are the real ones, from build/frameworks, with the torch of build/venv.
"""
from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
BIN = ROOT / "build/frameworks/bin"
MUSTER = ROOT / "build/muster"


@pytest.fixture()
def env(tmp_path: Path) -> dict[str, str]:
    """Nothing of the user's: neither configuration nor caches, nor a Slurm job around us."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "SLURM_", "HF_"))}
    home = tmp_path / "home"
    home.mkdir()
    return dict(kept, HOME=str(home), PYTHON_EXEC=str(BIN / "python"), OMP_NUM_THREADS="1",
                PYTHONDONTWRITEBYTECODE="1")


def run(env: dict[str, str], *argv: object, cwd: Path) -> str:
    done = subprocess.run([str(a) for a in argv], env=env, cwd=cwd, text=True, timeout=240,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_accelerate_trains_with_ddp(env: dict[str, str], tmp_path: Path) -> None:
    state = tmp_path / "state"
    out = run(env, MUSTER, "run", "--nproc-per-node=2", "--rdzv-id=job",
              "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0",
              HERE / "train_accelerate.py", state, cwd=tmp_path)
    assert sorted(line for line in out.splitlines() if line.startswith("rank")) == [
        f"rank {r} of 2 MULTI_CPU DistributedDataParallel steps 12 learned True same True "
        "run job" for r in (0, 1)]
    assert {"model.safetensors", "optimizer.bin", "random_states_0.pkl",
            "random_states_1.pkl"} <= {p.name for p in state.iterdir()}


def test_lightning_finds_its_environment_and_its_checkpoint(env, tmp_path: Path) -> None:
    out = run(env, MUSTER, "run", "--standalone", "--nproc-per-node=2",
              HERE / "train_lightning.py", tmp_path / "root", cwd=tmp_path)
    said = sorted(line for line in out.splitlines() if line.startswith("rank"))
    assert said == [f"rank {r} of 2 TorchElasticEnvironment epoch {e} step {4 * e}"
                    for r in (0, 1) for e in (2, 3)]
    assert sorted(p.name for p in (tmp_path / "root/checkpoints").iterdir()) == [
        "epoch=1-step=8.ckpt", "epoch=2-step=12.ckpt"]


def test_torchx_finds_muster_under_torchruns_name(env, tmp_path: Path) -> None:
    """Its component dist.ddp runs `torchrun`: two nodes with two workers each."""
    links = tmp_path / "bin"
    links.mkdir()
    (links / "torchrun").symlink_to(MUSTER)
    env["PATH"] = f"{links}:{BIN}:{env['PATH']}"
    out = run(env, BIN / "torchx", "run", "-s", "local_cwd", "dist.ddp", "-j", "2x2",
              "--script", "train_torchx.py", cwd=HERE)
    plain = re.sub(r"\x1b\[[\d;]*m", "", out)
    assert sorted(re.findall(r"\]:(rank.*)", plain)) == [
        f"rank {r} sum 4 under muster" for r in range(4)], out
