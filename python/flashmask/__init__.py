"""Attention with column-wise masks: exact, on CPUs and NVIDIA GPUs, in memory linear in the length.

Importing this module needs NumPy alone; what needs torch is imported when it is first used. Without torch dir() and `import *` leave
that out: DeviceMask, the collators for SFT, preferences and KTO with what goes with them, and Paddle's names.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from . import _lib
from .attention import attention
from .mask import Mask
from .packing import Packing, pack, pack_questions

if TYPE_CHECKING:
    from .collate import KTOCollator as KTOCollator
    from .collate import PreferenceCollator as PreferenceCollator
    from .collate import SFTCollator as SFTCollator
    from .collate import answer_log_probs as answer_log_probs
    from .collate import answer_rewards as answer_rewards
    from .collate import batch_mask as batch_mask
    from .collate import stack_rows as stack_rows
    from .collate import to_device as to_device
    from .collate import token_log_probs as token_log_probs
    from .device_mask import DeviceMask as DeviceMask
    from .paddle import FlashMaskAttention as FlashMaskAttention
    from .paddle import FlashMaskRepresentation as FlashMaskRepresentation
    from .paddle import flashmask_attention as flashmask_attention

_version = _lib.dll.fm_version()
__version__ = f"{_version // 10000}.{_version // 100 % 100}.{_version % 100}"

# Names that are imported on first use: the module that has them.
_LAZY: dict[str, str] = {
    "DeviceMask": "device_mask",
    "FlashMaskAttention": "paddle",
    "FlashMaskRepresentation": "paddle",
    "flashmask_attention": "paddle",
    "KTOCollator": "collate",
    "PreferenceCollator": "collate",
    "SFTCollator": "collate",
    "answer_log_probs": "collate",
    "answer_rewards": "collate",
    "batch_mask": "collate",
    "stack_rows": "collate",
    "to_device": "collate",
    "token_log_probs": "collate",
}

_offered = _LAZY if importlib.util.find_spec("torch") else ()  # without torch only what works, for `import *` and help()

__all__ = ["Mask", "Packing", "attention", "pack", "pack_questions", *_offered]


def _lazily(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'flashmask' has no attribute '{name}'")
    try:
        value = getattr(importlib.import_module(f".{module}", __name__), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(f"flashmask.{name} needs torch, which is not installed", name="torch") from error
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # a type checker would take every name for one of the module
    __getattr__ = _lazily


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
