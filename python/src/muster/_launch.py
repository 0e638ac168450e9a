"""The launcher from Python: torch's elastic_launch on `muster run`."""
from __future__ import annotations

import functools
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from ._config import LaunchConfig, LogsSpecs
from ._failures import ChildFailedError, ProcessFailure, Verdict, culprit, outcome, verdict
from ._native import Error, command

T = TypeVar("T")
if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")

    class _Typed(Generic[P, T]):
        """A checker holds arguments and results against the function's own types."""

else:  # Python 3.9 has no ParamSpec
    P = TypeVar("P")

    class _Typed:
        def __class_getitem__(cls, types: Any) -> type:
            return cls


class LaunchError(Error):
    """The launcher itself failed, or a worker left no result; standard error says more."""

    code = "MUSTER_ELAUNCH"


class Results(dict[int, T]):
    """``{global rank: result}`` of this node's workers.

    :ivar restarts: how many times the workers were started again before they ended well.
    """

    restarts: int = 0


def _whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a partial calls: that has a name and a module."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _name(function: Callable[..., Any]) -> str:
    whole = _whole(function)
    return str(getattr(whole, "__qualname__", repr(whole)))


def _work(function: Callable[..., Any], args: tuple[Any, ...], to: Path) -> None:
    """Leaves there what a worker needs: how this process was set up, what to call."""
    from multiprocessing import spawn

    name = _name(function)
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    is_file = path is not None and os.path.isfile(path)
    if getattr(_whole(function), "__module__", "") == "__main__" and not is_file:
        raise TypeError(
            f"{name!r} was defined at a prompt, in a notebook or in a script read from "
            "standard input, where no other process can find it: put it into a module and "
            "import it from there"
        )
    preparation = spawn.get_preparation_data("muster worker")
    if not is_file:  # "<stdin>": nothing that a worker could run again
        preparation.pop("init_main_from_path", None)
    preparation.pop("authkey", None)  # a secret of this process, and of no use there
    try:
        data = pickle.dumps((function, args))
    except Exception as e:
        raise TypeError(
            f"{name!r} and its arguments cannot be pickled, so no other process can run "
            f"them: {e}. Workers need a function that they can import: at the top level of "
            "a module, no lambda."
        ) from e
    to.write_bytes(pickle.dumps(preparation) + data)


def _environment(config: LaunchConfig, title: str) -> dict[str, str]:
    """Ours, without what would change the meaning of the flags."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PET_")}
    env["MUSTER_TITLE"] = title  # in reports; they would name the interpreter
    env.setdefault("OMP_NUM_THREADS", "")  # so that it stays unset: torch's API does not
    if config.log_line_prefix_template is not None:
        env["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = config.log_line_prefix_template
    return env


def _python_path() -> list[str]:
    """What workers shall find as PYTHONPATH, if anything."""
    return [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []


def _run(argv: list[str], env: Mapping[str, str]) -> int:
    """Runs the launcher; an interrupt goes to it, and it ends its workers in good order."""
    tether = str(Path(__file__).with_name("_tether.py"))
    process = subprocess.Popen(
        [sys.executable, tether, str(os.getpid()), *argv], env=env, start_new_session=True
    )
    try:
        return process.wait()
    except BaseException as e:
        number = signal.SIGINT if isinstance(e, KeyboardInterrupt) else signal.SIGTERM
        process.send_signal(number)
        while True:
            try:
                process.wait()
                break
            except KeyboardInterrupt:  # whoever asks twice has waited long enough
                process.send_signal(signal.SIGINT)
        raise


class elastic_launch(_Typed[P, T]):  # noqa: N801 - torch's name
    """Launches a function, or a command, on the workers of this node.

    ``elastic_launch(config, f)(*args)`` calls ``f(*args)`` in every worker, each in a fresh
    interpreter, and returns :class:`Results`, ``{global rank: result}`` of this node's
    workers, which also tells how many restarts were used. With a text in place of the
    function, that program is run and the results are ``None``. If workers fail for good,
    :class:`ChildFailedError` says how, and nothing else is printed of it; an interrupt of
    the caller ends them.
    """

    @overload
    def __init__(
        self: elastic_launch[P, T], config: LaunchConfig, entrypoint: Callable[P, T]
    ) -> None: ...

    @overload
    def __init__(
        self: elastic_launch[..., None], config: LaunchConfig, entrypoint: str
    ) -> None: ...

    def __init__(self, config: LaunchConfig, entrypoint: Callable[..., Any] | str) -> None:
        if not (callable(entrypoint) or isinstance(entrypoint, str)):
            raise TypeError("the entry point is a function, or a command as text")
        self._config = config
        self._entrypoint = entrypoint

    def __call__(self, *args: P.args, **named: P.kwargs) -> Results[T]:
        """Runs the workers to their end."""
        entry = self._entrypoint
        if named and not callable(entry):
            raise TypeError("a command has no arguments with names")
        if named and callable(entry):
            entry = functools.partial(entry, **named)
        with tempfile.TemporaryDirectory(prefix="muster_") as name:
            return self._launch(Path(name), entry, args)

    def _launch(
        self, directory: Path, entry: Callable[..., Any] | str, args: tuple[Any, ...]
    ) -> Results[Any]:
        events = directory / "events"
        report = Path(os.environ.get("MUSTER_REPORT") or directory / ".report")
        argv = [str(command()), "run", *self._config._options()]
        argv.append(f"--event-log-handler=file:{events}")
        argv.append(f"--report={report}")
        if self._config.warm and not callable(entry):
            raise ValueError("warm is for functions: a command starts by itself")
        if callable(entry):
            title = _name(entry)
            _work(entry, args, directory / "work")
            worker = str(Path(__file__).with_name("_worker"))
            if self._config.warm:  # forked from an interpreter that has imported already
                argv += [worker, str(directory), "--warm", *_python_path()]
            else:
                argv += ["--no-python", sys.executable, "-u", worker, str(directory)]
        else:
            title = entry
            argv += ["--no-python", entry, *[str(a) for a in args]]
        env = _environment(self._config, title)
        if self._config.warm:
            env["PYTHON_EXEC"] = sys.executable
            env["PYTHONPATH"] = os.pathsep.join(os.path.abspath(p) for p in sys.path)
        rc = _run(argv, env)
        if self._config.event_log_handler == "console" and events.exists():
            sys.stderr.write(events.read_text())
        seen = outcome(events)
        story = _story(report)
        why = verdict(story)
        if rc != 0 and not seen.failures and why and why.rank is not None:
            seen.failures, seen.first = {why.rank: culprit(why)}, why.rank
        if rc != 0 and seen.failures:
            error = ChildFailedError._for_torch_too(title, seen.failures, seen.first, why)
            error.report = story
            raise error
        if rc != 0:
            how = f"with exit code {rc}" if rc > 0 else f"by signal {-rc}"
            told = f": {seen.reason}" if seen.reason else "; see standard error"
            raise LaunchError(f"{title}: the launcher ended {how}{told}")
        results: Results[Any] = Results()
        results.restarts = seen.restarts
        for rank in sorted(seen.pids):
            pid = seen.pids[rank]
            results[rank] = _result(directory, rank, pid) if callable(entry) else None
        return results


def _story(path: Path) -> dict[str, Any]:
    """What ``--report`` has written; empty if it could not be."""
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}


def _result(directory: Path, rank: int, pid: int) -> Any:
    """What the last worker of that rank left; an earlier one may have left something, too."""
    path = directory / f"result.{pid}"
    if not path.exists():
        raise LaunchError(
            f"rank {rank} ended well but left no result: it called sys.exit or os._exit, or "
            "another program took its place"
        )
    try:
        return pickle.loads(path.read_bytes())
    except Exception as e:
        raise LaunchError(
            f"the result of rank {rank} cannot be loaded here: {type(e).__name__}: {e}"
        ) from e


__all__ = [
    "ChildFailedError",
    "LaunchConfig",
    "LaunchError",
    "LogsSpecs",
    "ProcessFailure",
    "Results",
    "Verdict",
    "elastic_launch",
]
