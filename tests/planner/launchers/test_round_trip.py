"""Export, read back, same plan: for every target, on plans by hand and on random ones."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from planner.cli import main
from planner.cost.parameters import total_parameters
from planner.data.chip import Precision
from planner.data.load import load_model, load_plan, load_stack, names
from planner.data.model_constants import RotaryScaling
from planner.data.plan import Plan
from planner.data.problem import Problem, TargetName
from planner.errors import InstanceError, PlanRefusedError
from planner.launchers.directory import export_plan
from planner.launchers.model_constants import left_out
from planner.launchers.nearest import is_legal
from planner.launchers.read.constants import other_constants
from planner.launchers.read.flagscale import read_flagscale
from planner.launchers.read.launch import read_launch
from planner.launchers.read.same_model import differences
from planner.rules.versions import NEWEST
from tests.planner.launchers import plans
from tests.planner.launchers.random_plans import random_case
from tests.planner.launchers.test_flagscale import degrees_by_stage
from tests.planner.launchers.test_megatron_bridge import alike


def assert_reads_back(problem: Problem, plan: Plan, target: TargetName, folder: Path) -> None:
    """The exported directory is read as the plan, the workload and a model of that size."""
    plan = plan.model_copy(update={"target": target})
    out = export_plan(problem, plan, target, folder, force=True)
    back = read_launch(out, problem.cluster)
    if problem.model.moe is None:  # without experts their tensor parallelism is Megatron's default
        plan = plan.model_copy(update={"expert_tensor_parallel": plan.tensor_parallel})
    assert back.plan == plan
    assert back.problem.workload == problem.workload
    assert back.problem.stack == problem.stack
    assert total_parameters(back.problem.model) == total_parameters(problem.model)
    assert list(other_constants(back.problem.model, problem.model)) == []
    assert back.unknown_flags == () and back.refusals == ()


def with_degrees_by_stage(seed: int) -> plans.Case:
    """A random plan for FlagScale: each stage has tensor and data parallelism of its own."""
    rng = random.Random(seed)
    for _ in range(1000):
        problem, plan = random_case(rng.randrange(10**9))
        chips = plan.tensor_parallel * plan.data_parallel
        stages = []
        for stage in plan.stages:
            tp = rng.choice([plan.tensor_parallel, *(t for t in (1, 2, 4, 8) if chips % t == 0)])
            kind = "none" if stage.recompute == "selective" else stage.recompute
            count = stage.recompute_layers if kind == "full" else 0
            changes = {"tensor_parallel": tp, "data_parallel": chips // tp, "recompute": kind}
            stages.append(stage.model_copy(update={**changes, "recompute_layers": count}))
        first = stages[0]
        changed = {"tensor_parallel": first.tensor_parallel, "data_parallel": first.data_parallel}
        size = problem.workload.global_batch_size // (first.data_parallel * plan.num_microbatches)
        plan = plan.model_copy(
            update={
                **changed,
                "microbatch_size": max(1, size),
                "stages": tuple(stages),
                "sequence_parallel": max(stage.tensor_parallel for stage in stages) > 1,
                "target": "flagscale",
            }
        )
        if is_legal(problem, plan):
            return problem, plan
    raise AssertionError(f"seed {seed}: no legal plan in 1000 attempts")


def recomputing_alike(plan: Plan) -> Plan:
    """The plan with the recomputation of its first stage on all, of as many layers as all have.

    Of one layer where a virtual stage has none: Megatron recomputes what there is.
    """
    kind = plan.stages[0].recompute
    shortest = min(last - first + 1 for stage in plan.stages for first, last in stage.chunks)
    changes = {"recompute": kind, "recompute_layers": max(1, shortest) if kind == "full" else 0}
    stages = tuple(stage.model_copy(update=changes) for stage in plan.stages)
    return plan.model_copy(update={"stages": stages})


@pytest.mark.parametrize("case", [degrees_by_stage, plans.experts, plans.latent_attention_and_prediction])
def test_a_flagscale_configuration_reads_back_as_its_plan(
    case: Callable[[], plans.Case], tmp_path: Path
) -> None:
    assert_reads_back(*case(), "flagscale", tmp_path / "launch")


@pytest.mark.slow
def test_random_flagscale_configurations_read_back_as_their_plans(tmp_path: Path) -> None:
    first = random.randrange(10**9)
    print(f"seeds {first} to {first + 59}")
    for seed in range(first, first + 60):
        assert_reads_back(*with_degrees_by_stage(seed), "flagscale", tmp_path / "launch")


@pytest.mark.parametrize(
    "name", ["virtual_stages", "biases_and_learned_positions", "latent_attention_and_prediction"]
)
def test_bridge_overrides_read_back_as_their_plan(name: str, tmp_path: Path) -> None:
    # A named recipe, and two of our own writing.
    assert_reads_back(*alike(plans.CASES[name]()), "megatron-bridge", tmp_path / "launch")


@pytest.mark.parametrize("target", ["megatron-lm", "megatron-bridge", "flagscale"])
def test_gates_of_shared_experts_read_back(target: TargetName, tmp_path: Path) -> None:
    """Megatron-Bridge's were lost: an exported Qwen1.5-MoE was predicted without their parameters."""
    problem, plan = alike(plans.experts())
    assert problem.model.moe is not None
    gate = {"shared_ffn_hidden_size": 1024, "shared_expert_gate": True}
    moe = problem.model.moe.model_copy(update=gate)
    model = problem.model.model_copy(update={"id": "gated", "moe": moe})
    assert_reads_back(problem.model_copy(update={"model": model}), plan, target, tmp_path / "launch")


@pytest.mark.parametrize("target", ["megatron-lm", "megatron-bridge"])  # FlagScale's code divides none
def test_divided_positions_read_back(target: TargetName, tmp_path: Path) -> None:
    """Positions that a model divides by a whole number were written undivided, and the page alone said so."""
    problem, plan = alike(plans.uniform())
    linear = RotaryScaling(kind="linear", factor=4.0)
    constants = problem.model.constants.model_copy(update={"rotary_scaling": linear})
    model = problem.model.model_copy(update={"id": "stretched", "constants": constants})
    assert_reads_back(problem.model_copy(update={"model": model}), plan, target, tmp_path / "launch")
    assert read_launch(tmp_path / "launch", problem.cluster).problem.model.constants.rotary_scaling == linear
    assert left_out(model, NEWEST) == ()
    odd = constants.model_copy(update={"rotary_scaling": RotaryScaling(kind="linear", factor=2.5)})
    assert "not stretched" in left_out(model.model_copy(update={"constants": odd}), NEWEST)[0]


@pytest.mark.parametrize("target", ["megatron-lm", "megatron-bridge", "flagscale"])
@pytest.mark.parametrize("every", [4, 5])  # the latter as a list, as 5 does not divide the layers
def test_layers_without_positions_and_turned_neighbours_read_back(
    every: int, target: TargetName, tmp_path: Path
) -> None:
    """Scripts with them were read as Llama's, and models that have them could not be described."""
    problem, plan = alike(plans.uniform())
    turned = {"unrotated_every": every, "rotates_neighbours": every == 4}
    constants = problem.model.constants.model_copy(update=turned)
    model = problem.model.model_copy(update={"id": "turned", "constants": constants})
    assert_reads_back(problem.model_copy(update={"model": model}), plan, target, tmp_path / "launch")
    found = read_launch(tmp_path / "launch", problem.cluster).problem.model.constants
    assert (found.unrotated_every, found.rotates_neighbours) == (every, every == 4)


@pytest.mark.parametrize("target", ["megatron-lm", "megatron-bridge"])
def test_scales_and_loss_of_a_stack_read_back(target: TargetName, tmp_path: Path) -> None:
    """Scales that follow from each tensor's own values; Bridge's fused loss is Transformer Engine's."""
    problem, plan = plans.uniform()
    by_te = {"fused_cross_entropy": True, "loss_bytes_per_logit": 2.0} if "bridge" in target else {}
    stack = problem.stack.model_copy(update={"current_scaling": True, **by_te})
    workload = problem.workload.model_copy(update={"precision": "fp8"})
    problem = problem.model_copy(update={"stack": stack, "workload": workload})
    assert_reads_back(problem, plan, target, tmp_path / "launch")
    # Megatron-Bridge's own settings of current scaling keep the first and the last layer in 16 bits: the
    # run was slower than its plan, whose layers are all narrow.
    entry = tmp_path / "launch" / "lib" / "train.py"
    if entry.is_file():
        text = entry.read_text()
        assert "cfg.mixed_precision.first_last_layers_bf16 = FIRST_LAST_LAYERS_BF16\n" in text
        entry.write_text(text.replace("FIRST_LAST_LAYERS_BF16 = False\n", "\n"))
        said = read_launch(tmp_path / "launch", problem.cluster).warnings
        assert any(line.startswith("--first-last-layers-bf16") for line in said)


@pytest.mark.parametrize("target", ["megatron-lm", "megatron-bridge"])
@pytest.mark.parametrize("formats", [(4.0, 4.0), (4.0, 2.0), (2.0, 2.0)])
def test_formats_of_sharded_gradients_read_back(
    formats: tuple[float, float], target: TargetName, tmp_path: Path
) -> None:
    problem, plan = plans.sharded_parameters()
    widths = {"gradient_bytes": formats[0], "scattered_gradient_bytes": formats[1]}
    stack = problem.stack.model_copy(update=widths)
    assert_reads_back(problem.model_copy(update={"stack": stack}), plan, target, tmp_path / "launch")


@pytest.mark.parametrize("target", ["megatron-lm", "megatron-bridge", "flagscale"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("width", [2.0, pytest.param(4.0, marks=pytest.mark.slow)])
def test_the_format_of_summed_gradients_reads_back(
    width: float, precision: Precision, target: TargetName, tmp_path: Path
) -> None:
    """Beside fp16 Megatron-LM sums them in fp16 unless told otherwise, and copies them in the step.

    Plans count four bytes, of which the launch files once said nothing.
    """
    problem, plan = plans.uniform()
    problem = problem.model_copy(
        update={
            "stack": problem.stack.model_copy(update={"gradient_bytes": width}),
            "workload": problem.workload.model_copy(update={"precision": precision}),
        }
    )
    assert_reads_back(problem, plan, target, tmp_path / "launch")
    script = "".join(path.read_text() for path in (tmp_path / "launch").rglob("*") if path.is_file())
    flag = {"flagscale": "accumulate_allreduce_grads_in_fp32: true"}.get(
        target, "--accumulate-allreduce-grads-in-fp32"
    )
    if precision == "fp16" and target != "megatron-bridge":
        assert (flag in script) == (width == 4.0)


@pytest.mark.parametrize("target", ["megatron-lm", "megatron-bridge"])
def test_kernels_that_a_stack_lacks_read_back(target: TargetName, tmp_path: Path) -> None:
    problem, plan = plans.uniform()
    lacks = {"flash_attention": False, "gradient_accumulation_fusion": False}
    problem = problem.model_copy(update={"stack": problem.stack.model_copy(update=lacks)})
    assert_reads_back(problem, plan, target, tmp_path / "launch")


@pytest.mark.parametrize("target", ["megatron-lm", "megatron-bridge"])
def test_heads_exchanged_inside_nodes_and_rings_between_them_read_back(
    target: TargetName, tmp_path: Path
) -> None:
    problem, plan = two_levels_of_context()
    assert_reads_back(problem, plan, target, tmp_path / "launch")
    name = "launch.sh" if target == "megatron-lm" else "overrides.txt"
    said = (tmp_path / "launch" / name).read_text()
    assert ("--hierarchical-context-parallel-sizes 4 2" in said) or ("sizes=[4, 2]" in said)


def two_levels_of_context() -> plans.Case:
    """Eight context-parallel ranks on two nodes: four exchange heads, and a ring joins the nodes."""
    sketch = plans.Sketch([[32]], [0], tensor_parallel=2, context_parallel=8, sequence_parallel=True)
    problem, plan = plans.case("llama3-8b", "2x8 h100-sxm-80gb", 8, 8192, sketch)
    stack = problem.stack.model_copy(update={"cp_exchange": "a2a+p2p"})
    return problem.model_copy(update={"stack": stack}), plan


@pytest.mark.slow
@pytest.mark.parametrize("target", ["megatron-lm", "megatron-bridge"])
def test_random_scripts_read_back_as_their_plans(target: TargetName, tmp_path: Path) -> None:
    first = random.randrange(10**9)
    print(f"seeds {first} to {first + 9}")
    for seed in range(first, first + 10):
        problem, plan = random_case(seed)
        if target == "megatron-bridge":
            plan = recomputing_alike(plan)
        assert_reads_back(problem, plan, target, tmp_path / "launch")


def test_plans_without_a_launcher_read_back_from_their_json(tmp_path: Path) -> None:
    for seed in range(5):
        problem, plan = random_case(seed)
        plan = plan.model_copy(update={"target": "unrestricted"})
        out = export_plan(problem, plan, "unrestricted", tmp_path / str(seed))
        assert load_plan(out / "plan.json").model_copy(update={"problem": None}) == plan


def test_predict_takes_a_flagscale_directory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    problem, plan = plans.experts()
    out = export_plan(problem, plan.model_copy(update={"target": "flagscale"}), "flagscale", tmp_path / "out")
    for path in (out, out / "config.yaml", out / "train" / "hetero.yaml", out / "launch.sh"):
        code = main(["predict", "--from-script", str(path), "--cluster", "2x8 h200-sxm-141gb", "--json"])
        found = json.loads(capsys.readouterr().out)
        assert (code, found["violations"], found["plan"]["target"]) == (0, [], "flagscale")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("[17, 15]", "[17, 14]", "adds up to 31 layers"),
        ("[1, 1, 8, 8, 1, 1, 1, 8, 8, 1]", "[1, 1, 8, 8, 1, 1, 1, 4, 8, 1]", "expert parallel 4, 8 by mesh"),
        ("[1, 1, 8, 8, 1, 1, 1, 8, 8, 1]", "[1, 1, 8, 8, 1]", "its meshes have 1 stages"),
        ("hetero_process_meshes", "hetero_meshes", "hetero_process_meshes: needs a list"),
        ("hetero_device_types: [h200-sxm-141gb_0", "hetero_device_types: [a", "has type 'h200-sxm-141gb_0'"),
        ("num_layers: 32", "num_layers: many", "no whole number"),
        ("system:", "- system", "cannot be read"),
    ],
)
def test_a_flagscale_configuration_that_cannot_be_read_says_why(
    old: str, new: str, complaint: str, tmp_path: Path
) -> None:
    problem, plan = plans.experts()
    out = export_plan(problem, plan.model_copy(update={"target": "flagscale"}), "flagscale", tmp_path / "out")
    file = out / "train" / "hetero.yaml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(InstanceError, match=complaint):
        read_flagscale(out, problem.cluster)


def test_faults_of_flagscale_are_warned_of(tmp_path: Path) -> None:
    # Two stages on one mesh with replicas: FlagScale forms wrong pipeline groups.
    problem, plan = plans.uniform()
    out = export_plan(problem, plan.model_copy(update={"target": "flagscale"}), "flagscale", tmp_path / "out")
    file, hosts = out / "train" / "hetero.yaml", out / "hostfile"
    text = file.read_text()
    meshes = next(line for line in text.splitlines() if "hetero_process_meshes" in line)
    tp, dp = plan.tensor_parallel, plan.data_parallel
    text = text.replace(meshes, f"    hetero_process_meshes: [{tp}, 1, 1, {dp}, 2]")
    types = next(line for line in text.splitlines() if "hetero_device_types" in line)
    file.write_text(text.replace(types, "    hetero_device_types: [A]"))
    hosts.write_text(
        "".join(f"{line.split()[0]} slots=8 type=A\n" for line in hosts.read_text().splitlines())
    )
    back = read_flagscale(out, problem.cluster)
    assert any("wrong pipeline groups" in warning for warning in back.warnings)
    assert [stage.layers for stage in back.plan.stages] == [stage.layers for stage in plan.stages]


@pytest.mark.parametrize("target", ["megatron-lm", "megatron-bridge"])
def test_groups_of_interleaving_read_back(target: TargetName, tmp_path: Path) -> None:
    problem, plan = alike(plans.virtual_stages())
    assert_reads_back(problem, plan.model_copy(update={"microbatch_group_size": 4}), target, tmp_path / "out")


NARROW: dict[Precision, tuple[str, ...]] = {
    "fp8": ("--fp8-param-gather",),
    "fp8_block": ("--fp8-param-gather",),
    "mxfp8": ("--fp8-param-gather", "--reuse-grad-buf-for-mxfp8-param-ag"),
    "nvfp4": ("--fp4-param-gather",),
}
"""Flags that keep weights in the format of the products alone."""


@pytest.mark.parametrize("precision", NARROW)
@pytest.mark.parametrize("target", ["megatron-lm", "megatron-bridge"])
def test_weights_that_are_kept_narrow_are_exported_so(
    precision: Precision, target: TargetName, tmp_path: Path
) -> None:
    # No export said so: 16-bit weights lay beside the narrow ones, for which the plan had left no memory.
    problem, plan = plans.uniform("b200-180gb")
    stack = problem.stack.model_copy(update={"narrow_parameters": True})
    workload = problem.workload.model_copy(update={"precision": precision})
    problem = problem.model_copy(update={"stack": stack, "workload": workload})
    assert_reads_back(problem, plan, target, tmp_path / "narrow")
    wide = problem.model_copy(
        update={"stack": stack.model_copy(update={"narrow_parameters": False})},
    )
    assert_reads_back(wide, plan, target, tmp_path / "wide")
    if target == "megatron-lm":
        script = (tmp_path / "narrow" / "launch.sh").read_text()
        assert all(flag in script for flag in NARROW[precision])
        assert "param-gather\n" not in (tmp_path / "wide" / "launch.sh").read_text().replace(
            "--overlap-param-gather", ""
        )


def test_replicas_without_a_distributed_optimizer_keep_no_narrow_weights(tmp_path: Path) -> None:
    problem, plan = plans.uniform()
    stack = problem.stack.model_copy(update={"narrow_parameters": True})
    workload = problem.workload.model_copy(update={"precision": "fp8"})
    problem = problem.model_copy(update={"stack": stack, "workload": workload})
    plan = plan.model_copy(update={"dp_mode": "ddp"})
    with pytest.raises(PlanRefusedError, match="use dp_mode distopt"):
        export_plan(problem, plan, "megatron-lm", tmp_path / "launch")


def assert_is_the_same_network(name: str, target: TargetName, folder: Path) -> None:
    """The exported directory of a shipped model, under a name of its own, trains that network."""
    model = load_model(name).model_copy(update={"id": "ours"})
    problem, plan = alike(plans.two_stages(model))
    plan = plan.model_copy(update={"target": target})
    if not is_legal(problem, plan):
        return
    out = export_plan(problem, plan, target, folder, force=True)
    assert differences(read_launch(out, problem.cluster).problem.model, model) == (), name


@pytest.mark.parametrize("target", ["megatron-lm", "megatron-bridge", "flagscale"])
def test_a_network_of_experts_with_biases_is_the_same_one_read_back(
    target: TargetName, tmp_path: Path
) -> None:
    """`predict --from-script DIR --model FILE` refused gpt-oss' own launch files as another model: without
    dense blocks, biases everywhere are those of attention."""
    assert_is_the_same_network("gpt-oss-20b", target, tmp_path / "launch")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["megatron-lm", "megatron-bridge", "flagscale"])
def test_every_shipped_network_is_the_same_one_read_back(target: TargetName, tmp_path: Path) -> None:
    for name in names("models"):
        assert_is_the_same_network(name, target, tmp_path / "launch")


def test_overlapped_tensor_parallelism_is_that_of_the_software(tmp_path: Path) -> None:
    """Read back under MindSpeed, which hides half of it otherwise, it became Transformer Engine's."""
    problem, plan = plans.uniform()
    problem = problem.model_copy(update={"stack": load_stack("mindspeed")})
    out = export_plan(problem, plan, "megatron-lm", tmp_path / "launch")
    assert "--tp-comm-overlap" in (out / "launch.sh").read_text()
    stack = read_launch(out, problem.cluster, stack="mindspeed").problem.stack
    assert (stack.tp_userbuffers, stack.tp_overlap_fraction) == (False, problem.stack.tp_overlap_fraction)


@pytest.mark.parametrize(("model", "expert_parallel"), [("nemotron-h-8b", 1), ("nemotron-3-nano-30b-a3b", 8)])
def test_a_hybrid_reads_back_from_megatron_bridge(model: str, expert_parallel: int, tmp_path: Path) -> None:
    """Its own provider for Mamba layers, whose pattern ends the stages; virtual ones it does not build."""
    problem, plan = plans.hybrid_layers(False, model, expert_parallel)
    assert_reads_back(problem, recomputing_alike(plan), "megatron-bridge", tmp_path / "launch")
    problem, plan = plans.hybrid_layers(True, model, expert_parallel)
    with pytest.raises(PlanRefusedError, match="Megatron-Bridge builds none of Mamba layers"):
        export_plan(problem, recomputing_alike(plan), "megatron-bridge", tmp_path / "virtual")


def test_predictions_of_a_hybrid_are_megatron_lms_alone(tmp_path: Path) -> None:
    problem, plan = plans.hybrid_layers(False, "nemotron-3-super-120b-a12b", 4)
    with pytest.raises(PlanRefusedError, match="predicts beside Mamba layers, which megatron-lm alone"):
        export_plan(problem, recomputing_alike(plan), "megatron-bridge", tmp_path / "launch")
