"""What to launch, in torch's terms, and the same as flags of `muster run`."""
from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

# What goes where: 0 none, 1 stdout, 2 stderr, 3 both, for all workers or by local rank. An
# IntFlag as torch's ``Std`` is a number, too; a text is that of the flags ("3", "0:1,1:2").
Streams = Union[int, str, Mapping[int, int]]


@dataclass
class LogsSpecs:
    """Where the output of the workers goes: torch's ``DefaultLogsSpecs``, as data.

    :param log_dir: directory for the files; a temporary one if not given.
    :param redirects: streams that go to files instead of the console.
    :param tee: streams that go to both.
    :param local_ranks_filter: workers whose output is shown; all if not given.
    """

    log_dir: str | None = None
    redirects: Streams = 0
    tee: Streams = 0
    local_ranks_filter: set[int] | None = None


def _streams(value: Streams) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{int(rank)}:{int(what)}" for rank, what in value.items()) or "0"
    return value if isinstance(value, str) else str(int(value))


def _of_logs(specs: Any, name: str) -> Any:
    """A field of ours, or of torch's DefaultLogsSpecs, which hides them."""
    if hasattr(specs, name):
        return getattr(specs, name)
    hidden = {"log_dir": "_root_log_dir"}.get(name, f"_{name}")
    if not hasattr(specs, hidden):
        kind = type(specs).__name__
        raise TypeError(f"logs_specs: {kind} has no {name}; use muster.LogsSpecs")
    return getattr(specs, hidden)


@dataclass
class LaunchConfig:
    """What to launch: the fields and defaults of ``torch.distributed.launcher.LaunchConfig``.

    With the default backend and no endpoint, a job of one node needs no rendezvous of the
    user: it gets one of its own. torch's own objects may be given where it has some:
    ``DefaultLogsSpecs`` for ``logs_specs``, ``NumaOptions`` for ``numa_options`` (or the word
    of ``--numa-binding``). ``event_log_handler`` is ``null`` or ``console``, which prints the
    events when the job is over. ``metrics_cfg`` has no effect, as in torch. ``warm`` is
    ``muster run --warm``, for functions: True, ``"auto"``, or the modules to import once.
    ``hang`` (``"10m"``, ``"10m:restart"``), ``progress_file``, ``restart_grace`` (``"5s"``),
    ``log_attempts``, ``failure`` (``"short"``, ``"torch"``), ``env_file``, ``net`` (``"ib0"``,
    ``"10.1.0.0/16"``), ``restart_policy`` (``"default"``), ``restart_budget`` (``"5/1h"``,
    beside ``max_restarts``, unless that is 0) ``restart_backoff`` (``"1s..60s"``),
    ``notice`` (``"SIGTERM:120s"``), ``on_notice`` and ``notify`` are its flags of these names.
    ``env`` has variables of the workers, whose values may hold ``${rank}`` and the like, and
    ``framework`` is ``--for``.
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: Any = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "etcd"
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: str | None = None
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: int | None = None
    warm: bool | str | Sequence[str] = False
    hang: str | None = None
    progress_file: str | None = None
    restart_grace: str | None = None
    log_attempts: int | None = None
    net: str | None = None
    failure: str | None = None
    restart_policy: str | None = None
    restart_budget: str | None = None
    restart_backoff: str | None = None
    notice: str | None = None
    on_notice: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    env_file: str | None = None
    framework: str | None = None
    notify: str | None = None

    def __post_init__(self) -> None:
        """Checks and fills in what torch checks and fills in here."""
        if self.rdzv_timeout != -1:
            self.rdzv_configs["timeout"] = self.rdzv_timeout
        else:
            self.rdzv_configs.setdefault("timeout", 900)
        if self.logs_specs is None:
            self.logs_specs = LogsSpecs()
        if self.shutdown_timeout is None:
            self.shutdown_timeout = int(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30"))
        elif self.shutdown_timeout < 0:
            raise ValueError(
                f"shutdown_timeout must be non-negative, got {self.shutdown_timeout}"
            )

    def _check(self) -> None:
        """What torch finds out when it launches."""
        if self.min_nodes < 1:
            raise ValueError(
                f"The minimum number of rendezvous nodes ({self.min_nodes}) must be greater "
                "than zero."
            )
        if self.max_nodes < self.min_nodes:
            raise ValueError(
                f"The maximum number of rendezvous nodes ({self.max_nodes}) must be greater "
                "than or equal to the minimum number of rendezvous nodes "
                f"({self.min_nodes})."
            )
        if self.nproc_per_node < 1:
            raise ValueError(f"nproc_per_node ({self.nproc_per_node}) must be at least 1")
        if self.start_method != "spawn":
            raise ValueError(
                f"start_method {self.start_method!r}: workers get a fresh interpreter, "
                "which is 'spawn'"
            )
        if self.event_log_handler not in ("null", "console"):
            raise ValueError(
                f"event_log_handler {self.event_log_handler!r} is neither 'null' nor 'console'"
            )

    def _options(self) -> list[str]:
        """The same as flags of `muster run`."""
        self._check()
        options = [
            f"--nnodes={self.min_nodes}:{self.max_nodes}",
            f"--nproc-per-node={self.nproc_per_node}",
            f"--max-restarts={self.max_restarts}",
            f"--monitor-interval={self.monitor_interval}",
            f"--role={self.role}",
            f"--signals-to-handle={self.signals_to_handle}",
            f"--shutdown-timeout={self.shutdown_timeout}",
            *self._rendezvous(),
            *self._logs(),
        ]
        if self.local_addr:
            options.append(f"--local-addr={self.local_addr}")
        if self.numa_options:
            mode = getattr(self.numa_options, "affinity_mode", self.numa_options)
            options.append(f"--numa-binding={getattr(mode, 'value', mode)}")
        if self.virtual_local_rank:
            options.append("--virtual-local-rank")
        for name in ("hang", "progress_file", "restart_grace", "restart_policy",
                     "restart_budget", "restart_backoff", "notice", "on_notice", "notify",
                     "env_file"):
            if value := getattr(self, name):
                options.append(f"--{name.replace('_', '-')}={value}")
        if self.log_attempts is not None:
            options.append(f"--log-attempts={self.log_attempts}")
        if self.net:
            options.append(f"--net={self.net}")
        if self.failure:
            options.append(f"--failure={self.failure}")
        options += [f"--env={name}={value}" for name, value in self.env.items()]
        if self.framework:
            options.append(f"--for={self.framework}")
        return options + self._warm()

    def _warm(self) -> list[str]:
        if not self.warm:
            return []
        if self.warm is True:
            return ["--warm"]
        names = [self.warm] if isinstance(self.warm, str) else list(self.warm)
        return ["--warm=" + ",".join(names)]

    def _rendezvous(self) -> list[str]:
        if self.rdzv_backend == "etcd" and not self.rdzv_endpoint and self.max_nodes == 1:
            return ["--standalone"]
        configs = dict(self.rdzv_configs)
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
        options.append("--rdzv-conf=" + ",".join(f"{k}={v}" for k, v in configs.items()))
        return options

    def _logs(self) -> list[str]:
        options = []
        log_dir = _of_logs(self.logs_specs, "log_dir")
        ranks = _of_logs(self.logs_specs, "local_ranks_filter")
        if log_dir:
            options.append(f"--log-dir={log_dir}")
        for name in ("redirects", "tee"):
            options.append(f"--{name}={_streams(_of_logs(self.logs_specs, name))}")
        if ranks:
            options.append("--local-ranks-filter=" + ",".join(str(r) for r in sorted(ranks)))
        for name in ("stdout", "stderr"):
            needles = getattr(self, f"duplicate_{name}_filters")
            if needles:
                text = ",".join(n.replace(",", ",,") for n in needles)
                options.append(f"--duplicate-{name}-filters={text}")
        return options
