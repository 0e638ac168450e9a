"""muster's rendezvous inside torch: `torchrun --rdzv-backend=muster`, and for programs.

`muster` is our c10d; `muster-static`, `muster-etcd`, `muster-etcd-v2` and `muster-etcd-v3` are
the other backends. Nodes that use `muster`, `muster run --rdzv-backend=c10d` nodes and torch's
own c10d nodes meet in one group. Importing this module imports torch.
"""
from __future__ import annotations

import base64
import binascii
import ctypes
import os
import re
import threading
from collections.abc import Callable
from ctypes import (
    POINTER,
    byref,
    c_char_p,
    c_int,
    c_int64,
    c_size_t,
    c_uint16,
    c_uint64,
    c_void_p,
)
from datetime import timedelta
from typing import Any

from ._native import Error, ErrorText, MusterTimeoutError, call, error, library
from ._store import Seconds, Store


def _needs_torch(least: tuple[int, int] = (2, 6)) -> None:
    """torch 2.6 has plug-ins, and the form of the shared state that all newer ones have."""
    wanted = "muster.torch needs PyTorch {}.{} or newer".format(*least)
    try:
        import torch
    except ImportError as e:
        raise ImportError(f"{wanted}, which cannot be imported here: {e}") from e
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if found is None or (int(found[1]), int(found[2])) < least:
        raise ImportError(f"{wanted}; this is {torch.__version__}: {torch.__file__}")
    if not torch.distributed.is_available():
        raise ImportError(f"{wanted}, built with torch.distributed; {torch.__file__} is not")


_needs_torch()
try:
    from torch.distributed import DistStoreError, PrefixStore, TCPStore
    from torch.distributed import Store as TorchStore
    from torch.distributed.elastic.rendezvous import (
        RendezvousClosedError,
        RendezvousConnectionError,
        RendezvousGracefulExitError,
        RendezvousHandler,
        RendezvousInfo,
        RendezvousParameters,
        RendezvousStateError,
        RendezvousStoreInfo,
        RendezvousTimeoutError,
    )
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend
except ImportError as e:  # a later torch that has moved something
    raise ImportError(f"muster.torch does not know this PyTorch, it seems: {e}") from e

NAME = "muster"
READ_TIMEOUT = 60

_ERRORS: dict[str, type[Exception]] = {
    "MUSTER_ECLOSED": RendezvousClosedError,
    "MUSTER_ETIMEDOUT": RendezvousTimeoutError,
    "MUSTER_ESTATE": RendezvousStateError,
    "MUSTER_EGRACEFUL": RendezvousGracefulExitError,
    "MUSTER_ECONN": RendezvousConnectionError,
    "MUSTER_EREFUSED": RendezvousConnectionError,
    "MUSTER_EUNREACH": RendezvousConnectionError,
    "MUSTER_ERESOLVE": RendezvousConnectionError,
    "MUSTER_ENOTSTORE": RendezvousConnectionError,
    "MUSTER_EHANGUP": RendezvousConnectionError,
    "MUSTER_EINVAL": ValueError,
}


class _Info(ctypes.Structure):
    _fields_ = (
        ("round", c_uint64),
        ("rank", c_int64),
        ("world_size", c_int64),
        ("store", c_void_p),
        ("master_addr", c_char_p),
        ("master_port", c_uint16),
    )


def _lib() -> ctypes.CDLL:
    """The library with the functions of params.h, rendezvous.h and backend.h declared."""
    lib = library()
    if not hasattr(lib, "_muster_rendezvous_declared"):
        for name in ("free", "cancel", "is_closed", "num_nodes_waiting", "use_agent_store"):
            getattr(lib, f"muster_rendezvous_{name}").argtypes = [c_void_p]
        lib.muster_rendezvous_free.restype = None
        lib.muster_rendezvous_cancel.restype = None
        lib.muster_rendezvous_num_nodes_waiting.restype = c_int64
        lib.muster_params_free.argtypes = [c_void_p]
        lib.muster_params_free.restype = None
        lib.muster_store_name.argtypes = [c_void_p]
        lib.muster_store_name.restype = c_char_p
        lib.muster_backend_free.argtypes = [c_void_p]
        lib.muster_backend_free.restype = None
        lib.muster_state_free.restype = None
        lib.muster_rendezvous_next.argtypes = [c_void_p, POINTER(_Info), POINTER(ErrorText)]
        lib.muster_rendezvous_next.restype = c_int
        lib._muster_rendezvous_declared = True  # type: ignore[attr-defined]
    return lib


def _translated(e: Error) -> Exception:
    """The exception that torch would raise for it."""
    return _ERRORS.get(e.code, RuntimeError)(str(e))


def _call(function: Any, *args: Any) -> None:
    try:
        call(function, *args)
    except Error as e:
        raise _translated(e) from e


def _params(given: RendezvousParameters, backend: str) -> c_void_p:
    """torch's parameters as ours; the caller frees them."""
    lib, out = _lib(), c_void_p()
    local_addr = given.local_addr.encode() if given.local_addr else None
    _call(
        lib.muster_params_new,
        backend.encode(),
        (given.endpoint or "").encode(),
        given.run_id.encode(),
        c_int64(given.min_nodes),
        c_int64(given.max_nodes),
        local_addr,
        byref(out),
    )
    try:
        for key, value in given.config.items():
            if value is not None:
                _call(lib.muster_params_set, out, str(key).encode(), str(value).encode())
    except BaseException:
        lib.muster_params_free(out)
        raise
    return out


_BACKENDS = ("c10d", "static", "etcd", "etcd-v2", "etcd-v3")


def _backend_of(params: RendezvousParameters) -> str:
    """Which of our backends torch's name means."""
    name = str(params.backend)
    if name == NAME:
        return "c10d"
    name = name[len(NAME) + 1 :] if name.startswith(NAME + "-") else name
    if name not in _BACKENDS:
        known = ", ".join([NAME, *(f"{NAME}-{b}" for b in _BACKENDS[1:])])
        raise ValueError(f"rdzv_backend {params.backend!r} is not one of muster's: {known}")
    return name


class MusterStore(TorchStore):
    """A :class:`muster.Store` that torch takes for one of its own, in C++ too: process groups
    and ``PrefixStore`` work on it. Keeps the store open as long as it lives.

    :param store: what to work on.
    :param timeout: for calls without one of their own; the store's by default.
    """

    def __init__(self, store: Store, timeout: Seconds | None = None) -> None:
        super().__init__()
        self._store = store
        if timeout is not None:
            self.set_timeout(timeout)

    def _do(self, method: Callable[..., Any], *args: Any) -> Any:
        """A call, with the errors that torch's stores raise."""
        try:
            return method(*args)
        except MusterTimeoutError as e:
            raise DistStoreError(str(e)) from e
        except Error as e:
            raise RuntimeError(str(e)) from e

    @property
    def timeout(self) -> timedelta:
        """The timeout of calls that are not given one."""
        return timedelta(seconds=self._store.timeout)

    def set_timeout(self, timeout: Seconds) -> None:
        """Sets the timeout of calls that are not given one."""
        self._store.set_timeout(timeout)

    def set(self, key: str, value: str | bytes) -> None:
        self._do(self._store.set, key, value)

    def get(self, key: str) -> bytes:
        return bytes(self._do(self._store.get, key))

    def add(self, key: str, amount: int) -> int:
        return int(self._do(self._store.add, key, amount))

    def append(self, key: str, value: str | bytes) -> None:
        self._do(self._store.append, key, value)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        return bytes(self._do(self._store.compare_set, key, expected, desired))

    def check(self, keys: list[str]) -> bool:
        return bool(self._do(self._store.check, keys))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._do(self._store.wait, keys, timeout)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return list(self._do(self._store.multi_get, keys))

    def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
        self._do(self._store.multi_set, keys, values)

    def has_extended_api(self) -> bool:
        return True

    def num_keys(self) -> int:
        return int(self._do(self._store.num_keys))

    def delete_key(self, key: str) -> bool:
        return bool(self._do(self._store.delete_key, key))

    def clone(self) -> MusterStore:
        return MusterStore(self._do(self._store.clone))

    # By these names torch's C++ looks for the three above.
    getNumKeys = num_keys  # noqa: N815
    deleteKey = delete_key  # noqa: N815


class MusterRendezvousHandler(RendezvousHandler):
    """torch's ``RendezvousHandler`` on libmuster: heartbeats on a thread of the library.

    :param params: torch's parameters.
    :param backend: ``c10d``, ``static``, ``etcd``, ``etcd-v2`` or ``etcd-v3``; by default what
        ``params.backend`` names, with or without ``muster-`` in front.
    """

    def __init__(self, params: RendezvousParameters, backend: str | None = None) -> None:
        self._handle = c_void_p()
        self._down = False  # the run was closed by this handler, which is then at its end
        lib = _lib()
        self._end = lib.muster_rendezvous_free  # at interpreter exit, _lib may be gone
        self._run_id = params.run_id
        self._read_timeout = params.get_as_int("read_timeout", READ_TIMEOUT) or READ_TIMEOUT
        self._backend = params.backend
        ours = backend or _backend_of(params)
        # torch's own client can neither speak to etcd nor prove the job's secret, and it
        # does not know where the keys of a static job are.
        secret = params.get("token_file") or params.get("munge") or "MUSTER_TOKEN" in os.environ
        self._torchs_client = ours == "c10d" and not secret
        given = _params(params, ours)
        try:
            _call(lib.muster_rendezvous_open, given, None, None, byref(self._handle))
        finally:
            lib.muster_params_free(given)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._end(self._handle)

    def get_backend(self) -> str:
        """The name under which torch knows this handler."""
        return str(self._backend)

    @property
    def use_agent_store(self) -> bool:
        return bool(_lib().muster_rendezvous_use_agent_store(self._handle))

    def next_rendezvous(self) -> RendezvousInfo:
        if self._down:
            raise RendezvousClosedError(f"run '{self._run_id}': this handler was shut down")
        info, err = _Info(), ErrorText()
        answer: list[int] = []

        def join() -> None:
            answer.append(_lib().muster_rendezvous_next(self._handle, byref(info), byref(err)))

        # On a thread, so that a signal to this one is acted on while we wait.
        thread = threading.Thread(target=join, name="muster rendezvous", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(0.1)
        except BaseException:
            _lib().muster_rendezvous_cancel(self._handle)
            thread.join()
            raise
        if answer[0] < 0:
            e = error(answer[0], err)
            raise _translated(e) from e
        return RendezvousInfo(
            self._torch_store(info),
            int(info.rank),
            int(info.world_size),
            RendezvousStoreInfo(info.master_addr.decode(), int(info.master_port)),
        )

    def _torch_store(self, info: _Info) -> TorchStore:
        """The round's keys, as every other node of the group finds them."""
        name = _lib().muster_store_name(info.store).decode()
        match = re.match(r"tcp://(\[[^]]+\]|[^:\s]+):(\d+)", name)
        if match is None or not self._torchs_client:
            try:
                ours = Store._made(_lib().muster_store_clone, c_void_p(info.store))
            except Error as e:
                raise _translated(e) from e
            ours._keeps = self
            return MusterStore(ours, timedelta(seconds=self._read_timeout))
        store = TCPStore(
            match[1].strip("[]"),
            int(match[2]),
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=self._read_timeout),
        )
        return PrefixStore(f"torch.rendezvous.{self._run_id}.{info.round}", store)

    def is_closed(self) -> bool:
        return self._down or bool(_lib().muster_rendezvous_is_closed(self._handle))

    def set_closed(self) -> None:
        if not self._down:
            _call(_lib().muster_rendezvous_set_closed, self._handle)

    def num_nodes_waiting(self) -> int:
        return int(_lib().muster_rendezvous_num_nodes_waiting(self._handle))

    def get_run_id(self) -> str:
        return str(self._run_id)

    def shutdown(self) -> bool:
        """Closes the run; returns whether the others could be told. May be called again."""
        if not self._down:
            try:
                call(_lib().muster_rendezvous_shutdown, self._handle)
            except Error:
                return False
            self._down = True
        return True


class MusterRendezvousBackend(RendezvousBackend):
    """torch's ``RendezvousBackend`` on :class:`muster.Store`, for handlers built by hand."""

    _NOTHING = b"Y2FuaW1hZGFt"  # what torch's c10d nodes write for "no state yet"

    def __init__(self, store: Store, run_id: str) -> None:
        if not run_id:
            raise ValueError("The run id must be a non-empty string.")
        self._store = store
        self._key = "torch.rendezvous." + run_id
        self._do(store.compare_set, self._key, "", self._NOTHING)

    @property
    def name(self) -> str:
        return NAME

    def get_state(self) -> tuple[bytes, Any] | None:
        return self._decode(self._do(self._store.get, self._key))

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        new = base64.b64encode(state)
        if token and not isinstance(token, bytes):
            held = self.get_state()
            return None if held is None else (*held, False)
        expected = token or self._NOTHING
        held = self._decode(self._do(self._store.compare_set, self._key, expected, new))
        return None if held is None else (*held, held[1] == new)

    def _do(self, method: Callable[..., bytes], *args: Any) -> bytes:
        try:
            return method(*args)
        except Error as e:
            raise RendezvousConnectionError(
                f"The connection to the C10d store has failed. {e}"
            ) from e

    def _decode(self, value: bytes) -> tuple[bytes, Any] | None:
        if value == self._NOTHING:
            return None
        try:
            return base64.b64decode(value, validate=True), value
        except binascii.Error as e:
            raise RendezvousStateError(
                "The state object is corrupt. See inner exception for details."
            ) from e


class _State(ctypes.Structure):
    _fields_ = (
        ("bytes", c_void_p),
        ("size", c_size_t),
        ("token", c_void_p),
        ("token_size", c_size_t),
        ("won", c_int),
    )


class MusterStateBackend(RendezvousBackend):
    """torch's ``RendezvousBackend`` on libmuster, in a c10d store or in etcd: torch's handlers
    on it meet nodes of ``muster run`` and, but for etcd-v3, of ``torchrun``.

    :param params: torch's parameters; ``params.backend`` is ``c10d``, ``etcd-v2`` or
        ``etcd-v3``, with or without ``muster-`` in front, or ``muster`` for c10d.
    """

    def __init__(self, params: RendezvousParameters) -> None:
        self._handle = c_void_p()
        self._name = str(params.backend)
        self._end = _lib().muster_backend_free  # at interpreter exit, _lib may be gone
        given = _params(params, _backend_of(params))
        try:
            _call(_lib().muster_backend_open, given, byref(self._handle))
        finally:
            _lib().muster_params_free(given)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._end(self._handle)

    @property
    def name(self) -> str:
        return self._name

    def get_state(self) -> tuple[bytes, Any] | None:
        held = self._ask(_lib().muster_backend_get_state)
        return None if held is None else held[:2]

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        if token and not isinstance(token, bytes):
            return self._ask(_lib().muster_backend_get_state)
        return self._ask(
            _lib().muster_backend_set_state,
            state,
            c_size_t(len(state)),
            token or None,
            c_size_t(len(token) if token else 0),
        )

    def store(self) -> MusterStore:
        """A store at the same place, for the group's own keys; it may outlive the backend."""
        try:
            return MusterStore(Store._made(_lib().muster_backend_store, self._handle))
        except Error as e:
            raise _translated(e) from e

    def _ask(self, function: Any, *args: Any) -> tuple[bytes, Any, bool] | None:
        held = _State()
        _call(function, self._handle, *args, byref(held))
        try:
            if not held.bytes:
                return None
            token = ctypes.string_at(held.token, held.token_size)
            return ctypes.string_at(held.bytes, held.size), token, bool(held.won)
        finally:
            _lib().muster_state_free(byref(held))


def create_backend(params: RendezvousParameters) -> tuple[MusterStateBackend, MusterStore]:
    """Backend and store for torch's ``DynamicRendezvousHandler``, as torch's own functions of
    this name make them for c10d and etcd-v2; here for etcd-v3, too. With c10d this process
    serves the store if ``is_host`` says so, or if the endpoint is this machine's and the port
    is free.
    """
    backend = MusterStateBackend(params)
    return backend, backend.store()


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """For registries of your own: ``registry.register("muster", create_handler)``."""
    return MusterRendezvousHandler(params)


__all__ = [
    "MusterRendezvousBackend",
    "MusterRendezvousHandler",
    "MusterStateBackend",
    "MusterStore",
    "create_backend",
    "create_handler",
]
