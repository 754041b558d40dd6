"""libflashmask by ctypes: finds and loads it, and turns its statuses into exceptions.

The library is the file that the environment variable FLASHMASK_LIBRARY names, else the one that was installed in this package.
Structs and constants of the headers are names of this module too: `_lib.ForwardArgs`, `_lib.BF16`.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any, Self

from ._functions import CALLS, GETTERS
from ._structs import *
from ._structs import (
    ERROR_ARGUMENT,
    ERROR_CANNOT_EXPRESS,
    ERROR_DTYPE,
    ERROR_LIMIT,
    ERROR_OUT_OF_MEMORY,
    ERROR_SHAPE,
    ERROR_UNSUPPORTED,
    OK,
)

VERSION = 100  # FM_VERSION of the headers that the structs were written from

# What messages say of C's arguments, and what callers from Python gave.
PYTHONS_TERMS = {"plan: its mask has": "mask: has", "FM_PACK_SPLIT cuts": 'overlong="split" cuts'}

EXCEPTIONS: dict[int, type[Exception]] = {
    ERROR_ARGUMENT: ValueError,
    ERROR_SHAPE: ValueError,
    ERROR_DTYPE: TypeError,
    ERROR_UNSUPPORTED: NotImplementedError,
    ERROR_CANNOT_EXPRESS: NotImplementedError,
    ERROR_LIMIT: MemoryError,
    ERROR_OUT_OF_MEMORY: MemoryError,
}  # others: RuntimeError


def _path() -> Path:
    named = os.environ.get("FLASHMASK_LIBRARY")
    if named:
        if not Path(named).is_file():
            raise ImportError(f"FLASHMASK_LIBRARY is {named}, which is not a file")
        return Path(named).absolute()
    folders = sys.modules[__package__].__path__  # two of them in an editable install
    for folder in folders:
        for name in ("libflashmask.so", "libflashmask.dylib"):
            if (Path(folder) / name).is_file():
                return Path(folder) / name
    raise ImportError(
        f"no libflashmask in {', '.join(folders)}: install the package with `pip install .` from its repository, "
        "or set FLASHMASK_LIBRARY to a libflashmask.so that CMake has built"
    )


def _load() -> ctypes.CDLL:
    path = _path()
    dll = ctypes.CDLL(str(path))
    try:
        for name, arguments in CALLS.items():
            function = getattr(dll, name)
            function.restype, function.argtypes = ctypes.c_int, arguments
        for name, (result, arguments) in GETTERS.items():
            function = getattr(dll, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError as error:
        raise ImportError(f"{path} is not the libflashmask that this package was written for: {error}") from None
    found = dll.fm_version()
    if found // 100 != VERSION // 100:  # before 1.0 a minor version may break callers
        raise ImportError(f"{path} has version {found}, this package needs {VERSION}")
    return dll


dll = _load()


def error(name: str, status: int) -> Exception:
    """The exception of a failed call, with the library's message. Made in the thread that called."""
    message = dll.fm_error_message().decode()
    for term, ours in PYTHONS_TERMS.items():
        message = message.replace(term, ours)
    text = f"{name}: {message or dll.fm_status_name(status).decode()}"
    return EXCEPTIONS.get(status, RuntimeError)(text)


def call(name: str, *arguments) -> None:
    """Calls a function that returns an fm_status; raises ValueError (argument, shape), TypeError (dtype), NotImplementedError
    (not in this build, or the form cannot hold the mask), MemoryError (limits) or RuntimeError (the rest)."""
    status = getattr(dll, name)(*arguments)
    if status != OK:
        raise error(name, status)


def create(name: str, *arguments) -> int:
    """The handle that a constructor writes through its last argument."""
    handle = ctypes.c_void_p()
    call(name, *arguments, ctypes.byref(handle))
    return handle.value or 0  # never 0: the library has said OK


class Owner:
    """Frees a handle of the library when Python lets go of it. What a handle names never changes, so a copy is the object itself;
    a pickle would hold an address of another process: subclasses that can be made anew say how."""

    _free = staticmethod(lambda handle: None)

    def __init__(self, handle: int) -> None:
        self._handle = handle

    @property
    def handle(self) -> int:
        """The address that the library's functions take. The object must outlive their use of it."""
        handle = self.__dict__.get("_handle")
        if handle is None:
            raise ValueError(f"this {type(self).__name__} was never built")
        return handle

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict) -> Self:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(f"a {type(self).__name__} cannot be pickled: make it anew where it is needed")

    def __del__(self) -> None:
        handle = self.__dict__.pop("_handle", None)
        if handle is not None:
            self._free(handle)


# OpenMP's threads do not come along into a forked process, and waiting for them there never ends. One thread needs no other.
_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_after_fork)


def num_threads() -> int:
    """What ForwardArgs.num_threads should be: 0 (OpenMP's own choice), or 1 in a process that was forked from one that had loaded
    the library."""
    return 1 if _forked else 0
