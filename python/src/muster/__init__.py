"""muster from Python: functions on many workers, the store, torch's plug-in in muster.torch.

    import os
    import muster

    def work(x):
        return x * int(os.environ["RANK"])

    if __name__ == "__main__":
        config = muster.LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=4)
        print(muster.elastic_launch(config, work)(10))  # {0: 0, 1: 10, 2: 20, 3: 30}

A worker that fails for good raises ChildFailedError here, with its traceback. Nothing is
loaded before it is used: importing this package costs next to nothing.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._config import LaunchConfig, LogsSpecs
    from ._failures import ChildFailedError, ProcessFailure, Verdict
    from ._launch import LaunchError, Results, elastic_launch
    from ._native import (
        Error,
        MusterAddressInUseError,
        MusterConnectionError,
        MusterQueueEmptyError,
        MusterTimeoutError,
        NativeError,
    )
    from ._notice import deadline
    from ._store import Store

__all__ = [
    "ChildFailedError",
    "Error",
    "LaunchConfig",
    "LaunchError",
    "LogsSpecs",
    "MusterAddressInUseError",
    "MusterConnectionError",
    "MusterQueueEmptyError",
    "MusterTimeoutError",
    "NativeError",
    "ProcessFailure",
    "Results",
    "Store",
    "Verdict",
    "deadline",
    "elastic_launch",
]

_WHERE = {
    "ChildFailedError": "_failures",
    "Error": "_native",
    "LaunchConfig": "_config",
    "LaunchError": "_launch",
    "LogsSpecs": "_config",
    "MusterAddressInUseError": "_native",
    "MusterConnectionError": "_native",
    "MusterQueueEmptyError": "_native",
    "MusterTimeoutError": "_native",
    "NativeError": "_native",
    "ProcessFailure": "_failures",
    "Results": "_launch",
    "Store": "_store",
    "Verdict": "_failures",
    "deadline": "_notice",
    "elastic_launch": "_launch",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        from ._native import DISTRIBUTION

        return version(DISTRIBUTION)
    if name not in _WHERE:
        raise AttributeError(f"module 'muster' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f".{_WHERE[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
