#!/usr/bin/env python3
"""Long context: source files of up to the whole capacity in one sequence, layers computed again in backward. The mask stays 8
bytes a token, where a dense one grows with the square."""

from __future__ import annotations

import sys

from sft import SFT
from shared import data
from shared.race import parser, race


def main(arguments: list[str] | None = None) -> int:
    options = parser(__doc__, checkpointing=True, capacity=8192, steps=4).parse_args(arguments)
    return 0 if race(SFT("Long context", data.sequences(data.files, options, "best_fit")), options) else 1


if __name__ == "__main__":
    sys.exit(main())
