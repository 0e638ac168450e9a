"""A client of the c10d key-value store: what torch calls TCPStore, without torch."""
from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterable, Sequence
from ctypes import (
    POINTER,
    byref,
    c_bool,
    c_char_p,
    c_int64,
    c_size_t,
    c_uint16,
    c_uint64,
    c_void_p,
)
from datetime import timedelta
from types import TracebackType
from typing import Any, ClassVar, Union

from ._native import Error, call, library

Value = Union[str, bytes, bytearray, memoryview]
Seconds = Union[float, timedelta]  # a time limit: a number of seconds, or torch's timedelta


class _Bytes(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("size", c_size_t))


class _BytesList(ctypes.Structure):
    _fields_ = (("items", POINTER(_Bytes)), ("count", c_size_t))


class _Options(ctypes.Structure):
    _fields_ = (
        ("host", c_char_p),
        ("port", c_uint16),
        ("timeout_ms", c_uint64),
        ("serve", c_bool),
        ("bind", c_char_p),
        ("listen_fd", ctypes.c_int),
        ("world_size", c_int64),
        ("wait_for_workers", c_bool),
    )


def _lib() -> ctypes.CDLL:
    """The library with the functions of store.h declared."""
    lib = library()
    if not hasattr(lib, "_muster_store_declared"):
        for name in ("port", "timeout", "name", "close"):
            getattr(lib, f"muster_store_{name}").argtypes = [c_void_p]
        lib.muster_store_port.restype = c_uint16
        lib.muster_store_timeout.restype = c_uint64
        lib.muster_store_name.restype = c_char_p
        lib.muster_store_close.restype = None
        lib.muster_store_set_timeout.argtypes = [c_void_p, c_uint64]
        lib.muster_store_set_timeout.restype = None
        lib._muster_store_declared = True  # type: ignore[attr-defined]
    return lib


def _data(value: Value) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _key(key: str) -> bytes:
    if "\0" in key:
        raise ValueError(f"a key cannot hold a NUL: {key!r}")
    return key.encode()


def _keys(keys: Sequence[str]) -> Any:
    if isinstance(keys, str):
        raise TypeError("several keys are wanted, not one text")
    return (c_char_p * len(keys))(*[_key(k) for k in keys])


def _ms(seconds: Seconds) -> int:
    """Milliseconds, as the library counts."""
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    return max(0, round(seconds * 1000))


class Store:
    """A connection to a c10d store; each call blocks until its answer or its timeout.

    The methods are those of ``torch.distributed.Store``. Values may be text or bytes; what
    comes back is bytes. A failed call raises :class:`muster.Error`, of which
    ``TimeoutError`` and ``ConnectionError`` are bases where they fit.

    A store does not survive ``os.fork``: a child's calls raise :class:`muster.Error`, closing
    its copy leaves the parent's alone, and it has to open its own.

    :param host: name or address of the server.
    :param port: its port; with ``serve``, 0 takes any free one (see :attr:`port`).
    :param timeout: seconds, to connect and for each call.
    :param serve: run a server in this process too.
    :param bind: with ``serve``, the numeric address to listen on; every address by default.
    :param listen_fd: with ``serve``, a socket that is bound already; the store's from then on.
    :param world_size: how many stores will come, this one included; not known by default.
    :param wait_for_workers: with a ``world_size``, whether to wait until all have come.
    :param multi_tenant: with ``serve``, share the server of another store of this process
        that serves at the same port with ``multi_tenant``, if there is one.
    """

    # The stores of this process that serve and may be shared, by port.
    _shared: ClassVar[weakref.WeakValueDictionary[int, Store]] = weakref.WeakValueDictionary()
    _sharing = threading.Lock()
    _keeps: Any = None  # a handler whose connections this store uses: not to end before it

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout: Seconds = 300.0,
        serve: bool = False,
        bind: str | None = None,
        listen_fd: int | None = None,
        world_size: int | None = None,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
    ) -> None:
        self._handle: int | None = None
        self._host = host
        lib = _lib()
        options = _Options()
        lib.muster_store_options_init(byref(options))
        options.host, options.port, options.timeout_ms = host.encode(), port, _ms(timeout)
        options.serve, options.bind = serve, bind.encode() if bind else None
        options.world_size = -1 if world_size is None else world_size
        options.wait_for_workers = wait_for_workers
        if listen_fd is not None:
            options.listen_fd = listen_fd
        if not (serve and multi_tenant):
            self._adopt(lib.muster_store_open_tcp, byref(options))
            return
        with self._sharing:
            other = self._shared.get(port) if port else None
            if other is not None and other._handle is not None:
                self._adopt(lib.muster_store_clone, other._open)  # keeps the server alive
                self.set_timeout(timeout)
            else:
                self._adopt(lib.muster_store_open_tcp, byref(options))
            self._shared[self.port] = self

    def _adopt(self, function: Any, *args: Any) -> None:
        handle = c_void_p()
        call(function, *args, byref(handle))
        self._handle = handle.value
        self._end = _lib().muster_store_close  # at interpreter exit, _lib may be gone

    @classmethod
    def _made(cls, function: Any, *args: Any) -> Store:
        store = cls.__new__(cls)
        store._handle = None
        store._host = ""
        store._adopt(function, *args)
        return store

    @classmethod
    def file(
        cls, path: str, *, timeout: Seconds = 300.0, world_size: int | None = None
    ) -> Store:
        """A store in a file, shared with torch's FileStore."""
        size = c_int64(-1 if world_size is None else world_size)
        return cls._made(
            _lib().muster_store_open_file, path.encode(), size, c_uint64(_ms(timeout))
        )

    @classmethod
    def hash(cls, *, timeout: Seconds = 300.0) -> Store:
        """A store in the memory of this process."""
        return cls._made(_lib().muster_store_open_hash, c_uint64(_ms(timeout)))

    def prefixed(self, prefix: str) -> Store:
        """A view in which every key stands for ``prefix/key`` of this one."""
        view = self._made(_lib().muster_store_open_prefix, self._open, prefix.encode())
        view._host, view._keeps = self._host, self._keeps
        return view

    def clone(self) -> Store:
        """Another store on the same data with a connection of its own."""
        other = self._made(_lib().muster_store_clone, self._open)
        other._host, other._keeps = self._host, self._keeps
        return other

    @property
    def _open(self) -> c_void_p:
        if self._handle is None:
            raise ValueError("the store is closed")
        return c_void_p(self._handle)

    def close(self) -> None:
        """Ends the connection, and the server if this one runs it."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            self._end(handle)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()

    def __repr__(self) -> str:
        if self._handle is None:
            return "<muster.Store closed>"
        return f"<muster.Store {_lib().muster_store_name(self._open).decode()}>"

    @property
    def host(self) -> str:
        """The server's name or address, as it was given; empty for a file or memory."""
        return self._host

    @property
    def port(self) -> int:
        """The port of the server; 0 for a file or memory."""
        return int(_lib().muster_store_port(self._open))

    @property
    def timeout(self) -> float:
        """Seconds that a call may take."""
        return float(_lib().muster_store_timeout(self._open)) / 1000

    def set_timeout(self, seconds: Seconds) -> None:
        """Sets the timeout of calls that are not given one."""
        _lib().muster_store_set_timeout(self._open, _ms(seconds))

    def set(self, key: str, value: Value) -> None:
        """Sets the value, and wakes whoever waits for the key."""
        data = _data(value)
        call(_lib().muster_store_set, self._open, _key(key), data, c_size_t(len(data)))

    def get(self, key: str, timeout: Seconds | None = None) -> bytes:
        """The value, once the key exists; waits for the store's timeout or the given one."""
        if timeout is not None:
            self.wait([key], timeout)
        return self._bytes(_lib().muster_store_get, _key(key))

    def add(self, key: str, amount: int) -> int:
        """Adds to the number at the key, 0 if missing, and returns the sum."""
        result = c_int64()
        call(_lib().muster_store_add, self._open, _key(key), c_int64(amount), byref(result))
        return result.value

    def append(self, key: str, value: Value) -> None:
        """Adds to the end of the value, which is empty if the key is missing."""
        data = _data(value)
        call(_lib().muster_store_append, self._open, _key(key), data, c_size_t(len(data)))

    def compare_set(self, key: str, expected: Value, desired: Value) -> bytes:
        """Sets ``desired`` if the value is ``expected``; returns what is there then."""
        old, new = _data(expected), _data(desired)
        return self._bytes(
            _lib().muster_store_compare_set,
            _key(key),
            old,
            c_size_t(len(old)),
            new,
            c_size_t(len(new)),
        )

    def delete_key(self, key: str) -> bool:
        """Deletes the key; returns whether it was there."""
        deleted = c_bool()
        call(_lib().muster_store_delete, self._open, _key(key), byref(deleted))
        return deleted.value

    def check(self, keys: Sequence[str]) -> bool:
        """Returns at once whether all the keys exist."""
        ready = c_bool()
        count = c_size_t(len(keys))
        call(_lib().muster_store_check, self._open, _keys(keys), count, byref(ready))
        return ready.value

    def wait(self, keys: Sequence[str], timeout: Seconds | None = None) -> None:
        """Waits until all the keys exist."""
        ms = c_uint64(_ms(self.timeout if timeout is None else timeout))
        call(_lib().muster_store_wait, self._open, _keys(keys), c_size_t(len(keys)), ms)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Waits until all the keys exist; returns their values in the same order."""
        return self._list(_lib().muster_store_multi_get, _keys(keys), c_size_t(len(keys)))

    def multi_set(self, keys: Sequence[str], values: Iterable[Value]) -> None:
        """Sets each key to the value at its place."""
        data = [_data(v) for v in values]
        if len(data) != len(keys):
            raise ValueError(f"{len(keys)} keys, but {len(data)} values")
        buffers = [ctypes.create_string_buffer(d, len(d) + 1) for d in data]
        items = (_Bytes * len(data))(
            *[_Bytes(ctypes.addressof(b), len(d)) for b, d in zip(buffers, data)]
        )
        call(
            _lib().muster_store_multi_set, self._open, _keys(keys), items, c_size_t(len(data))
        )

    def num_keys(self) -> int:
        """Returns how many keys there are."""
        count = c_int64()
        call(_lib().muster_store_num_keys, self._open, byref(count))
        return count.value

    def list_keys(self) -> list[str]:
        """Returns the names of all keys, in no particular order."""
        return [k.decode() for k in self._list(_lib().muster_store_list_keys)]

    def barrier(self, key: str, world_size: int, timeout: Seconds | None = None) -> None:
        """Waits until ``world_size`` callers have come to this key."""
        ms = c_uint64(_ms(self.timeout if timeout is None else timeout))
        call(_lib().muster_store_barrier, self._open, _key(key), c_int64(world_size), ms)

    def queue_push(self, key: str, value: Value) -> None:
        """Adds to the end of the queue."""
        data = _data(value)
        call(_lib().muster_store_queue_push, self._open, _key(key), data, c_size_t(len(data)))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Takes the first item; if there is none, waits, or without ``block`` raises
        :class:`muster.MusterQueueEmptyError`."""
        return self._bytes(_lib().muster_store_queue_pop, _key(key), c_bool(block))

    def queue_len(self, key: str) -> int:
        """Returns how many items the queue has."""
        count = c_int64()
        call(_lib().muster_store_queue_len, self._open, _key(key), byref(count))
        return count.value

    def _bytes(self, function: Any, *args: Any) -> bytes:
        value = _Bytes()
        call(function, self._open, *args, byref(value))
        try:
            return ctypes.string_at(value.data, value.size) if value.size else b""
        finally:
            _lib().muster_bytes_free(byref(value))

    def _list(self, function: Any, *args: Any) -> list[bytes]:
        values = _BytesList()
        call(function, self._open, *args, byref(values))
        try:
            items = (values.items[i] for i in range(values.count))
            return [ctypes.string_at(v.data, v.size) if v.size else b"" for v in items]
        finally:
            _lib().muster_bytes_list_free(byref(values))


__all__ = ["Error", "Store"]
