"""Every public call with wrong values for each of its arguments: what the tests of bad arguments share."""

import numpy as np
import pytest

NOT_INTEGERS = [True, np.True_, np.array(True), 1.5, np.float64(2), "3", b"3", [3], (3,), np.array([3]), 1j, object(), {}]
TOO_LARGE = [2**63, -(2**63) - 1, 10**30]
NOT_FLAGS = [1, 0, None, "no", [], [True], np.array([True]), 1.0, object()]
NOT_NUMBERS = ["1", b"1", True, [1.0], 1j, object(), {}]
NOT_ARRAYS = ["12", b"12", 1.5, [1.5], ["1"], {"a": "b"}, object(), {1}, [None], 1j, np.array(["1"])]


def wrong_values(right):
    """Of another kind than a right one, with the errors that they may be."""
    if isinstance(right, bool):
        return [(value, TypeError) for value in NOT_FLAGS]
    if isinstance(right, int):
        return [(v, TypeError) for v in NOT_INTEGERS] + [(v, (ValueError, MemoryError)) for v in TOO_LARGE]
    if isinstance(right, float):
        return [(value, TypeError) for value in NOT_NUMBERS]
    return [(value, (TypeError, ValueError)) for value in NOT_ARRAYS]


def check(call, arguments):
    """Exchanges one argument after the other. Each wrong value is an error that names the argument."""
    call(**arguments)
    for name, right in arguments.items():
        for value, errors in wrong_values(right):
            try:
                call(**{**arguments, name: value})
            except errors as error:
                assert name.rstrip("s") in str(error), f"{name} = {value!r}: {type(error).__name__}: {error}"
            except Exception as error:
                pytest.fail(f"{name} = {value!r}: {type(error).__name__}: {error}")
            else:
                pytest.fail(f"{name} = {value!r} is taken")
