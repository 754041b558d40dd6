"""The library's calls on torch tensors: CUDA with a device plan, CPU with a host plan."""

import ctypes

import torch

from . import structs as c

BITMAP_BYTES = 2048  # of a block of 128 x 128 pairs
DTYPES = {torch.float32: c.F32, torch.float16: c.F16, torch.bfloat16: c.BF16, torch.float64: c.F64}


def device_of(tensor):
    return c.Device(c.CUDA, tensor.device.index) if tensor.is_cuda else c.Device(c.CPU, 0)


def view(tensor):
    """An fm_tensor over a torch tensor of rank 4."""
    return c.Tensor(tensor.data_ptr(), DTYPES[tensor.dtype], device_of(tensor), 4, (ctypes.c_int64 * 4)(*tensor.shape),
                    (ctypes.c_int64 * 4)(*tensor.stride()))


def stream():
    return torch.cuda.current_stream().cuda_stream if torch.cuda.is_available() else None


class DevicePlan:
    """A plan in GPU memory, from vectors in GPU memory: int32 [Bm, Hm, Sk, 2 M]."""

    def __init__(self, library, vectors, rows, backend):
        self.library, self.vectors = library, vectors
        batch, heads, columns, count = vectors.shape
        shape = c.MaskShape(batch, heads, rows, columns)
        self.description = c.MaskVectors(format=c.VECTORS_INTERVALS, shape=shape, vectors=count, data=vectors.data_ptr(),
                                         stride=(ctypes.c_int64 * 4)(*vectors.stride()), device=device_of(vectors))
        options, size = c.PlanOptions(backend=backend), ctypes.c_size_t()
        library.call("fm_plan_device_bytes", shape, count // 2, ctypes.byref(options), ctypes.byref(size))
        self.buffer = torch.empty(size.value, dtype=torch.uint8, device=vectors.device)
        self.handle = ctypes.c_void_p()
        library.call("fm_plan_create_from_vectors", ctypes.byref(self.description), ctypes.byref(options), self.buffer.data_ptr(),
                     size.value, stream(), ctypes.byref(self.handle))

    def update(self):
        self.library.call("fm_plan_update_from_vectors", self.handle, ctypes.byref(self.description), stream())

    def __del__(self):
        if getattr(self, "handle", None):
            self.library.dll.fm_plan_free(self.handle)


class UploadedPlan:
    """A plan in GPU memory of a host mask, with its bitmaps."""

    def __init__(self, library, mask, backend):
        self.library, self.mask = library, mask
        blocks = -(-mask.fallback_bytes // BITMAP_BYTES)
        self.options, size = c.PlanOptions(backend=backend, fallback_blocks=blocks), ctypes.c_size_t()
        intervals = max(1, library.dll.fm_mask_interval_count(mask.handle))
        library.call("fm_plan_device_bytes", mask.shape, intervals, ctypes.byref(self.options), ctypes.byref(size))
        self.buffer, self.handle = torch.empty(size.value, dtype=torch.uint8, device="cuda"), ctypes.c_void_p()
        self.create()

    def create(self):
        """Anew, in the same buffer."""
        self.library.dll.fm_plan_free(self.handle)
        self.handle = ctypes.c_void_p()
        self.library.call("fm_plan_create_device", self.mask.handle, ctypes.byref(self.options), device_of(self.buffer),
                          self.buffer.data_ptr(), self.buffer.numel(), stream(), ctypes.byref(self.handle))

    def __del__(self):
        if getattr(self, "handle", None):
            self.library.dll.fm_plan_free(self.handle)


class Ours:
    """Forward and backward of one mask over fixed tensors [B, S, H, D]; results are attributes."""

    def __init__(self, library, inputs, case, settings):
        q, k, v, do = inputs
        self.library, self.inputs = library, inputs
        if q.is_cuda and case.vectors is None:
            self.plan = UploadedPlan(library, case.mask, settings.backend)
        elif q.is_cuda:
            vectors = torch.from_numpy(case.vectors).to(q.device)
            self.plan = DevicePlan(library, vectors, q.shape[1], settings.backend)
        else:
            self.plan = case.mask.plan()
        self.output = torch.empty_like(q)
        self.lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32, device=q.device)
        self.grads = [torch.empty_like(t) for t in (q, k, v)]
        self.forward_args = c.ForwardArgs(query=view(q), key=view(k), value=view(v), plan=self.plan.handle,
                                          output=view(self.output), lse=self.lse.data_ptr(), backend=settings.backend,
                                          stream=stream())
        self.backward_args = c.BackwardArgs(forward=ctypes.pointer(self.forward_args), grad_output=view(do),
                                            grad_query=view(self.grads[0]), grad_key=view(self.grads[1]),
                                            grad_value=view(self.grads[2]), deterministic=settings.deterministic,
                                            stream=stream())
        self.workspaces = [self.give_workspace("fm_attention_forward_workspace", self.forward_args),
                           self.give_workspace("fm_attention_backward_workspace", self.backward_args)]
        self.about = {f"{name}_workspace_bytes": w.numel() for name, w in zip(("forward", "backward"), self.workspaces)}
        if q.is_cuda:
            self.about["plan_bytes"] = self.plan.buffer.numel()

    def give_workspace(self, name, arguments):
        size = ctypes.c_size_t()
        self.library.call(name, ctypes.byref(arguments), ctypes.byref(size))
        buffer = torch.empty(size.value, dtype=torch.uint8, device=self.output.device)
        arguments.workspace, arguments.workspace_bytes = buffer.data_ptr() or None, size.value
        return buffer

    def poison(self):
        for tensor in [self.output, self.lse] + self.grads:
            tensor.fill_(float("nan"))

    def forward(self):
        self.library.call("fm_attention_forward", ctypes.byref(self.forward_args))

    def backward(self):
        self.library.call("fm_attention_backward", ctypes.byref(self.backward_args))

    def built_forward(self):
        """As a caller whose mask changes with every call."""
        self.plan.update()
        self.forward()

    def built_backward(self):
        self.plan.update()
        self.backward()
