"""The binding itself: loading, structs, statuses, ownership, forks."""

import copy
import ctypes
import importlib
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import flashmask
from flashmask import Mask, _functions, _structs, pack, pack_questions
from flashmask import _lib as lib

HEADERS = Path(__file__).parents[2] / "include" / "flashmask"


def run(code, **environment):
    """A fresh interpreter that finds the package as this one does."""
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def header_text():
    return "".join((HEADERS / name).read_text() for name in ("flashmask.h", "masks.h"))


def test_functions_are_bound_that_the_package_calls():
    """All of those, no others, and by the names of the headers."""
    named = set(re.findall(r"^FM_API [\w *]*?\b(fm_\w+)\(", header_text(), re.M))
    bound = {*_functions.CALLS, *_functions.GETTERS}
    package = Path(_functions.__file__).parent
    sources = [path.read_text() for path in package.rglob("*.py") if path.name != "_functions.py"]
    called = set(re.findall(r"\b(fm_\w+)\b", "".join(sources))) & named
    assert len(bound) > 60 and bound == called


def test_functions_take_as_many_arguments_as_the_headers_say():
    for name, arguments in {**_functions.CALLS, **{k: v[1] for k, v in _functions.GETTERS.items()}}.items():
        found = re.search(rf"\b{name}\(([^;]*)\);", header_text()).group(1)
        count = 0 if found == "void" else found.count(",") + 1
        assert len(arguments) == count, name


@pytest.mark.skipif(not any(os.access(Path(p) / "cc", os.X_OK) for p in os.get_exec_path()), reason="no C compiler")
def test_structs_lie_in_memory_as_in_c(tmp_path):
    """A C program prints every constant, and offset and size of every field."""
    names = {
        "fm_tensor": lib.Tensor,
        "fm_mask_shape": lib.MaskShape,
        "fm_mask_options": lib.MaskOptions,
        "fm_plan_options": lib.PlanOptions,
        "fm_plan_stats": lib.PlanStats,
        "fm_mask_vectors": lib.MaskVectors,
        "fm_attention_forward_args": lib.ForwardArgs,
        "fm_attention_backward_args": lib.BackwardArgs,
        "fm_question": lib.Question,
        "fm_piece": lib.Piece,
        "fm_packed_arrays": lib.PackedArrays,
        "fm_tile_run": lib.TileRun,
        "fm_work": lib.Work,
    }
    constants = {name: value for name, value in vars(_structs).items() if name.isupper() and isinstance(value, int)}
    lines = [f'printf("{name} %d\\n", (int)FM_{name});' for name in constants]
    expected = [f"{name} {value}" for name, value in constants.items()]
    assert len(constants) > 20
    for c_name, struct in names.items():
        lines.append(f'printf("{c_name} %zu\\n", sizeof({c_name}));')
        expected.append(f"{c_name} {ctypes.sizeof(struct)}")
        for field, _ in struct._fields_:
            lines.append(f'printf("{c_name}.{field} %zu %zu\\n", offsetof({c_name}, {field}), sizeof((({c_name} *)0)->{field}));')
            expected.append(f"{c_name}.{field} {getattr(struct, field).offset} {getattr(struct, field).size}")
    source = tmp_path / "structs.c"
    source.write_text(
        "#include <flashmask/masks.h>\n#include <stdio.h>\nint main(void) {\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    program = tmp_path / "structs"
    subprocess.run(["cc", "-I", str(HEADERS.parent), str(source), "-o", str(program)], check=True)
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout.split("\n")[:-1] == expected


def test_the_version_is_that_of_the_headers():
    assert re.search(r"#define FM_VERSION (\d+)", header_text()).group(1) == str(lib.VERSION)


def test_statuses_become_exceptions():
    kinds = {"ARGUMENT": ValueError, "SHAPE": ValueError, "DTYPE": TypeError, "LIMIT": MemoryError, "OUT_OF_MEMORY": MemoryError}
    kinds |= dict.fromkeys(("UNSUPPORTED", "CANNOT_EXPRESS"), NotImplementedError)
    kinds |= dict.fromkeys(("DEVICE", "WORKSPACE", "CUDA", "IO", "INTERNAL"), RuntimeError)
    found = re.findall(r"\bFM_ERROR_(\w+) = (\d+)", header_text())
    assert {name for name, _ in found} == set(kinds)
    for name, status in found:
        assert type(lib.error("fm_call", int(status))) is kinds[name]
        assert lib.dll.fm_status_name(int(status)).decode() == f"FM_ERROR_{name}"


def test_messages_are_the_librarys():
    with pytest.raises(ValueError, match=r"fm_mask_causal: Sq: is -1, needs"):
        Mask.causal(-1)


def test_version():
    major, minor, patch = (int(part) for part in flashmask.__version__.split("."))
    assert major * 10000 + minor * 100 + patch == lib.dll.fm_version()


def test_a_mask_that_was_never_built_is_refused():
    with pytest.raises(TypeError, match="no constructor"):
        Mask()
    empty = Mask.__new__(Mask)
    for use in (lambda: empty.shape, lambda: empty & Mask.causal(2), lambda: Mask.causal(2) | empty, lambda: empty.plan()):
        with pytest.raises(ValueError, match="never built"):
            use()
    assert "never built" in repr(empty)


def test_handles_are_freed_once():
    freed = []

    class Owned(lib.Owner):
        _free = staticmethod(freed.append)

    owned = Owned(7)
    owned.__del__()
    del owned
    assert freed == [7]
    Owned.__new__(Owned)  # has nothing to free
    assert freed == [7]


@pytest.mark.parametrize("make", [lambda: Mask.causal(8).plan(), lambda: pack([3, 4], 8), lambda: pack_questions([[2, 3]], 8)])
def test_copies_share_their_handle(make):
    """A second owner of a handle would free it again."""
    made = make()
    assert copy.copy(made) is made and copy.deepcopy([made])[0] is made


def test_plans_are_not_pickled():
    """The address of a plan means nothing in another process."""
    with pytest.raises(TypeError, match="a Plan cannot be pickled"):
        pickle.dumps(Mask.causal(8).plan())


def test_memory_does_not_grow():
    before = int(Path("/proc/self/statm").read_text().split()[1])
    for _ in range(300):
        mask = Mask.sliding_window(100_000, left=5, right=0)  # 0.8 MB, 240 MB if kept
        mask.plan()
    after = int(Path("/proc/self/statm").read_text().split()[1])
    assert (after - before) * os.sysconf("SC_PAGE_SIZE") < 60e6


@pytest.mark.skipif("FLASHMASK_LIBRARY" in os.environ, reason="the library is another than the installed one")
def test_the_library_lies_in_the_package():
    found = Path(lib.dll._name)
    assert found.name in ("libflashmask.so", "libflashmask.dylib") and str(found.parent) in flashmask.__path__


def test_import_without_torch():
    done = run("import sys; sys.modules['torch'] = None\nimport flashmask\nprint(flashmask.Mask.causal(3).visible_pairs)")
    assert done.stdout == "6\n", done.stderr


def test_looking_around_without_torch():
    done = run(
        "import sys; sys.modules['torch'] = None\nimport inspect, flashmask\nfrom flashmask import *\n"
        "print(len(inspect.getmembers(flashmask)) > 5, Mask.causal(3).visible_pairs, 'DeviceMask' in dir(flashmask))"
    )
    assert done.stdout == "True 6 False\n", done.stderr


LAZY = """
import sys; sys.modules['torch'] = None
import flashmask
for name in sorted(flashmask._LAZY):
    assert name not in flashmask.__all__ and name not in dir(flashmask)
    for get in (lambda: getattr(flashmask, name), lambda: exec(f"from flashmask import {name}")):
        try:
            get()
            print("has", name)
        except ImportError as error:
            assert str(error) == f"flashmask.{name} needs torch, which is not installed", error
try:
    flashmask.attention([1.0], [1.0], [1.0])
except TypeError as error:
    print(error)
"""


def test_names_that_need_torch_say_so():
    done = run(LAZY)
    assert done.stdout == "query is a list, needs a NumPy array, or a tensor of torch, which is not here\n", done.stderr


def test_names_that_need_torch_are_there():
    """All that a training step calls, from the top of the package, and what `import *` and dir() offer."""
    pytest.importorskip("torch")
    wanted = "DeviceMask flashmask_attention SFTCollator batch_mask stack_rows to_device token_log_probs answer_log_probs answer_rewards"
    assert set(wanted.split()) <= set(flashmask._LAZY) <= set(flashmask.__all__) & set(dir(flashmask))
    for name, module in flashmask._LAZY.items():
        found = getattr(flashmask, name)
        assert found.__name__ == name and getattr(importlib.import_module(f"flashmask.{module}"), name) is found


def test_import_leaves_torch_out():
    done = run("import sys, flashmask; print('torch' in sys.modules)")
    assert done.stdout == "False\n", done.stderr


def test_a_library_that_is_not_there():
    done = run("import flashmask", FLASHMASK_LIBRARY="/nowhere/libflashmask.so")
    assert "FLASHMASK_LIBRARY is /nowhere/libflashmask.so, which is not a file" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the name of the C library is Linux's")
def test_a_library_that_is_another():
    lines = Path("/proc/self/maps").read_text().splitlines()
    other = next(line.split()[-1] for line in lines if "libc.so" in line or "libc-" in line)
    done = run("import flashmask", FLASHMASK_LIBRARY=other)
    assert "is not the libflashmask that this package was written for" in done.stderr


FORK = """
import os, numpy as np
from flashmask import Mask
from flashmask.numpy_attention import NumpyAttention
q, k, v = np.random.default_rng(0).standard_normal((3, 2, 300, 4, 16), dtype=np.float32)
mask = Mask.documents([100, 200], causal=True)
def work():
    a = NumpyAttention(q, k, v, mask)
    return np.concatenate([a.output.ravel(), *(g.ravel() for g in a.backward(a.output)[:3])])
here = work()
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(work(), here) and Mask.causal(5).visible_pairs == 15 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_masks_and_attention_in_a_forked_process():
    """A child has none of the threads that its parent's attention left; masks and plans made before the fork stay good."""
    done = run(FORK, OMP_NUM_THREADS="4")
    assert done.stdout == "0\n", done.stderr


def test_unknown_names():
    with pytest.raises(AttributeError, match="no attribute 'atention'"):
        flashmask.atention  # noqa: B018
    assert "Mask" in dir(flashmask)


@pytest.mark.parametrize("torch_is_there", [False, True])
def test_dir_has_the_public_names_alone(torch_is_there):
    if torch_is_there:
        pytest.importorskip("torch")
    hide = "" if torch_is_there else "import sys; sys.modules['torch'] = None\n"
    done = run(
        f"{hide}import flashmask\nprint('SFTCollator' in dir(flashmask))\n"
        "print({name for name in dir(flashmask) if not name.startswith('__')} == set(flashmask.__all__))\n"
        "print('__version__' in dir(flashmask))"
    )
    assert done.stdout == f"{torch_is_there}\nTrue\nTrue\n", done.stderr


def test_calls_by_threads_keep_their_messages():
    from concurrent.futures import ThreadPoolExecutor

    def fail(k):
        try:
            Mask.causal(-1 - k)
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        for k, message in enumerate(pool.map(fail, range(200))):
            assert f"is {-1 - k}," in message


def test_host_time_of_a_call():
    """What ctypes costs: a call on one token, over many, the median. The limit allows for a machine that is busy."""
    import time

    from flashmask.numpy_attention import NumpyAttention

    one = np.ones((1, 1, 1, 8), np.float32)
    made = NumpyAttention(one, one, one, Mask.full(1))
    made._args.num_threads = 1
    times = []
    for _ in range(301):
        start = time.perf_counter()
        lib.call("fm_attention_forward", made._args)
        times.append(time.perf_counter() - start)
    assert sorted(times)[150] < 15e-6
