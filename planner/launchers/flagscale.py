"""A plan as a configuration of FlagScale's heterogeneous mode: two YAML files and a typed hostfile.

Every leaf below `train` becomes a command-line argument: `num_layers` is `--num-layers`, true is a
switch, false is left out, a list is several values (FlagScale 16a2dd5, flagscale/runner/utils.py,
`flatten_dict_to_args`). The model therefore comes from the same arguments as for Megatron-LM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

import planner
from planner.cost.kernels.operators import HALF
from planner.data.model_spec import ModelSpec
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Evaluation
from planner.errors import PlanRefusedError
from planner.launchers.crowded_groups import crowded_groups
from planner.launchers.forms.environments import environment_of
from planner.launchers.forms.readme import hosts_step, notes_text, signs_of_life, stage_table, summary
from planner.launchers.megatron import plan_arguments as args
from planner.launchers.megatron.arguments import Arguments
from planner.launchers.megatron.dispatching import dispatch_arguments
from planner.launchers.megatron.model import mock_vocabulary, model_arguments, moe_arguments
from planner.launchers.megatron.rotary_positions import has_rotary_positions
from planner.launchers.model_constants import (
    balancing_loss,
    constant_arguments,
    left_out,
    norm_epsilon,
    rotary_base,
)
from planner.launchers.placement import HostPlace, hosts_text, place_hosts
from planner.launchers.template_text import fill, template
from planner.rules.flagscale import hetero_config
from planner.rules.flagscale_config import HeteroConfig

Tree = dict[str, Any]

CORE_VERSION = "0.17"
"""Version of core that FlagScale's own Megatron-LM follows (Megatron-LM-FL 175ae90 is core 0.17.1)."""

LOGS = "What each rank says is in `outputs/logs/` (or in `OUTPUT_PATH`)."
"""Where FlagScale's runner writes, under its `experiment.exp_dir`."""


def launch_files(problem: Problem, plan: Plan, evaluation: Evaluation | None) -> dict[str, str]:
    """Text of every file of the directory but `plan.yaml`, by its path in it.

    Raises
    ------
    PlanRefusedError
        Where FlagScale's arguments cannot state the model or the plan.
    """
    refusals = args.refusals(problem, plan)
    if refusals:
        raise PlanRefusedError("flagscale cannot run this plan: " + "; ".join(refusals))
    places = place_hosts(problem, plan)
    config = hetero_config(problem, plan)
    names = {"version": planner.__version__, "problem_name": " ".join(problem.name.split())}
    return {
        "launch.sh": fill("flagscale_launch.sh", names),
        "config.yaml": _yaml(experiment_tree(problem, plan, places, config)),
        "train/hetero.yaml": _yaml(train_tree(problem, plan, config)),
        "hostfile": hostfile_text(places, config),
        "hosts.txt": hosts_text(places),
        "lib/messages.sh": template("messages.sh"),
        "lib/check_config.py": fill(
            "check_config.py.txt",
            {"world_size": plan.world_size, "num_microbatches": plan.num_microbatches},
        ),
        "README.md": fill(
            "flagscale_README.md",
            {
                **names,
                "summary": summary(problem, plan, places, evaluation),
                "hosts_step": hosts_step(problem, places, "hostfile"),
                "signs": signs_of_life(problem, plan, evaluation, LOGS),
                "stage_table": stage_table(problem, plan, places, evaluation),
                "notes": notes_text(
                    problem,
                    plan,
                    evaluation,
                    (*left_out(problem.model, CORE_VERSION), *crowded_groups(plan)),
                ),
            },
        ),
    }


def hostfile_text(places: tuple[HostPlace, ...], config: HeteroConfig) -> str:
    """FlagScale's hostfile: host, processes, and the device type of the first stage on it."""
    return "".join(
        f"{place.name} slots={place.num_processes} type={config.device_types[place.stages[0]]}\n"
        for place in places
    )


def experiment_tree(
    problem: Problem, plan: Plan, places: tuple[HostPlace, ...], config: HeteroConfig
) -> Tree:
    """The file that starts the run: what to run, where, in which environment."""
    by_type = {
        config.device_types[s]: environment_of(problem.chips[stage.chip].backend)
        for s, stage in enumerate(plan.stages)
    }
    return {
        "defaults": [{"train": "hetero"}, "_self_"],
        "experiment": {
            "exp_name": "hetplan",
            "exp_dir": "outputs",
            "task": {
                "type": "train",
                "backend": "megatron",
                "entrypoint": "flagscale/train/train_gpt.py",
            },
            "runner": {
                "backend": "torchrun",
                # The heterogeneous mode trusts the order of the nodes, which c10d would not keep.
                "rdzv_backend": "static",
                "hostfile": "hostfile",
                "ssh_port": 22,
                "master_addr": places[0].name,
                "master_port": 29500,
            },
            "envs": {
                "CUDA_DEVICE_MAX_CONNECTIONS": 1,
                "device_type_specific": {name: variables for name, variables in by_type.items() if variables},
            },
            "cmds": {"before_start": "ulimit -n 1048576", "after_stop": ""},
        },
        "action": "run",
        "hydra": {"run": {"dir": "${experiment.exp_dir}/hydra"}},
    }


def train_tree(problem: Problem, plan: Plan, config: HeteroConfig) -> Tree:
    """The file that holds the plan, the model and the batch."""
    model, workload = problem.model, problem.workload
    moe = moe_arguments(model, args.grouped_gemm_runs(problem, plan)) + dispatch_arguments(problem, plan)
    system: Tree = {
        "tensor_model_parallel_size": plan.stages[0].tensor_parallel,
        "pipeline_model_parallel_size": plan.pipeline_parallel,
        "context_parallel_size": 1,
    }
    if model.moe is not None:
        system["expert_model_parallel_size"] = plan.expert_parallel
        system["expert_tensor_parallel_size"] = plan.expert_tensor_parallel
    if plan.sequence_parallel:
        system["sequence_parallel"] = True
    system |= _leaves(args.precision_arguments(problem))
    system |= _leaves(args.optimizer_arguments(problem, plan))
    if problem.stack.gradient_bytes != HALF:
        system["accumulate_allreduce_grads_in_fp32"] = True
    system["hetero"] = _hetero_tree(config)
    system["recompute"] = _recompute_tree(config, args.recompute_modules(problem, plan))
    system["logging"] = {"log_interval": 1, "log_throughput": True}
    # Distributed checkpoints fail where tensor parallelism differs by mesh (flagos-ai/FlagScale#319).
    system["checkpoint"] = {"ckpt_format": "torch", "save_interval": 1000}
    return {
        "system": system,
        "model": {
            **_leaves(model_arguments(model, workload.seq_length, CORE_VERSION)),
            **_leaves(moe),
            **_leaves(args.batch_arguments(problem, plan)),
            "train_iters": workload.train_iters,
            "seed": 1234,
            "init_method_std": 0.02,
            "norm_epsilon": norm_epsilon(model),
            **({"rotary_base": rotary_base(model)} if has_rotary_positions(model) else {}),
            **_leaves(constant_arguments(model, CORE_VERSION)),
            **_balancing(model),
            "clip_grad": 1.0,
            "eval_iters": 0,
            "optimizer": {
                "weight_decay": 0.1,
                "adam_beta1": 0.9,
                "adam_beta2": 0.95,
                "lr": 3e-4,
                "min_lr": 3e-5,
                "lr_warmup_fraction": 0.01,
                "lr_decay_style": "cosine",
            },
        },
        "data": {
            "mock_data": True,
            "no_create_attention_mask_in_dataloader": True,
            "tokenizer": {
                "tokenizer_type": "NullTokenizer",
                "vocab_size": mock_vocabulary(model, CORE_VERSION),
            },
        },
    }


def _balancing(model: ModelSpec) -> Tree:
    """Loss that keeps experts evenly loaded; without it FlagScale has none."""
    if model.moe is None:
        return {}
    kind, weight = balancing_loss(model)
    return {"moe_router_load_balancing_type": kind, "moe_aux_loss_coeff": float(weight)}


def _hetero_tree(config: HeteroConfig) -> Tree:
    tree: Tree = {
        "enable_hetero": True,
        "hetero_process_meshes": list(config.process_meshes),
        "hetero_pipeline_layer_split": list(config.layer_split),
        "hetero_device_types": list(config.device_types),
        # The runner replaces it on each host by the type in the hostfile.
        "hetero_current_device_type": config.device_types[0],
        "standalone_embedding_stage": False,
    }
    if config.expert_tensor_parallel is not None:
        tree["expert_tensor_parallel_size_per_process_mesh"] = list(config.expert_tensor_parallel)
    if config.tied_or_predicting:
        tree["use_partial_reduce_for_shared_embedding"] = config.partial_reduce
    return tree


def _recompute_tree(config: HeteroConfig, modules: Sequence[str]) -> Tree:
    if config.recompute_granularity == "selective":
        return {"recompute_granularity": "selective", "recompute_modules": list(modules)}
    if config.recompute_granularity is None:
        return {}
    tree: Tree = {
        "recompute_granularity": config.recompute_granularity,
        "recompute_method": config.recompute_method,
        "recompute_num_layers": 1,
    }
    for name, rows in config.recompute_lists:
        # Words without spaces: FlagScale writes them on a shell's command line as they stand.
        words = [f"[{','.join(map(str, row))}]" for row in rows]
        tree[f"recompute_{name}_per_stage_micro_batch"] = words
    return tree


def _leaves(arguments: Arguments) -> Tree:
    """Arguments of a command line as leaves of the tree."""
    leaves: Tree = {}
    for argument in arguments:
        key = argument.flag.removeprefix("--").replace("-", "_")
        values = [_value(word) for word in argument.values]
        leaves[key] = True if not values else values[0] if len(values) == 1 else values
    # Parentheses mean something to the shell through which FlagScale starts the ranks.
    if "moe_layer_freq" in leaves:
        leaves["moe_layer_freq"] = leaves["moe_layer_freq"].strip("()")
    return leaves


def _value(word: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def _yaml(tree: Tree) -> str:
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=110)


class _Dumper(yaml.SafeDumper):
    """Short lists on one line, no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_list(dumper: _Dumper, items: list[Any]) -> yaml.Node:
    flat = all(isinstance(item, int | float | str) for item in items) and "_self_" not in items
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=flat)


_Dumper.add_representer(list, _represent_list)
