"""libflashmask by ctypes: masks, packings and host plans as Python objects that own what they point to."""

import ctypes
import os

import numpy as np

from . import structs as c


class FlashmaskError(RuntimeError):
    pass


def int64s(values):
    return (ctypes.c_int64 * len(values))(*values)


class Library:
    """masks: the library of bench/benchmark_masks.c, which the build puts beside libflashmask."""

    def __init__(self, path, masks=None):
        path = os.path.abspath(path)
        self.dll = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        for name, arguments in c.CALLS.items():
            function = getattr(self.dll, name, None)
            if function is not None:  # a build without a backend may lack its functions until they are called
                function.restype, function.argtypes = ctypes.c_int, arguments
        for name, (result, arguments) in c.GETTERS.items():
            function = getattr(self.dll, name)
            function.restype, function.argtypes = result, arguments
        beside = os.path.join(os.path.dirname(path), "libflashmask_benchmark_masks.so")
        self.builders = ctypes.CDLL(os.path.abspath(masks) if masks else beside)
        self.builders.benchmark_mask_name.restype = ctypes.c_char_p
        self.builders.benchmark_mask_has_samples.restype = ctypes.c_bool
        self.builders.benchmark_mask_build.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int, ctypes.c_int64, c.MASK_OUT]

    def call(self, name, *arguments):
        status = getattr(self.dll, name)(*arguments)
        if status != 0:
            raise FlashmaskError(f"{name}: {self.dll.fm_status_name(status).decode()}: {self.dll.fm_error_message().decode()}")

    def make(self, owner, name, *arguments):
        """An object whose constructor writes its handle through the last argument."""
        handle = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(handle))
        return owner(self, handle)

    def benchmark_names(self):
        return [self.builders.benchmark_mask_name(k).decode() for k in range(c.BENCHMARK_MASKS)]

    def benchmark_mask(self, name, tokens, batch, heads):
        """Where the mask depends on the document list, batch item b takes sample b modulo 5, else all items share one mask;
        random eviction draws a set of keys for each head and repeats it over the batch."""
        kind = self.benchmark_names().index(name)
        varies = self.builders.benchmark_mask_has_samples(kind) and name != "random_eviction"
        items = []
        for sample in range(batch if varies else 1):
            handle = ctypes.c_void_p()
            status = self.builders.benchmark_mask_build(kind, tokens, sample % 5, heads, ctypes.byref(handle))
            if status != 0:
                raise FlashmaskError(f"{name} of {tokens} tokens: {self.dll.fm_status_name(status).decode()}")
            items.append(Mask(self, handle))
        return self.stack(items)

    def documents(self, lengths, causal):
        return self.make(Mask, "fm_mask_documents", len(lengths), int64s(lengths), causal, 0)

    def dense(self, visible):
        """A mask of one plane from an array [rows, columns] of bools."""
        bytes_ = np.ascontiguousarray(visible, np.uint8)
        return self.make(Mask, "fm_mask_from_dense", c.MaskShape(1, 1, *bytes_.shape), bytes_.ctypes.data, None)

    def stack(self, masks):
        if len(masks) == 1:
            return masks[0]
        return self.make(Mask, "fm_mask_stack_batch", (ctypes.c_void_p * len(masks))(*[m.handle for m in masks]), len(masks))

    def pack_documents(self, lengths, capacity):
        """In arrival order; what is longer than a sequence is cut."""
        return self.make(Packing, "fm_pack_lengths", len(lengths), int64s(lengths), capacity, c.PACK_ARRIVAL, c.PACK_SPLIT)

    def pack_questions(self, records, capacity):
        """records: (question, answer, answer, ..) lengths."""
        answers = [int64s(record[1:]) for record in records]
        questions = (c.Question * len(records))(*[c.Question(r[0], len(a), a) for r, a in zip(records, answers)])
        return self.make(Packing, "fm_pack_questions", len(records), questions, capacity, c.PACK_ARRIVAL)


class Owned:
    free = ""

    def __init__(self, library, handle):
        self.library, self.handle = library, handle

    def __del__(self):
        getattr(self.library.dll, self.free)(self.handle)


class Plan(Owned):
    """A host plan, which a new mask does not change."""

    free = "fm_plan_free"

    def update(self):
        pass

    def stats(self):
        stats = c.PlanStats()
        self.library.call("fm_plan_get_stats", self.handle, ctypes.byref(stats))
        return stats


class Packing(Owned):
    free = "fm_packing_free"

    def sequences(self):
        return self.library.dll.fm_packing_sequence_count(self.handle)

    def documents(self, sequence):
        """Record number of each piece, in layout order."""
        pieces, count = ctypes.POINTER(c.Piece)(), ctypes.c_int64()
        self.library.call("fm_packing_sequence", self.handle, sequence, ctypes.byref(pieces), ctypes.byref(count))
        return [pieces[k].document for k in range(count.value)]

    def mask(self, count):
        return self.library.make(Mask, "fm_packing_mask", self.handle, 0, count, True)


class Mask(Owned):
    free = "fm_mask_free"

    @property
    def shape(self):
        return self.library.dll.fm_mask_get_shape(self.handle)

    @property
    def fallback_bytes(self):
        return self.library.dll.fm_mask_fallback_bytes(self.handle)

    def vectors(self):
        """Visible half-open row intervals, int32 [Bm, Hm, Sk, 2 M]."""
        s, m = self.shape, max(1, self.library.dll.fm_mask_interval_count(self.handle))
        pairs = np.empty((s.batch, s.heads, m, s.columns, 2), np.int32)
        self.library.call("fm_mask_to_intervals", self.handle, m, pairs.ctypes.data, pairs.size // 2)
        return np.ascontiguousarray(pairs.transpose(0, 1, 3, 2, 4)).reshape(s.batch, s.heads, s.columns, 2 * m)

    def plan(self, block=0):
        options = c.PlanOptions(block_m=block, block_n=block)
        return self.library.make(Plan, "fm_plan_create", self.handle, ctypes.byref(options))

    def item(self, batch):
        return self.library.make(Mask, "fm_mask_slice_batch", self.handle, batch, batch + 1)

    def document_ends(self, causal):
        """Cumulative lengths of the packed documents of a mask of one batch item."""
        columns, documents = self.shape.columns, ctypes.c_int64()
        ends = np.empty((2, columns + 1), np.int32)
        self.library.call("fm_mask_to_cu_seqlens", self.handle, causal, ends[0].ctypes.data, ends[1].ctypes.data, columns + 1,
                          ctypes.byref(documents))
        return ends[0, : documents.value + 1].copy()
