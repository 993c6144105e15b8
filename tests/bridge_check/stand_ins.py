"""What Megatron-Bridge misses on a machine without GPU and without the Hugging Face hub.

Stand in: packages of kernels and of logging, which reading a configuration never calls, and the hub, whose
files are those of `tests/public_configs.json`. Recipes, providers and checks are Megatron-Bridge's own code.
"""

from __future__ import annotations

import abc
import importlib.machinery
import json
import sys
import types
from pathlib import Path
from typing import Any

from tests.megatron_check import standins

PUBLIC = Path(__file__).parents[1] / "public_configs.json"

_MISSING = (
    "transformer_engine", "nvidia_resiliency_ext", "nvdlfw_inspect", "wandb", "mlflow", "comet_ml",
    "modelopt", "megatron.energon", "timm", "diffusers", "fla", "mamba_ssm", "causal_conv1d", "nemo_run",
    "apex", "deep_ep", "flash_mla", "qwen_vl_utils", "open_clip", "torch.utils.tensorboard",
    "tensorstore", "multistorageclient",
)  # fmt: skip


def install(compute_capability: int = 9) -> None:
    """Make `import megatron.bridge` possible, and recipes find their models."""
    standins.install(compute_capability)
    sys.meta_path.insert(0, _Finder())
    _answer_the_hub()


class _AnyClass(abc.ABCMeta):
    """A class that has every attribute, may be a base, and returns what it decorates."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _any_class(name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and callable(args[0]) and not kwargs:
            return args[0]
        return super().__call__(*args, **kwargs)


def _any_class(name: str) -> _AnyClass:
    return _AnyClass(name, (), {"__init__": lambda self, *_args, **_kwargs: None, "__call__": _itself})


def _itself(self: Any, *args: Any, **_kwargs: Any) -> Any:
    return args[0] if len(args) == 1 and callable(args[0]) else self


class _Module(types.ModuleType):
    """A module that has every name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = importlib.machinery.ModuleSpec(name, None)
        self.__path__: list[str] = []
        self.__version__ = "2.9.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _any_class(name)


class _Finder:
    """Finds the modules that are missing, and all below them."""

    def find_spec(self, name: str, *_args: Any) -> importlib.machinery.ModuleSpec | None:
        if any(name == missing or name.startswith(missing + ".") for missing in _MISSING):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _answer_the_hub() -> None:
    """Let recipes read the published configurations without the network, and nothing else."""
    from megatron.bridge import AutoBridge
    from transformers import AutoConfig

    configs = {entry["hub"]: entry["config"] for entry in json.loads(PUBLIC.read_text()).values()}

    def from_hf_pretrained(path: str, *_args: Any, **_kwargs: Any) -> Any:
        fields = dict(configs[path])
        family = fields.pop("model_type")
        # Its own configuration is code beside the weights, of a class of DeepSeek-V3 with other defaults.
        return AutoBridge.from_hf_config(
            AutoConfig.for_model({"kimi_k2": "deepseek_v3"}.get(family, family), **fields)
        )

    AutoBridge.from_hf_pretrained = staticmethod(from_hf_pretrained)
