"""The launcher from Python: torch's LaunchConfig and elastic_launch on `muster run`."""
from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ._native import Error, command


@dataclass
class LogsSpecs:
    """Where the output of the workers goes: the meaning is that of the flags."""

    log_dir: str | None = None
    redirects: str = "0"
    tee: str = "0"
    local_ranks_filter: set[int] | None = None


@dataclass
class LaunchConfig:
    """What to launch: the fields and defaults of ``torch.distributed.launcher.LaunchConfig``.

    With the default backend and no endpoint, a job of one node needs no rendezvous of the
    user: it gets one of its own. ``event_log_handler`` is ``null`` or ``console``; the
    latter prints the events when the job is over.
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: LogsSpecs | None = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "etcd"
    rdzv_configs: Mapping[str, Any] = field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: str | None = None
    metrics_cfg: Mapping[str, str] = field(default_factory=dict)
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: str | None = None
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: int | None = None

    def _options(self) -> list[str]:
        """The same as flags of `muster run`."""
        options = [
            f"--nnodes={self.min_nodes}:{self.max_nodes}",
            f"--nproc-per-node={self.nproc_per_node}",
            f"--max-restarts={self.max_restarts}",
            f"--monitor-interval={self.monitor_interval}",
            f"--role={self.role}",
            f"--signals-to-handle={self.signals_to_handle}",
            *self._rendezvous(),
            *self._logs(),
        ]
        if self.local_addr:
            options.append(f"--local-addr={self.local_addr}")
        if self.numa_options:
            options.append(f"--numa-binding={self.numa_options}")
        if self.virtual_local_rank:
            options.append("--virtual-local-rank")
        if self.shutdown_timeout is not None:
            options.append(f"--shutdown-timeout={self.shutdown_timeout}")
        return options

    def _rendezvous(self) -> list[str]:
        if self.rdzv_backend == "etcd" and not self.rdzv_endpoint and self.max_nodes == 1:
            return ["--standalone"]
        configs = dict(self.rdzv_configs)
        if self.rdzv_timeout != -1:
            configs["timeout"] = self.rdzv_timeout
        for key, value in configs.items():
            if "," in f"{key}{value}" or "=" in str(key):
                raise ValueError(f"rdzv_configs: {key!r}: {value!r} holds a comma or '='")
        options = [
            f"--rdzv-backend={self.rdzv_backend}",
            f"--rdzv-endpoint={self.rdzv_endpoint}",
            f"--rdzv-id={self.run_id}",
        ]
        rank = configs.pop("rank", None)
        if rank is not None:  # of the static backend
            options.append(f"--node-rank={rank}")
        if configs:
            options.append("--rdzv-conf=" + ",".join(f"{k}={v}" for k, v in configs.items()))
        return options

    def _logs(self) -> list[str]:
        options = []
        logs = self.logs_specs or LogsSpecs()
        if logs.log_dir:
            options.append(f"--log-dir={logs.log_dir}")
        options += [f"--redirects={logs.redirects}", f"--tee={logs.tee}"]
        if logs.local_ranks_filter:
            ranks = ",".join(str(r) for r in sorted(logs.local_ranks_filter))
            options.append(f"--local-ranks-filter={ranks}")
        for name in ("stdout", "stderr"):
            needles = getattr(self, f"duplicate_{name}_filters")
            if needles:
                text = ",".join(n.replace(",", ",,") for n in needles)
                options.append(f"--duplicate-{name}-filters={text}")
        return options


@dataclass(frozen=True)
class ProcessFailure:
    """How one worker failed."""

    local_rank: int
    pid: int
    exitcode: int
    error_file: str
    message: str
    timestamp: int

    def signal_name(self) -> str:
        return signal.Signals(-self.exitcode).name if self.exitcode < 0 else ""


class ChildFailedError(Error):
    """Workers failed and no restart is left. ``failures`` is by global rank."""

    code = "MUSTER_ECHILD"

    def __init__(self, name: str, failures: Mapping[int, ProcessFailure]) -> None:
        self.name = name
        self.failures = dict(failures)
        rank, first = self.get_first_failure()
        how = f"exit code {first.exitcode}"
        if first.exitcode < 0:
            how = f"signal {-first.exitcode} ({first.signal_name()})"
        super().__init__(
            f"{name} FAILED: {len(failures)} of its workers; first rank {rank} (local rank "
            f"{first.local_rank}, pid {first.pid}) by {how}\n{first.message}"
        )

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """Global rank and failure of the worker that failed first."""

        def when(rank: int) -> tuple[int, bool]:
            failure = self.failures[rank]  # SIGTERM is what the others get after the first
            return failure.timestamp, failure.exitcode == -signal.SIGTERM

        rank = min(self.failures, key=when)
        return rank, self.failures[rank]


class LaunchError(Error):
    """The launcher itself failed; what it said is on standard error."""


def _work(function: Callable[..., Any], args: tuple[Any, ...], to: Path) -> None:
    from multiprocessing import spawn

    preparation = spawn.get_preparation_data("muster worker")
    preparation.pop("authkey", None)  # a secret of this process, and of no use there
    try:
        data = pickle.dumps((function, args))
    except Exception as e:
        raise TypeError(
            f"{getattr(function, '__qualname__', function)!r} and its arguments cannot be "
            f"pickled, so no other process can run them: {e}. Workers need a function that "
            "they can import: at the top level of a module, no lambda."
        ) from e
    to.write_bytes(pickle.dumps(preparation) + data)


def _environment(config: LaunchConfig) -> dict[str, str]:
    """Ours, without what would change the meaning of the flags."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PET_")}
    env.setdefault("OMP_NUM_THREADS", "")  # torch's API does not set it; its command does
    if config.log_line_prefix_template is not None:
        env["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = config.log_line_prefix_template
    return env


def _failures(events: Path) -> tuple[set[int], dict[int, ProcessFailure]]:
    """Ranks of this node's workers, and how those failed that did."""
    ranks: set[int] = set()
    failures: dict[int, ProcessFailure] = {}
    lines = events.read_text().splitlines() if events.exists() else []
    for line in lines:
        event = json.loads(line)
        data = event["metadata"]
        if event["source"] != "WORKER" or data.get("global_rank") is None:
            continue
        rank = int(data["global_rank"])
        if data["state"] == "START":
            ranks.add(rank)
        if data["state"] == "SUCCEEDED":
            failures.pop(rank, None)
        if data["state"] != "FAILED":
            continue
        inner = json.loads(data["metadata"])
        failures[rank] = ProcessFailure(
            local_rank=int(inner["local_rank"][0]),
            pid=int(data["worker_id"]),
            exitcode=int(inner["exit_code"][0]),
            error_file=str(data.get("error_file", "<N/A>")),
            **_message(data, int(inner["exit_code"][0])),
        )
    return ranks, failures


def _message(data: Mapping[str, Any], code: int) -> dict[str, Any]:
    """What the worker said of its end, or what its exit code says; and when."""
    raw = json.loads(data["raw_error"] or "{}").get("message")
    if isinstance(raw, dict):
        extra = raw.get("extraInfo", {})
        text = extra.get("py_callstack") or raw.get("message", "")
        return {"message": text, "timestamp": int(extra.get("timestamp", time.time()))}
    if code < 0:
        name = signal.Signals(-code).name
        text = f"Signal {-code} ({name}) received by PID {data['worker_id']}"
    else:
        text = f"exit code {code}, and no traceback: the worker did not end by an exception"
    return {"message": text, "timestamp": int(time.time())}


def _run(argv: list[str], env: Mapping[str, str]) -> int:
    """Runs the launcher; an interrupt goes to it, and it ends its workers in good order."""
    tether = str(Path(__file__).with_name("_tether.py"))
    process = subprocess.Popen(
        [sys.executable, tether, str(os.getpid()), *argv], env=env, start_new_session=True
    )
    while True:
        try:
            return process.wait()
        except BaseException as e:
            number = signal.SIGINT if isinstance(e, KeyboardInterrupt) else signal.SIGTERM
            process.send_signal(number)
            process.wait()
            raise


class elastic_launch:  # noqa: N801 - torch's name
    """Launches a function, or a command, on the workers of this node.

    ``elastic_launch(config, f)(*args)`` calls ``f(*args)`` in every worker, each in a fresh
    interpreter, and returns ``{global rank: result}`` of this node's workers. With a text
    in place of the function, that program is run and the results are ``None``. If workers
    fail for good, :class:`ChildFailedError` says how.
    """

    def __init__(self, config: LaunchConfig, entrypoint: Callable[..., Any] | str) -> None:
        if config.start_method != "spawn":
            raise ValueError(
                f"start_method {config.start_method!r}: workers get a fresh interpreter, "
                "which is 'spawn'"
            )
        if not (callable(entrypoint) or isinstance(entrypoint, str)):
            raise TypeError("the entry point is a function, or a command as text")
        self._config = config
        self._entrypoint = entrypoint

    def __call__(self, *args: Any) -> dict[int, Any]:
        with tempfile.TemporaryDirectory(prefix="muster_") as name:
            return self._launch(Path(name), args)

    def _launch(self, directory: Path, args: tuple[Any, ...]) -> dict[int, Any]:
        entry, events = self._entrypoint, directory / "events"
        options = [str(command()), "run", *self._config._options(), "--no-python"]
        options.append(f"--event-log-handler=file:{events}")
        if callable(entry):
            title = getattr(entry, "__qualname__", repr(entry))
            _work(entry, args, directory / "work")
            worker = str(Path(__file__).with_name("_worker.py"))
            argv = [*options, sys.executable, "-u", worker, str(directory)]
        else:
            title = entry
            argv = [*options, entry, *[str(a) for a in args]]
        rc = _run(argv, _environment(self._config))
        if self._config.event_log_handler == "console" and events.exists():
            sys.stderr.write(events.read_text())
        ranks, failures = _failures(events)
        if rc != 0 and failures:
            raise ChildFailedError(title, failures)
        if rc != 0:
            raise LaunchError(f"{title}: the launcher ended with exit code {rc}")
        return {rank: self._result(directory, rank) for rank in sorted(ranks)}

    def _result(self, directory: Path, rank: int) -> Any:
        if not callable(self._entrypoint):
            return None
        path = directory / f"result.{rank}"
        if not path.exists():
            raise LaunchError(
                f"rank {rank} ended well but left no result: it called os._exit, or another "
                "program took its place"
            )
        return pickle.loads(path.read_bytes())
