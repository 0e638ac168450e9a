"""muster.LaunchConfig beside torch's own: fields, defaults, checks, and torch's objects in it."""
from __future__ import annotations

import sys
from pathlib import Path

from wheels import run

FIELDS = """
import dataclasses, os
import muster
from torch.distributed.launcher.api import LaunchConfig

def shape(kind):
    return [(f.name, f.default, f.default_factory) for f in dataclasses.fields(kind)]

theirs = shape(LaunchConfig)  # and then those of our own options
assert shape(muster.LaunchConfig)[:len(theirs)] == theirs

def filled(kind, *args, **more):  # what it is after torch has filled in what is missing
    made = vars(kind(*args, **more))
    known = {f.name for f in dataclasses.fields(LaunchConfig)} - {"logs_specs"}
    return {k: v for k, v in made.items() if k in known}

for more in ({}, {"rdzv_timeout": 7}, {"rdzv_configs": {"timeout": 5}}, {"shutdown_timeout": 0},
             {"rdzv_configs": {"timeout": 5}, "rdzv_timeout": 6, "run_id": "x"}):
    assert filled(muster.LaunchConfig, 1, 2, 3, **more) == filled(LaunchConfig, 1, 2, 3, **more)
os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = "11"
assert filled(muster.LaunchConfig, 1, 2, 3) == filled(LaunchConfig, 1, 2, 3)
for kind in (muster.LaunchConfig, LaunchConfig):
    try:
        kind(1, 1, 1, shutdown_timeout=-1)
    except ValueError as e:
        assert str(e) == "shutdown_timeout must be non-negative, got -1"
    else:
        raise AssertionError("taken")
print("all well")
"""

OBJECTS = """
import sys
import muster
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.numa.binding import AffinityMode, NumaOptions

where = sys.argv[1]

def options(**more):
    return set(muster.LaunchConfig(1, 1, 2, **more)._options())

theirs = options(logs_specs=DefaultLogsSpecs(
    log_dir=where, redirects=Std.OUT, tee={0: Std.ALL, 1: Std.ERR}, local_ranks_filter={1, 0}))
assert {f"--log-dir={where}", "--redirects=1", "--tee=0:3,1:2", "--local-ranks-filter=0,1"} <= theirs
assert theirs == options(logs_specs=muster.LogsSpecs(where, 1, {0: 3, 1: 2}, {0, 1}))
assert theirs == options(logs_specs=muster.LogsSpecs(where, "1", "0:3,1:2", {0, 1}))
assert "--numa-binding=node" in options(numa_options=NumaOptions(affinity_mode=AffinityMode.NODE))
assert "--restart-grace=5s" in options(restart_grace="5s")
assert "--restart-policy=oom:stop" in options(restart_policy="oom:stop")
assert {"--restart-budget=5/1h", "--restart-backoff=1s..9s"} <= options(restart_budget="5/1h", restart_backoff="1s..9s")
assert "--log-attempts=5" in options(log_attempts=5)
assert "--failure=torch" in options(failure="torch")
assert "--numa-binding=socket" in options(numa_options="socket")
assert "--net=10.1.0.0/16" in options(net="10.1.0.0/16")
print("all well")
"""


CONTRACT = """
import inspect
import muster
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

def public(kind):
    return {n for n in vars(kind) if not n.startswith("_")} | set(inspect.get_annotations(kind))

assert public(ProcessFailure) - {"_get_error_data", "_set_no_reply_file"} <= public(muster.ProcessFailure)
assert public(ChildFailedError) - {"format_msg"} <= public(muster.ChildFailedError)
first = muster.ProcessFailure(0, 7, -9, "<N/A>", "m", 5)
theirs = ProcessFailure(0, 7, -9, "<N/A>"); theirs.timestamp = 5
assert first.signal_name() == theirs.signal_name() == "SIGKILL"
assert first.timestamp_isoformat() == theirs.timestamp_isoformat()
for code in (-40, 1):
    assert (muster.ProcessFailure(0, 7, code, "<N/A>", "m", 5).signal_name()
            == ProcessFailure(0, 7, code, "<N/A>").signal_name() == "<N/A>")
later = muster.ProcessFailure(1, 8, 1, "<N/A>", "m", 6)
assert muster.ChildFailedError("f", {3: later, 2: first}).get_first_failure() == (2, first)
print("all well")
"""


def test_what_torchs_users_know_is_there(env: dict[str, str], tmp_path: Path) -> None:
    """Three scripts in one interpreter: importing torch is what costs."""
    script = FIELDS + OBJECTS + CONTRACT
    assert run(sys.executable, "-c", script, tmp_path, env=env).stdout == 3 * "all well\n"
