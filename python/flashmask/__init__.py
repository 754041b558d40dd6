"""Attention with column-wise masks: exact, on CPUs and NVIDIA GPUs, in memory linear in the length.

Importing this module needs NumPy alone; what needs torch is imported when it is first used.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from . import _lib
from .attention import attention
from .mask import Mask
from .packing import Packing, pack, pack_questions

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


def __getattr__(name: str) -> Any:
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


def __dir__() -> list[str]:
    return sorted({*globals(), *_offered})
