"""What a worker of elastic_launch runs: loads the function, calls it, leaves its result.

Started by path, by the agent, in a fresh interpreter: python _worker DIRECTORY. Only the
standard library here; the caller's module search path comes with the work. In a directory of
its own, which is the first of sys.path: beside it, muster/torch.py would be found as torch.
"""
from __future__ import annotations

import contextlib
import json
import os
import pickle
import sys
import time
import traceback
from pathlib import Path


def _record(error: BaseException) -> None:
    """Tells the agent what went wrong, in the form that torch's own recorder uses."""
    target = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not target:
        return
    text = {
        "message": f"{type(error).__name__}: {error}",
        "extraInfo": {
            "py_callstack": traceback.format_exc(),
            "timestamp": str(int(time.time())),
        },
    }
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    Path(target).write_text(json.dumps({"message": text}))


def _leave(directory: Path, result: object) -> None:
    """Whole or not at all: the parent takes what is there for a result."""
    try:
        data = pickle.dumps(result)
    except Exception as e:
        raise TypeError(
            f"the result of rank {os.environ['RANK']} cannot be pickled, so it cannot be "
            f"returned: {e}"
        ) from e
    part = directory / f"part.{os.getpid()}"
    part.write_bytes(data)
    part.rename(directory / f"result.{os.getpid()}")


def _restore(path: list[str]) -> None:
    """With warm, PYTHONPATH is the caller's search path, for the interpreter that imports;
    what it was comes behind the word, if it was set."""
    if path[:1] == ["--warm"]:
        os.environ.pop("PYTHONPATH", None)
        if path[1:]:
            os.environ["PYTHONPATH"] = path[1]


def _end(code: int) -> None:
    """Ends without taking the interpreter down, as multiprocessing's forked children do: a
    thread of torch that still wants the interpreter's lock for the tensors of the last
    collective would abort the process then. What the function has left to be done at the end
    is done before."""
    import atexit
    import threading

    with contextlib.suppress(Exception):  # each has printed what went wrong
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # None, or closed
            stream.flush()
    os._exit(code)


def _main() -> None:
    directory = Path(sys.argv[1])
    work = directory / "work"
    _restore(sys.argv[2:])
    try:
        with work.open("rb") as f:
            preparation = pickle.load(f)
            from multiprocessing import spawn

            spawn.prepare(preparation)  # sys.path, sys.argv, the caller's __main__
            function, args = pickle.load(f)
        _leave(directory, function(*args))
    except Exception as e:
        _record(e)
        sys.excepthook(*sys.exc_info())
        _end(1)
    _end(0)


if __name__ == "__main__":
    _main()
