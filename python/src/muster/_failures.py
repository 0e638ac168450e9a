"""How workers failed: torch's ProcessFailure and ChildFailedError, from the agent's events."""
from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from ._native import Error

_NONE = "<N/A>"


@dataclass(frozen=True)
class ProcessFailure:
    """How one worker failed.

    :param message: its traceback; or, if it left none, what its exit code says.
    :param error_file: where it wrote that, ``<N/A>`` if it did not.
    :param error_file_data: what is there, in torch's form.
    """

    local_rank: int
    pid: int
    exitcode: int
    error_file: str
    message: str
    timestamp: int
    error_file_data: dict[str, Any] = field(default_factory=dict)

    def signal_name(self) -> str:
        """``SIGKILL``, if it was ended by that; ``<N/A>`` if it ended by itself."""
        try:
            return signal.Signals(-self.exitcode).name if self.exitcode < 0 else _NONE
        except ValueError:  # one of the real-time signals
            return _NONE

    def timestamp_isoformat(self) -> str:
        """When, in local time: YYYY-MM-DD_HH:MM:SS."""
        return datetime.fromtimestamp(self.timestamp).isoformat(sep="_")


@dataclass(frozen=True)
class Verdict:
    """Why the job failed, the same on every node: the worker, or the node, that was the cause.

    :param cause: ``exception``, ``exit code``, ``signal``, ``crash``, ``out of memory``,
        ``bad start``, ``lost node``, ``hang``, ...
    :param text: one line: the exception, or how it ended.
    :param rank: its global rank; None, as are the next three, if it was not a worker.
    :param place: the last frame in the user's own code.
    :param log: its log file, on its host.
    :param last_words: the last lines of its stderr.
    :param timestamp: when, in seconds since 1970 by the clock of the job's coordinator.
    :param uncertainty: it may be wrong by so many seconds.
    :param restarts: of the job, before this.
    """

    cause: str
    text: str
    host: str
    timestamp: float
    uncertainty: float
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    exitcode: int | None = None
    place: str = ""
    log: str = ""
    last_words: str = ""
    restarts: int = 0


def verdict(report: Mapping[str, Any]) -> Verdict | None:
    """What ``--report`` says; None if the job did not fail."""
    v = report.get("verdict")
    if not v:
        return None
    return Verdict(
        cause=v["cause"],
        text=v["text"],
        host=v["host"],
        timestamp=v["time_us"] / 1e6,
        uncertainty=v["unsure_us"] / 1e6,
        rank=v.get("rank"),
        local_rank=v.get("local_rank"),
        pid=v.get("pid"),
        exitcode=v.get("exit_code"),
        place=v.get("place", ""),
        log=v.get("log", ""),
        last_words=v.get("last_words", ""),
        restarts=report.get("restarts", 0),
    )


def culprit(v: Verdict) -> ProcessFailure:
    """As torch would tell of it, on a node whose own workers were only stopped."""
    return ProcessFailure(
        local_rank=v.local_rank or 0,
        pid=v.pid or 0,
        exitcode=v.exitcode or 1,
        error_file=_NONE,
        message=f"{v.text}\n{v.place}" if v.place else v.text,
        timestamp=int(v.timestamp),
    )


def _why(v: Verdict | None) -> str:
    """What every node says at the end, in a line of its own."""
    if v is None:
        return ""
    who = f"rank {v.rank} on {v.host}" if v.rank is not None else v.host
    place = f" ({v.place})" if v.place else ""
    return f"\nThe job failed: {who}: {v.text}{place}"


class ChildFailedError(Error):
    """Workers failed and no restart is left.

    ``failures`` holds all of this node by global rank (or, where none failed, the one of
    another node that was the cause), ``name`` what was launched, ``verdict`` why the job
    failed, and ``report`` its whole story as ``muster run --report`` writes it.
    """

    verdict: Verdict | None = None
    report: Mapping[str, Any] = {}

    code = "MUSTER_ECHILD"

    def __init__(
        self,
        name: str,
        failures: Mapping[int, ProcessFailure],
        first: int | None = None,
        verdict: Verdict | None = None,
    ) -> None:
        if not failures:
            raise ValueError("no failure to tell of")
        self.name = name
        self.failures = dict(failures)
        self._first = first
        self.verdict = verdict
        rank, failure = self.get_first_failure()
        how = f"exit code {failure.exitcode}"
        if failure.exitcode < 0:
            how = f"signal {-failure.exitcode} ({failure.signal_name()})"
        Error.__init__(
            self,
            f"{name} FAILED: {len(failures)} of its workers; first rank {rank} (local rank "
            f"{failure.local_rank}, pid {failure.pid}) by {how}\n"
            f"{failure.message.rstrip()}{_why(verdict)}"
        )

    @classmethod
    def _for_torch_too(
        cls,
        name: str,
        failures: Mapping[int, ProcessFailure],
        first: int | None,
        verdict: Verdict | None,
    ) -> ChildFailedError:
        """One that ``except ...ChildFailedError`` of torch catches as well, where the program
        has imported torch's; else one of ours alone."""
        theirs = sys.modules.get("torch.distributed.elastic.multiprocessing.errors")
        base = getattr(theirs, "ChildFailedError", None)
        if base is None:
            return cls(name, failures, first, verdict)
        both = type("ChildFailedError", (cls, base), {"__module__": cls.__module__})
        error: ChildFailedError = both(name, failures, first, verdict)
        return error

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """Global rank and failure of the worker that failed first."""
        if self._first in self.failures:
            return self._first, self.failures[self._first]
        rank = min(self.failures, key=lambda r: self.failures[r].timestamp)
        return rank, self.failures[rank]


@dataclass
class Outcome:
    """What the events of a run say of this node."""

    pids: dict[int, int] = field(default_factory=dict)  # of those that succeeded, by rank
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    first: int | None = None  # global rank of the root cause
    reason: str = ""  # of the agent, if it gave up itself
    restarts: int = 0  # how many were used


def outcome(events: Path) -> Outcome:
    out = Outcome()
    for line in events.read_text().splitlines() if events.exists() else []:
        event = json.loads(line)
        data = event["metadata"]
        if event["source"] == "AGENT":
            out.restarts = max(out.restarts, int(data.get("agent_restarts") or 0))
            if data["state"] == "FAILED":
                out.reason = data["raw_error"] or ""
            continue
        rank = data["global_rank"]
        if data["state"] == "SUCCEEDED":
            out.pids[rank] = int(data["worker_id"])
        if data["state"] == "FAILED":
            out.failures[rank] = _failure(data)
            if data["first"]:
                out.first = rank
    return out


def _failure(data: Mapping[str, Any]) -> ProcessFailure:
    inner = json.loads(data["metadata"])
    (local_rank,), (code,) = inner["local_rank"], inner["exit_code"]
    said = json.loads(data["raw_error"] or "{}")
    return ProcessFailure(
        local_rank=local_rank,
        pid=int(data["worker_id"]),
        exitcode=code,
        error_file=data["error_file"] or _NONE,
        message=_message(said.get("message"), code, data["worker_id"])
        if data["error_file"]
        else _message(None, code, data["worker_id"]),
        timestamp=data["failed_at"],
        error_file_data=said,
    )


def _message(said: Any, code: int, pid: str) -> str:
    """What the worker said of its end, or what its exit code says."""
    if isinstance(said, dict):
        said = said.get("extraInfo", {}).get("py_callstack") or said.get("message")
    if said:
        return str(said)
    if code >= 0:
        return f"exit code {code}, and no traceback: the worker did not end by an exception"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = _NONE
    return f"Signal {-code} ({name}) received by PID {pid}"
