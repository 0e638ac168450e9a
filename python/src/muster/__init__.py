"""muster from Python: the store, the launcher, and torch's plug-in in muster.torch.

Nothing is loaded before it is used: importing this package costs next to nothing.
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
