"""Megatron-Bridge: every field we set exists, every decision has its field, scripts start what they say."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from planner.data.chip import Precision
from planner.data.load import load_model, names
from planner.errors import PlanRefusedError
from planner.launchers.bridge import model as bridge_model
from planner.launchers.bridge.overrides import MIXED_PRECISION, overrides
from planner.launchers.directory import export_plan, files_of
from planner.launchers.megatron.model import inexpressible
from tests.planner.launchers import plans

# Names read from the wheels megatron-bridge 0.6.2 and megatron-core 0.19.2, of which the file tells.
WHEEL = json.loads((Path(__file__).parent / "bridge_fields.json").read_text())
FIELDS = {section: set(text.split()) for section, text in WHEEL["sections"].items()}
RECIPES = {module: set(text.split()) for module, text in WHEEL["recipes"].items()}


def alike(case: plans.Case) -> plans.Case:
    """The case with the recomputation of its first stage on all stages."""
    problem, plan = case
    first = plan.stages[0]
    changes = {"recompute": first.recompute, "recompute_layers": first.recompute_layers}
    stages = tuple(stage.model_copy(update=changes) for stage in plan.stages)
    return problem, plan.model_copy(update={"stages": stages})


def files(case: plans.Case) -> dict[str, str]:
    return files_of(*alike(case), "megatron-bridge")


@pytest.mark.parametrize("name", plans.ALL)
def test_every_override_is_a_field_of_the_wheel(name: str) -> None:
    for key in overrides(*alike(plans.ALL[name]())):
        section, _, field = key.rpartition(".")
        assert field in FIELDS[section], key


BUILT = [n for n in names("models") if not inexpressible(load_model(n), builds_plain_hybrids=True)]
"""Shipped models that Megatron-Bridge builds."""


@pytest.mark.parametrize("name", BUILT)
def test_every_field_of_a_recipe_file_is_a_field_of_the_wheel(name: str) -> None:
    fields = bridge_model.provider_fields(load_model(name), grouped_gemm=True)
    hybrid = load_model(name).hybrid is not None
    assert set(fields) <= FIELDS["hybrid model" if hybrid else "model"]
    for value in fields.values():
        ast.parse(value, mode="eval")


@pytest.mark.parametrize(("name", "expert_parallel"), plans.HYBRIDS[:2])
def test_every_override_of_a_hybrid_is_a_field_of_its_provider(name: str, expert_parallel: int) -> None:
    for key in overrides(*alike(plans.hybrid_layers(False, name, expert_parallel))):
        section, _, field = key.rpartition(".")
        assert field in FIELDS["hybrid model" if section == "model" else section], key


def test_named_recipes_and_precisions_exist() -> None:
    for module, function in [*bridge_model.RECIPES.values(), bridge_model.BARE_RECIPE]:
        assert function in RECIPES[module]
    assert set(bridge_model.RECIPES) <= set(names("models"))
    assert set(MIXED_PRECISION.values()) <= set(WHEEL["precisions"].split())


def test_decisions_stand_in_the_overrides_and_no_left_over_of_the_recipe() -> None:
    problem, plan = alike(plans.mixed_128())
    found = overrides(problem, plan)
    assert found["model.tensor_model_parallel_size"] == "8"
    assert found["model.pipeline_model_parallel_layout"] == '"Et*26|t*28|t*13|t*13L"'
    assert found["model.virtual_pipeline_model_parallel_size"] == "null"  # the recipe has 5
    assert found["comm_overlap"] == "null"  # the recipe tunes it for tensor parallel 4
    assert (found["model.recompute_method"], found["model.recompute_num_layers"]) == ("block", "4")
    assert (found["train.micro_batch_size"], found["train.global_batch_size"]) == ("1", "16")
    assert found["tokenizer.vocab_size"] == "128256"


def test_virtual_stages_match_the_stages_of_the_layout() -> None:
    found = overrides(*alike(plans.virtual_stages()))
    layout, virtual, stages = (
        found[f"model.{name}"]
        for name in (
            "pipeline_model_parallel_layout",
            "virtual_pipeline_model_parallel_size",
            "pipeline_model_parallel_size",
        )
    )
    assert layout.count("|") + 1 == int(virtual) * int(stages) == 4
    assert found["model.overlap_p2p_comm"] == "true"


def test_stages_that_recompute_differently_are_refused() -> None:
    with pytest.raises(PlanRefusedError, match="target megatron-bridge has one setting for all"):
        files_of(*plans.mixed_128(), "megatron-bridge")


def test_the_one_number_is_that_of_the_longest_recomputed_stage() -> None:
    problem, plan = plans.mixed_128()
    counts = [min(stage.num_layers, 20) for stage in plan.stages]
    assert counts == [20, 20, 13, 13]
    stages = tuple(
        stage.model_copy(update={"recompute": "full", "recompute_layers": count})
        for stage, count in zip(plan.stages, counts, strict=True)
    )
    found = overrides(problem, plan.model_copy(update={"stages": stages, "target": "megatron-bridge"}))
    assert (found["model.recompute_method"], found["model.recompute_num_layers"]) == ("block", "20")


def test_a_model_without_a_recipe_gets_a_file_that_is_one() -> None:
    made = files(plans.latent_attention_and_prediction())
    tree = ast.parse(made["lib/recipe.py"])
    call = next(
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "MLAModelProvider"
    )
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    assert (given["q_lora_rank"], given["num_moe_experts"], given["mtp_num_layers"]) == ("1536", "8", "1")
    assert given["moe_layer_freq"] == "[0, 1, 1, 1, 1]"
    assert 'RECIPE = ("recipe", "pretrain_config")' in made["lib/train.py"]
    ast.parse(made["lib/train.py"])
    named = files(plans.uniform())
    assert "lib/recipe.py" not in named
    assert 'RECIPE = ("megatron.bridge.recipes.llama", "llama3_8b_pretrain_config")' in named["lib/train.py"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    problem, plan = alike(plans.mixed_128())
    return export_plan(problem, plan, "megatron-bridge", tmp_path_factory.mktemp("bridge") / "launch")


def start(directory: Path, programs: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    (programs / "torchrun").write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
    (programs / "torchrun").chmod(0o755)
    return subprocess.run(
        ["bash", str(directory / "launch.sh")],
        env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_each_node_starts_its_share_with_the_overrides(directory: Path, tmp_path: Path) -> None:
    done = start(directory, tmp_path, NODE_RANK="9", EXTRA_OVERRIDES="train.train_iters=5")
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    assert words[words.index("--node-rank") + 1] == "9"
    assert words[-3:] == [
        str(directory / "lib/train.py"), str(directory / "overrides.txt"), "train.train_iters=5",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("|t*13L", "|t*12L", "places 79 layers, the model has 80"),
        ("train.global_batch_size=16", "train.global_batch_size=18", "the global batch is 18"),
        ("model.tensor_model_parallel_size=8", "model.tensor_model_parallel_size=4", "is 64 ranks"),
    ],
)
def test_overrides_that_no_longer_add_up_stop_the_start(
    old: str, new: str, complaint: str, directory: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(directory, tmp_path / "launch")
    text = (copy / "overrides.txt").read_text()
    assert old in text
    (copy / "overrides.txt").write_text(text.replace(old, new))
    done = start(copy, tmp_path, NODE_RANK="0")
    assert done.returncode == 1
    assert complaint in done.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("model.pipeline_model_parallel_size=2 train.train_iters=5", "is 64 ranks, the plan has 128"),
        ("++model.pipeline_model_parallel_layout=Et*40|t*40L", "has 2 stages, the plan has 4 x 1"),
        ("model.virtual_pipeline_model_parallel_size=2", "is 2, the plan has 1 virtual stages"),
    ],
)
def test_further_words_that_contradict_the_plan_stop_the_start(
    words: str, complaint: str, directory: Path, tmp_path: Path
) -> None:
    # They win over the file that was checked, and were not checked themselves.
    done = start(directory, tmp_path, NODE_RANK="0", EXTRA_OVERRIDES=words)
    assert done.returncode == 1
    assert complaint in done.stderr


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_scripts_of_other_targets_pass_shellcheck(directory: Path, tmp_path: Path) -> None:
    problem, plan = plans.uniform()
    other = export_plan(problem, plan, "flagscale", tmp_path / "flagscale")
    scripts = [out / "launch.sh" for out in (directory, other)]
    done = subprocess.run(
        ["shellcheck", "-x", "-P", "SCRIPTDIR", *map(str, scripts)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_model_fields_of_megatron_and_bridge_tell_the_same_sizes() -> None:
    # The same numbers must stand in both exports of a plan, under either name.
    problem, plan = alike(plans.experts())
    bridge = bridge_model.provider_fields(problem.model, True)
    script = files_of(problem, plan, "megatron-lm")["launch.sh"]
    for field, flag in {
        "num_layers": "--num-layers",
        "hidden_size": "--hidden-size",
        "ffn_hidden_size": "--ffn-hidden-size",
        "num_query_groups": "--num-query-groups",
        "num_moe_experts": "--num-experts",
        "moe_router_topk": "--moe-router-topk",
        "moe_ffn_hidden_size": "--moe-ffn-hidden-size",
    }.items():
        assert re.search(rf"{flag} {bridge[field]}$", script, re.M), flag


@pytest.mark.parametrize("name", ["latent_attention_and_prediction", "experts"])
def test_layers_of_a_recipe_file_are_each_of_their_own_kind(name: str) -> None:
    # The provider's own layers are all alike: with experts in each, and never with latent attention.
    problem, _ = plans.ALL[name]()
    fields = bridge_model.provider_fields(problem.model, grouped_gemm=True)
    assert fields["transformer_layer_spec"] == bridge_model.LAYER_SPEC
    recipe = files(plans.latent_attention_and_prediction())["lib/recipe.py"]
    for line in (
        "from functools import partial",
        "from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec",
    ):
        assert line in recipe.splitlines()
    assert "transformer_layer_spec" not in bridge_model.provider_fields(load_model("llama2-70b"), True)


def test_scores_of_latent_attention_are_kept_in_16_bits_as_they_are_priced() -> None:
    """The provider of such models keeps them in 32 bits where no flash attention spares them."""
    problem, _ = plans.latent_attention_and_prediction()
    fields = bridge_model.provider_fields(problem.model, grouped_gemm=True)
    assert (fields["attention_softmax_in_fp32"], fields["masked_softmax_fusion"]) == ("False", "True")


def test_the_vocabulary_is_padded_as_the_plan_counts_it() -> None:
    # A size that a provider states is never padded: 50,257 entries stopped the start on two ranks.
    problem, plan = alike(plans.uniform())
    model = problem.model.model_copy(update={"vocab_size": 50_257})
    found = overrides(problem.model_copy(update={"model": model}), plan)
    assert plan.tensor_parallel == 2
    assert found["model.vocab_size"] == "50432"
    assert found["tokenizer.use_tokenizer_vocab_size"] == "false"  # else 50,257 or what a tokenizer says


def test_pointwise_operators_are_fused_as_they_are_priced() -> None:
    # Recipes of Qwen leave the gated unit unfused, which keeps more in memory.
    stack = plans.uniform()[0].stack
    fused = {name: bridge_model.kernels(load_model(name), stack) for name in names("models")}
    assert fused["qwen2.5-72b"]["bias_activation_fusion"] and fused["qwen2.5-72b"]["apply_rope_fusion"]
    assert "apply_rope_fusion" not in fused["gpt3-175b"]
    assert fused["nemotron-4-340b"]["bias_activation_fusion"] is False  # no such kernel
    assert fused["deepseek-v3"]["apply_rope_fusion"]  # priced so, and off in providers of latent attention
    assert overrides(*alike(plans.uniform()))["model.bias_activation_fusion"] == "true"
    clamped = load_model("gpt-oss-20b")
    assert fused["gpt-oss-20b"]["bias_activation_fusion"] and clamped.moe is not None
    # Megatron-LM fuses the clamped unit with biases alone.
    bare = {"linear_bias": "none", "moe": clamped.moe.model_copy(update={"expert_bias": False})}
    assert not bridge_model.kernels(clamped.model_copy(update=bare), stack)["bias_activation_fusion"]


def test_no_recipe_keeps_more_in_memory_than_is_priced() -> None:
    """Providers of latent attention kept what a stage has sent until its backward, 56 MB a micro-batch in
    flight of DeepSeek-V3 with sequences of 4,096; the recipe of Qwen3-30B-A3B captured CUDA graphs."""
    for case in (plans.latent_attention_and_prediction(), plans.experts()):
        found = overrides(*alike(case))
        assert found["model.deallocate_pipeline_outputs"] == "true"
        assert found["model.gradient_accumulation_fusion"] == "true"
        assert found["model.cuda_graph_impl"] == "none"
    problem, plan = alike(plans.experts())
    captured = problem.stack.model_copy(update={"captured_modules": ("attn",)})
    assert "model.cuda_graph_impl" not in overrides(problem.model_copy(update={"stack": captured}), plan)


def test_training_is_not_that_of_a_recipes_measurement() -> None:
    """Recipes that run 100 steps end the decay of the learning rate there (Qwen3-8B), whatever is trained;
    and loaders made a mask of 16 GiB for each sequence of 131,072 tokens, which nothing reads."""
    found = overrides(*alike(plans.uniform()))
    assert found["scheduler.lr_decay_iters"] == "null"  # then that of train.train_iters
    assert found["dataset.create_attention_mask"] == "false"


def test_experts_run_without_the_overlap_that_a_recipe_may_have() -> None:
    found = overrides(*alike(plans.experts()))
    assert found["model.moe_shared_expert_overlap"] == "false"
    # Nor with processors set aside for a library of another chip, nor scored in 16 bits.
    assert found["model.moe_flex_dispatcher_num_sms"] == found["model.moe_hybridep_num_sms"] == "null"
    assert found["model.moe_router_dtype"] == "fp32"


def test_the_optimizer_is_the_one_that_plans_count() -> None:
    """Kimi K2's recipe has Muon: another state in memory, and another step."""
    assert overrides(*alike(plans.uniform()))["optimizer.optimizer"] == "adam"


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_overflow_beside_fp16_does_not_end_the_run(precision: Precision) -> None:
    """Recipes check gradients for infinities, which are how the loss scaler finds its scale."""
    problem, plan = alike(plans.uniform())
    workload = problem.workload.model_copy(update={"precision": precision})
    found = overrides(problem.model_copy(update={"workload": workload}), plan)
    for name in ("ddp.check_for_nan_in_grad", "rerun_state_machine.check_for_nan_in_loss"):
        assert found.get(name) == ("false" if precision == "fp16" else None)


def test_gathers_of_interleaved_stages_are_aligned_as_in_megatron_lm() -> None:
    assert overrides(*alike(plans.virtual_stages()))["ddp.align_param_gather"] == "true"
    assert overrides(*alike(plans.uniform()))["ddp.align_param_gather"] == "false"


def test_another_network_under_the_name_of_a_shipped_one_is_not_trained_by_its_recipe() -> None:
    shipped = load_model("llama3-8b")
    assert bridge_model.recipe_of(shipped) is not None
    assert bridge_model.recipe_of(shipped.model_copy(update={"note": "ours", "published_params": None}))
    constants = shipped.constants.model_copy(update={"rotary_base": 10_000})
    for update in ({"vocab_size": 32_000}, {"constants": constants}, {"mtp_num_layers": 1}):
        assert bridge_model.recipe_of(shipped.model_copy(update=update)) is None
    assert bridge_model.recipe_of(load_model("mixtral-8x7b")) is None
    problem, plan = plans.uniform()
    other = problem.model_copy(update={"model": shipped.model_copy(update={"vocab_size": 32_000})})
    assert "vocab_size=32000" in files((other, plan))["lib/recipe.py"]


FAKE_BRIDGE = {
    "torch.py": "float32, bfloat16 = 'float32', 'bfloat16'\n",
    "megatron/bridge/training/gpt_step.py": "forward_step = None\n",
    "megatron/bridge/training/mixed_precision.py": """
from types import SimpleNamespace
def get_mixed_precision_config(name):
    return SimpleNamespace(name=name, grad_reduce_in_fp32=True)
""",
    "megatron/bridge/training/pretrain.py": """
import json
def pretrain(config, forward_step_func):
    print(json.dumps({name: vars(part) for name, part in vars(config).items() if part is not None}))
""",
    "megatron/bridge/training/utils/omegaconf_utils.py": """
import json
def process_config_with_overrides(config, cli_overrides):
    for section, _, rest in (line.partition(".") for line in cli_overrides):
        key, equals, value = rest.partition("=")
        if section.startswith("mixed_precision="):
            config.mixed_precision = section.partition("=")[2]
        elif equals and hasattr(config, section):
            value = {"true": True, "false": False, "null": None}.get(value, value)
            setattr(getattr(config, section), key, value)
    return config
""",
    "megatron/core/transformer/enums.py": "AttnBackend = {'auto': 'auto', 'unfused': 'unfused'}\n",
    "megatron/bridge/recipes/llama.py": """
from types import SimpleNamespace
SHAPE = @SHAPE@
def llama3_8b_pretrain_config():
    optimizer = SimpleNamespace(main_grads_dtype="bfloat16", exp_avg_dtype="bfloat16")
    sections = {name: SimpleNamespace() for name in ("ddp", "dataset", "train", "dist")}
    return SimpleNamespace(
        model=SimpleNamespace(**SHAPE), optimizer=optimizer, mixed_precision="", comm_overlap=1, **sections
    )
""",
}
"""As much of Megatron-Bridge as a rank's script calls, with a recipe whose optimizer keeps 16-bit states."""


@pytest.mark.parametrize("width", [2.0, 4.0])
def test_a_rank_trains_with_gradients_and_states_as_wide_as_the_plan_counts(
    width: float, tmp_path: Path
) -> None:
    # The number format of Megatron-Bridge overwrote the gradients' width, and its optimizer refused to start
    # with states in 16 bits, which the recipe of DeepSeek-V3 has, where the plan asks for the ordinary one.
    problem, plan = plans.uniform()
    stack = problem.stack.model_copy(update={"gradient_bytes": width})
    problem = problem.model_copy(update={"stack": stack})
    out = export_plan(problem, plan, "megatron-bridge", tmp_path / "launch")
    for name, text in FAKE_BRIDGE.items():
        file = tmp_path / "fake" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        shape = {
            key: ast.literal_eval(value) for key, value in bridge_model.shape_fields(problem.model).items()
        }
        file.write_text(text.replace("@SHAPE@", repr(shape)))
    done = subprocess.run(
        [sys.executable, str(out / "lib" / "train.py"), str(out / "overrides.txt")],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "fake")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["mixed_precision"]["name"] == "bf16_mixed"
    assert seen["mixed_precision"]["grad_reduce_in_fp32"] == (width == 4)
    states = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
    assert {seen["optimizer"][name] for name in states} == {"float32"}
