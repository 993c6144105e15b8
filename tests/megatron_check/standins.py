"""What Megatron-LM misses on a machine without GPU, answered as on one. Install before importing it.

Only the surface is stood in for: questions about devices, streams and kernels. Parsing, validation,
process groups, layer placement, schedules and models are Megatron's own code.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import sys
import threading
import types
import typing
from typing import Any

DEVICES = 8
MEMORY_BYTES = 80 * 2**30

_this_thread = threading.local()


def install(compute_capability: int) -> None:
    """Make `import megatron` and a training step on the CPU possible.

    Parameters
    ----------
    compute_capability
        Major number that the pretended device reports.
    """
    _add_typing_override()
    _stub_triton()
    _answer_cuda_questions(compute_capability)
    _keep_tensors_on_cpu()
    take_cuda_for_cpu()


def take_cuda_for_cpu() -> None:
    """Let this thread make CPU tensors where it is asked for CUDA tensors; not inherited by others."""
    if hasattr(_this_thread, "takes_cuda_for_cpu"):
        return
    _this_thread.takes_cuda_for_cpu = True
    import torch
    from torch.overrides import TorchFunctionMode

    cpu = torch.device("cpu")

    def on_cpu(place: Any) -> Any:
        is_cuda = (isinstance(place, str) and place.startswith("cuda")) or (
            isinstance(place, torch.device) and place.type == "cuda"
        )
        return cpu if is_cuda else place

    class CudaIsCpu(TorchFunctionMode):
        def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            kwargs.pop("pin_memory", None)
            if "device" in kwargs:
                kwargs["device"] = on_cpu(kwargs["device"])
            if func is torch.Tensor.to:
                args = tuple(on_cpu(argument) for argument in args)
            result = func(*args, **kwargs)
            if func is torch.Tensor.type and isinstance(result, str) and ".cuda." not in result:
                # The optimizer tells parameters apart by the name torch.cuda.BFloat16Tensor.
                return result.replace("torch.", "torch.cuda.", 1)
            return result

    CudaIsCpu().__enter__()


def pretend_transformer_engine(version: str | None) -> None:
    """Answer whether Transformer Engine is there; with None, that it is not.

    Its kernels are not there: whoever calls one gets an error.
    """
    from megatron.core import utils
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.transformer.moe import moe_utils
    from packaging.version import Version

    kernels = {
        rope_utils: ("fused_apply_rotary_pos_emb", "fused_apply_rotary_pos_emb_thd"),
        moe_utils: (
            "fused_permute",
            "fused_permute_with_probs",
            "fused_sort_chunks_by_index",
            "fused_sort_chunks_by_index_with_probs",
            "fused_unpermute",
        ),
    }
    utils._te_version = Version(version) if version else None
    for module, names in kernels.items():
        for name in names:
            setattr(module, name, _missing_kernel if version else None)


def _missing_kernel(*_args: Any, **_kwargs: Any) -> None:
    raise RuntimeError("Transformer Engine is only pretended to be here")


def _add_typing_override() -> None:
    """Python 3.11 lacks the one name of 3.12 that Megatron takes from typing."""
    if not hasattr(typing, "override"):
        import typing_extensions

        typing.override = typing_extensions.override  # type: ignore[attr-defined]


def _decorator(function: Any = None, *_args: Any, **_kwargs: Any) -> Any:
    """A decorator, with or without arguments, that changes nothing."""
    return function if function is not None else _decorator


def _stub_triton() -> None:
    """Megatron imports triton, a gigabyte, at module level but calls it on a GPU only."""
    import torch

    torch.compile = _decorator
    if importlib.util.find_spec("triton") is not None:
        return
    # These look for triton once, when imported; they must find none rather than the stub.
    import torch._dynamo
    import torch._inductor.runtime.hints

    language = _Stub("triton.language")
    sys.modules["triton.language"] = language
    triton = _Stub("triton")
    triton.__version__ = "3.7.0"
    triton.jit = _decorator
    triton.language = language
    sys.modules["triton"] = triton


class _Stub(types.ModuleType):
    """A module that has every name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = importlib.machinery.ModuleSpec(name, None)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


class _Anything:
    """An object that can be called, indexed and asked for any attribute."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and callable(args[0]) and not kwargs:
            return args[0]
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()

    def __getitem__(self, _key: Any) -> Any:
        return _Anything()


class _Event:
    """A CUDA event: everything before it has always happened."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def record(self, *_args: Any) -> None:
        pass

    wait = synchronize = record

    def query(self) -> bool:
        return True

    def elapsed_time(self, _other: Any) -> float:
        return 0.0


class _Stream:
    """A CUDA stream: there is one, and it runs in order."""

    cuda_stream = 0

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def record_event(self, *_args: Any) -> _Event:
        return _Event()

    def wait_stream(self, *_args: Any) -> None:
        pass

    wait_event = synchronize = wait_stream


def _answer_cuda_questions(compute_capability: int) -> None:
    import torch

    properties = types.SimpleNamespace(
        name="pretended device",
        major=compute_capability,
        minor=0,
        total_memory=MEMORY_BYTES,
        multi_processor_count=132,
    )
    stream = _Stream()
    answers: dict[str, Any] = {
        "is_available": True,
        "device_count": DEVICES,
        "current_device": torch.device("cpu"),
        "get_device_properties": properties,
        "get_device_capability": (compute_capability, 0),
        "mem_get_info": (MEMORY_BYTES, MEMORY_BYTES),
        "memory_stats": {},
        "is_current_stream_capturing": False,
        "current_stream": stream,
        "default_stream": stream,
    }
    answers |= dict.fromkeys(
        ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"), 0
    )
    orders = ("set_device", "set_stream", "synchronize", "empty_cache", "manual_seed", "manual_seed_all")
    answers |= dict.fromkeys((*orders, "reset_peak_memory_stats"))
    for name, answer in answers.items():
        setattr(torch.cuda, name, _always(answer))
    torch.cuda.Stream, torch.cuda.Event = _Stream, _Event
    torch.cuda.stream = lambda _stream: contextlib.nullcontext()
    torch.cuda.get_rng_state = lambda *_args, **_kwargs: torch.get_rng_state()
    torch.cuda.set_rng_state = lambda state, *_args, **_kwargs: torch.set_rng_state(state)
    torch.cuda._lazy_call = lambda function, **_kwargs: function()
    torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = _always(None)
    for kind in ("Float", "Half", "BFloat16", "Int", "Long", "Double", "Byte"):
        setattr(torch.cuda, f"{kind}Tensor", getattr(torch, f"{kind}Tensor"))


def _always(answer: Any) -> Any:
    return lambda *_args, **_kwargs: answer


def _keep_tensors_on_cpu() -> None:
    """Moving a tensor or module to the GPU leaves it where it is."""
    import torch

    torch.Tensor.cuda = torch.Tensor.pin_memory = lambda self, *_args, **_kwargs: self
    torch.Tensor.record_stream = lambda self, *_args, **_kwargs: None
    torch.nn.Module.cuda = lambda self, *_args, **_kwargs: self
