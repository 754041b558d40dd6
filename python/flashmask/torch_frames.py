"""Keeps dynamo away from the package's frames where they run in the midst of compiled code. Graphs take the same code in as any."""

from __future__ import annotations

import functools
import importlib
import types
from typing import Any, Callable, Iterator

import torch

eval_frame = torch._C._dynamo.eval_frame

# Of the others users may compile what they offer by itself, as flashmask.attention.
MODULES = (
    "_arrays", "_builders", "_conversions", "_lib", "_mask_mod", "_properties", "_structs", "_tokens", "mask", "plan",
    "torch_attention", "torch_calls", "torch_masks", "torch_ops", "torch_vmap",
)  # fmt: skip
WRAPPERS = staticmethod, classmethod, functools._lru_cache_wrapper


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, and all that it calls, out of sight of dynamo where C++ calls it."""

    def run(*args: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args)
        callback = eval_frame.set_eval_frame(None)
        try:
            return function(*args)
        finally:
            eval_frame.set_eval_frame(callback)

    skip_code(run.__code__)
    return run


def skip() -> None:
    """Has dynamo leave frames of functions in MODULES alone, at no cost of a call. It would trace those that C++ calls, as kernels
    are, and all of a call that it has given up to take into graphs; stumble over ctypes; and compile anew for each new Mask."""
    for name in MODULES:
        module = importlib.import_module(f"flashmask.{name}")
        for code in codes(module, module.__name__):
            skip_code(code)


def skip_code(code: types.CodeType) -> None:
    """By the name that this torch has for it; dynamo itself would take long to import."""
    if hasattr(eval_frame, "skip_code"):
        eval_frame.skip_code(code)
    elif hasattr(eval_frame, "set_code_exec_strategy"):
        action = eval_frame._FrameAction
        eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT))


def codes(owner: Any, module: str) -> Iterator[types.CodeType]:
    """Of the functions and methods that a module defines. owner: the module, or a class in it."""
    for item in list(vars(owner).values()):  # dynamo adds to a module as it traces
        if isinstance(item, type) and item.__module__ == module:
            yield from codes(item, module)
        if isinstance(item, property):
            item = item.fget
        elif isinstance(item, WRAPPERS):
            item = item.__wrapped__
        if isinstance(item, types.FunctionType) and item.__module__ == module:
            yield from with_inner(item.__code__)


def with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    """And of what a function defines."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from with_inner(constant)
