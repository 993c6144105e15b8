"""A plan for Megatron-Bridge: Hydra-style overrides on a recipe, and the start script that applies them.

Where Megatron-Bridge has a recipe of the model, the overrides are put on it; else `lib/recipe.py` is one.
"""

from __future__ import annotations

import planner
from planner.cost.kernels.operators import HALF
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Evaluation
from planner.errors import PlanRefusedError
from planner.launchers.bridge import model as bridge_model
from planner.launchers.bridge.hybrid import provider_of
from planner.launchers.bridge.overrides import overrides
from planner.launchers.forms.readme import LOGS, hosts_step, notes_text, signs_of_life, stage_table, summary
from planner.launchers.forms.start_script import start_files
from planner.launchers.megatron import plan_arguments as args
from planner.launchers.megatron.narrow_weights import narrow_fields
from planner.launchers.model_constants import left_out
from planner.launchers.placement import place_hosts
from planner.launchers.template_text import fill
from planner.rules.versions import NEWEST


def launch_files(problem: Problem, plan: Plan, evaluation: Evaluation | None) -> dict[str, str]:
    """Text of every file of the directory but `plan.yaml`, by its path in it.

    Raises
    ------
    PlanRefusedError
        Where the fields of Megatron-Bridge cannot state the model or the plan.
    """
    refusals = args.refusals(problem, plan)
    if refusals:
        raise PlanRefusedError("megatron-bridge cannot run this plan: " + "; ".join(refusals))
    places = place_hosts(problem, plan)
    recipe = bridge_model.recipe_of(problem.model)
    unstated = () if recipe else left_out(problem.model, NEWEST, by_fields=True)
    names = {"version": planner.__version__, "problem_name": " ".join(problem.name.split())}
    command = fill(
        "bridge_command.sh",
        {"num_layers": problem.model.num_layers, "mtp_num_layers": problem.model.mtp_num_layers},
    )
    files = start_files(
        problem,
        plan,
        places,
        command=command,
        where_the_plan_is="overrides.txt is the plan: change it and it is no longer the one that was "
        "computed.",
    )
    files |= {
        "overrides.txt": "".join(f"{key}={value}\n" for key, value in overrides(problem, plan).items()),
        "lib/train.py": fill("bridge_train.py.txt", _train_values(problem, plan, recipe)),
        "README.md": fill(
            "bridge_README.md",
            {
                **names,
                "summary": summary(problem, plan, places, evaluation),
                "recipe": f"its recipe `{recipe[0]}.{recipe[1]}`"
                if recipe
                else "`lib/recipe.py`, as it has no recipe of this model",
                "hosts_step": hosts_step(problem, places),
                "signs": signs_of_life(problem, plan, evaluation, LOGS),
                "stage_table": stage_table(problem, plan, places, evaluation),
                "notes": notes_text(problem, plan, evaluation, unstated),
            },
        ),
    }
    if recipe is None:
        files["lib/recipe.py"] = _recipe_file(problem, plan)
    return files


def _train_values(problem: Problem, plan: Plan, recipe: tuple[str, str] | None) -> dict[str, str]:
    stack = problem.stack
    widths = {
        "megatron_fsdp_main_grads_dtype": stack.gradient_bytes,
        "megatron_fsdp_grad_comm_dtype": stack.scattered_gradient_bytes,
    }
    formats = {name: "bfloat16" if width == HALF else "float32" for name, width in widths.items()}
    sharded = plan.dp_mode in args.SHARDING_STRATEGY
    module, function = recipe or ("recipe", "pretrain_config")
    shape = bridge_model.shape_fields(problem.model)
    return {
        "recipe_module": module,
        "recipe_function": function,
        "model_id": problem.model.id,
        "attention_backend": "auto" if stack.flash_attention else "unfused",
        "gradient_formats": "\n".join(
            f'    "{name}": "{value}",' for name, value in formats.items() if sharded
        ),
        "narrow_weights": "\n".join(
            f'    "{name}": {value},' for name, value in narrow_fields(problem, plan).items()
        ),
        "shape": "\n".join(f'    "{name}": {value},' for name, value in shape.items()),
    }


def _recipe_file(problem: Problem, plan: Plan) -> str:
    model = problem.model
    fields = bridge_model.provider_fields(model, args.grouped_gemm_runs(problem, plan))
    module, provider = provider_of(model)
    bare_module, bare = bridge_model.BARE_RECIPE
    imports = [
        *_imports(fields),
        f"from megatron.bridge.models.{module} import {provider}",
        f"from {bare_module} import {bare}",
    ]
    return fill(
        "bridge_recipe.py.txt",
        {
            "model_id": model.id,
            "imports": "\n".join(imports),
            "bare": bare,
            "provider": provider,
            "fields": "\n".join(f"        {name}={value}," for name, value in fields.items()),
        },
    )


def _imports(fields: bridge_model.Fields) -> list[str]:
    """Lines that import what the fields of a provider name."""
    lines = []
    layers = fields.get("transformer_layer_spec", "")
    if layers.startswith("partial"):
        lines.append("from functools import partial\n")
    function = fields["activation_func"]
    if function.startswith("torch."):
        lines.append("import torch")
    elif function == "squared_relu":
        lines.append("from megatron.core.activations import squared_relu")
    else:
        lines.append("from megatron.core.fusions.fused_bias_geglu import quick_gelu")
    if layers:
        lines.append(f"from {bridge_model.MODULE_OF[layers]}")
    return lines
