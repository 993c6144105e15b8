"""The configurations that a launch directory builds, as one flat table of names and values.

Both sides hold the same dataclasses of megatron-core: the transformer, the optimizer, data parallelism and
the schedule of the learning rate. Names are `part.field`.
"""

from __future__ import annotations

import dataclasses
import os
import runpy
import sys
from pathlib import Path
from typing import Any

from tests.megatron_check import validate
from tests.megatron_check.check_megatron_args import TRANSFORMER_ENGINE
from tests.megatron_check.nodes import Launch, start_all
from tests.megatron_check.standins import pretend_transformer_engine

Built = dict[str, Any]

_OF_GPT = (
    "share_embeddings_and_output_weights", "position_embedding_type", "rotary_percent", "rotary_base",
    "seq_len_interpolation_factor", "rope_scaling", "rope_scaling_factor", "vocab_size", "seq_length",
)  # fmt: skip
"""What a GPT takes beside its transformer configuration; a hybrid has no stretched positions."""
_OF_THE_SCHEDULE = (
    "lr_decay_style", "lr_decay_steps", "lr_warmup_steps", "lr_warmup_init", "start_weight_decay",
    "end_weight_decay", "weight_decay_incr_style", "wd_incr_steps",
)  # fmt: skip


def by_megatron_lm(directory: Path) -> tuple[Built, Launch]:
    """What the first rank of a Megatron-LM directory builds, and how all nodes start."""
    nodes = len((directory / "hosts.txt").read_text().splitlines())
    _forget_environment()
    launch = start_all(str(directory / "launch.sh"), nodes, {})
    _set_connections(launch.nodes[0].environment)
    pretend_transformer_engine(TRANSFORMER_ENGINE)
    with validate.refusals_of_megatron():
        args = validate.read_arguments(launch.arguments[0], launch.world_size)
        config = validate.transformer_config(args)
    from megatron.training import training

    optimizer, _ = training.get_megatron_optimizer_config(args)
    steps = args.train_iters * args.global_batch_size
    schedule = {
        "lr_decay_steps": (args.lr_decay_iters or args.train_iters) * args.global_batch_size,
        "wd_incr_steps": steps,
        "lr_warmup_steps": args.lr_warmup_fraction * steps,
    }
    gpt = {
        "share_embeddings_and_output_weights": not args.untie_embeddings_and_output_weights,
        "seq_len_interpolation_factor": args.rotary_seq_len_interpolation_factor,
        "rope_scaling": args.use_rope_scaling,
        "vocab_size": validate._padded_vocab_size(args),
    }
    return {
        **_fields("model", config),
        **{f"model.{name}": gpt.get(name, getattr(args, name, None)) for name in _OF_GPT},
        "model.layers": _layers(config.pipeline_model_parallel_layout, args.hybrid_layer_pattern),
        **_fields("ddp", training.get_megatron_ddp_config(args)),
        **_fields("optimizer", optimizer),
        **{f"scheduler.{name}": schedule.get(name, getattr(args, name, None)) for name in _OF_THE_SCHEDULE},
        **{f"train.{n}": getattr(args, n) for n in ("micro_batch_size", "global_batch_size", "train_iters")},
        "data_parallel_size": args.data_parallel_size,
        "use_tp_pp_dp_mapping": args.use_tp_pp_dp_mapping,
        "ckpt_format": args.ckpt_format,
        "create_attention_mask": args.create_attention_mask_in_dataloader,
    }, launch


def by_megatron_bridge(directory: Path, world_size: int) -> Built:
    """What the first rank of a Megatron-Bridge directory builds: its own script, up to the training loop."""
    import megatron.bridge.training.pretrain as loop
    from megatron.bridge.training.config import runtime_config_update

    _forget_environment()
    # Sharded parameters ask for none, and the directory's own environment leaves them so.
    if "unset CUDA_DEVICE_MAX_CONNECTIONS" not in (directory / "lib" / "environment.sh").read_text():
        _set_connections({"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    os.environ.update(WORLD_SIZE=str(world_size), RANK="0", LOCAL_RANK="0")
    caught: list[Any] = []
    loop.pretrain = lambda config, forward_step_func: caught.append(config)
    path, words = list(sys.path), sys.argv
    try:
        sys.modules.pop("recipe", None)
        sys.path.insert(0, str(directory / "lib"))
        sys.argv = ["train.py", str(directory / "overrides.txt")]
        with validate.refusals_of_megatron():
            runpy.run_path(str(directory / "lib" / "train.py"), run_name="__main__")
            (config,) = caught
            runtime_config_update(config)
    finally:
        sys.path[:], sys.argv = path, words
    return {
        **_fields("model", config.model),
        **{f"model.{name}": _plain(getattr(config.model, name, False)) for name in _OF_GPT},
        "model.layers": _layers(
            config.model.pipeline_model_parallel_layout, getattr(config.model, "hybrid_layer_pattern", None)
        ),
        **_fields("ddp", config.ddp),
        **_fields("optimizer", config.optimizer),
        **{f"scheduler.{name}": _plain(getattr(config.scheduler, name)) for name in _OF_THE_SCHEDULE},
        **{
            f"train.{n}": getattr(config.train, n)
            for n in ("micro_batch_size", "global_batch_size", "train_iters")
        },
        "data_parallel_size": config.data_parallel_size,
        "use_tp_pp_dp_mapping": config.dist.use_tp_pp_dp_mapping,
        "ckpt_format": config.checkpoint.ckpt_format,
        "create_attention_mask": config.dataset.create_attention_mask,
    }


def _forget_environment() -> None:
    """What the launch before has left."""
    for name in ("CUDA_DEVICE_MAX_CONNECTIONS", *(name for name in os.environ if name.startswith("NVTE_"))):
        os.environ.pop(name, None)


def _set_connections(environment: dict[str, str]) -> None:
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    if name in environment:
        os.environ[name] = environment[name]


def _fields(part: str, config: Any) -> Built:
    return {
        f"{part}.{field.name}": _plain(getattr(config, field.name)) for field in dataclasses.fields(config)
    }


def _layers(layout: Any, pattern: str | None) -> list[list[list[str]]]:
    """Kinds of layers of every virtual stage of every pipeline rank, by the layout that was parsed.

    Of a hybrid the letters of its pattern, which ends the stages.
    """
    if pattern is not None:
        return [[list(stage)] for stage in pattern.split("|")]
    return [[[kind.name for kind in chunk] for chunk in rank] for rank in layout.layout]


def _plain(value: Any) -> Any:
    """A value that compares by what it says: functions and types by name."""
    if isinstance(value, str | int | float | bool | type(None)):
        return value
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return getattr(value, "__name__", None) or getattr(value, "name", None) or str(value)
