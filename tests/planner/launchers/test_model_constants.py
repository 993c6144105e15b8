"""Numbers of the network that cost nothing, but without which another network is trained."""

from __future__ import annotations

import ast
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.data.load import load_model
from planner.data.model_constants import ModelConstants
from planner.data.model_spec import ModelSpec
from planner.launchers import flagscale, megatron_bridge, megatron_lm
from planner.launchers.bridge import model as bridge_model
from planner.launchers.directory import export_plan
from planner.launchers.megatron.arguments import words
from planner.launchers.megatron.model import inexpressible, model_arguments
from planner.launchers.megatron.rotary_positions import stretching_arguments
from planner.launchers.model_constants import all_constants, constant_arguments, left_out
from planner.launchers.read.megatron import read_script
from planner.rules.versions import NEWEST, version_violations
from tests.planner.launchers import plans, real_megatron

STATED = {
    "llama3-8b": ["--rotary-base ${ROTARY_BASE:-500000}", "--norm-epsilon ${NORM_EPSILON:-1e-05}"],
    "qwen3-8b": ["--rotary-base ${ROTARY_BASE:-1000000}", "--norm-epsilon ${NORM_EPSILON:-1e-06}"],
    "llama3.1-405b": ["--use-rope-scaling", "--rope-scaling-factor 8.0"],
    "glm-4.5": ["--rotary-percent 0.5", "--moe-router-topk-scaling-factor 2.5"],
    "deepseek-v3": [
        "--moe-router-num-groups 8", "--moe-router-group-topk 4", "--rotary-scaling-factor 40.0",
        "--mscale-all-dim 1.0",
    ],
    "deepseek-v2-lite": ["--moe-router-pre-softmax", "--mscale 0.707"],
    "gpt-oss-20b": [
        "--position-embedding-type yarn", "--rotary-scaling-factor 32.0",
        "--yarn-original-max-position-embeddings 4096", "--yarn-beta-fast 32.0", "--yarn-beta-slow 1.0",
        "--no-yarn-correction-range-round-to-int",
    ],
}  # fmt: skip


def scripts(model: str | ModelSpec) -> tuple[str, str]:
    """Start script and page of a launch directory."""
    problem, plan = plans.two_stages(model)
    files = megatron_lm.launch_files(problem, plan, None)
    return files["launch.sh"], files["README.md"]


@pytest.mark.parametrize("name", STATED)
def test_the_script_states_the_numbers_of_the_published_network(name: str) -> None:
    """Every model once got the rotary base 10,000 and the epsilon 1e-5, with nothing said of it."""
    script, page = scripts(name)
    lines = [line.strip().replace('"', "") for line in script.splitlines()]
    for expected in STATED[name]:
        assert expected in lines
    assert "Megatron's own" not in page


def test_what_a_model_does_not_state_is_told_to_the_reader() -> None:
    model = load_model("llama3-8b").model_copy(update={"constants": ModelConstants(), "id": "ours"})
    script, page = scripts(model)
    assert "${ROTARY_BASE:-10000}" in script
    assert "rotary base 10000 and norm epsilon 1e-05: Megatron's own, as the file of ours states none" in page
    assert "beta_fast 32, Megatron's own; kimi-k2 has 1" in left_out(load_model("kimi-k2"), NEWEST)[0]
    assert left_out(load_model("kimi-k2"), NEWEST, by_fields=True) == ()


def test_positions_are_stretched_where_the_version_can_and_else_the_page_says_so() -> None:
    """gpt-oss was once written for every version without its YaRN, which core 0.19 takes as arguments."""
    model = load_model("gpt-oss-20b")
    problem, plan = plans.two_stages(model)
    assert left_out(model, NEWEST) == ()
    for files in (
        megatron_lm.launch_files(problem, plan, None, "0.18"),
        flagscale.launch_files(
            problem.model_copy(update={"target": "flagscale"}),
            plan.model_copy(update={"target": "flagscale"}),
            None,
        ),
    ):
        assert not any("yarn" in text for path, text in files.items() if path != "README.md")
        assert "positions are not stretched: gpt-oss-20b has yarn x 32" in files["README.md"]
    # Megatron's YaRN rotates whole heads.
    half = model.constants.model_copy(update={"rotary_fraction": 0.5})
    assert "not stretched" in left_out(model.model_copy(update={"constants": half}), NEWEST)[0]


def stretched(kind: str, factor: float, **more: Any) -> ModelSpec:
    """Llama 3 8B with positions stretched otherwise."""
    scaling = {"rotary_scaling": {"kind": kind, "factor": factor, **more}, "rotary_base": 500_000}
    constants = ModelConstants.model_validate({**scaling, "norm_epsilon": 1e-5})
    return load_model("llama3-8b").model_copy(update={"constants": constants, "id": "ours"})


def test_a_factor_of_llama_3_that_megatron_does_not_hand_on_is_told() -> None:
    """Llama 3.2 1B and 3B, stretched 32 times, were written as if they would not be built with 8."""
    _, page = scripts(stretched("llama3", 32.0))
    assert "stretched 8 times" in page and "ours has 32" in page
    assert left_out(stretched("llama3", 8.0), NEWEST) == ()
    assert left_out(stretched("llama3", 32.0), NEWEST, by_fields=True) == ()
    short = stretched("llama3", 8.0, original_length=4096)
    assert "beyond 8,192 tokens" in left_out(short, NEWEST, by_fields=True)[0]


def test_a_division_of_positions_is_written_for_versions_that_hand_it_on() -> None:
    """Models before core 0.19, and FlagScale's, are built without `--rotary-seq-len-interpolation-factor`."""
    model = stretched("linear", 4.0)
    flags = [argument.flag for argument in stretching_arguments(model, NEWEST)]
    assert flags == ["--rotary-seq-len-interpolation-factor"] and left_out(model, NEWEST) == ()
    assert stretching_arguments(model, "0.18") == ()
    problem, plan = plans.two_stages(model)
    problem, plan = (thing.model_copy(update={"target": "flagscale"}) for thing in (problem, plan))
    files = flagscale.launch_files(problem, plan, None)
    assert "interpolation" not in files["train/hetero.yaml"]
    assert "not stretched: ours has linear x 4" in files["README.md"]


WHAT_REACHES_THE_MODEL = """
import sys
from tests.megatron_check import standins, validate
standins.install(9)
standins.pretend_transformer_engine("2.9.0")
from megatron.training.argument_utils import gpt_config_from_args
args = validate.read_arguments(sys.argv[1:], 16)
config = gpt_config_from_args(args, validate.transformer_config(args))
print(config.rope_scaling, config.rope_scaling_factor, config.seq_len_interpolation_factor)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "factor", "built"), [("llama3", 32.0, "True 8.0 None"), ("linear", 4.0, "False 8.0 4")]
)
def test_what_of_stretching_reaches_the_real_model(
    kind: str, factor: float, built: str, megatron_python: str
) -> None:
    model = stretched(kind, factor)
    stated = words((*model_arguments(model, 1024), *all_constants(model, NEWEST)))
    training = [
        "--micro-batch-size",
        "1",
        "--global-batch-size",
        "16",
        "--vocab-size",
        "1024",
        "--bf16",
        "--mock-data",
    ]
    done = real_megatron.run(megatron_python, "-c", WHAT_REACHES_THE_MODEL, *stated, *training)
    assert done.stdout.strip() == built, done.stderr[-2000:]


@pytest.mark.slow
def test_the_real_frequencies_are_those_of_yarn(megatron_python: str) -> None:
    """Formulas 17 to 22 of arXiv:2309.00071: frequencies that turn often stay, slow ones are divided."""
    values = {a.flag: a.values for a in stretching_arguments(load_model("gpt-oss-20b"), NEWEST)}
    flags = {
        "factor": "--rotary-scaling-factor",
        "length": "--yarn-original-max-position-embeddings",
        "fast": "--yarn-beta-fast",
        "slow": "--yarn-beta-slow",
    }
    told = [word for name, flag in flags.items() for word in (name, *values[flag])]
    command = ("-m", "tests.megatron_check.frequencies", "base", "150000", "head", "64")
    done = real_megatron.run(megatron_python, *command, *told)
    assert done.returncode == 0, done.stderr[-2000:]
    scale, *built = map(float, done.stdout.split())
    assert scale == pytest.approx(0.1 * math.log(32) + 1)
    for pair, frequency in enumerate(built):
        plain = 150_000 ** (-pair / 32)
        low, high = (32 * math.log(4096 / (turns * 2 * math.pi)) / math.log(150_000) for turns in (32, 1))
        share = min(max((pair - low) / (high - low), 0), 1)
        assert frequency == pytest.approx(plain * (1 - share + share / 32), rel=1e-5)


def test_a_recipe_that_states_the_network_leaves_nothing_out() -> None:
    """Megatron-Bridge's recipe of gpt-oss stretches positions, which its page once denied."""
    problem, plan = plans.two_stages("gpt-oss-20b")
    page = megatron_bridge.launch_files(problem, plan, None)["README.md"]
    assert "not stretched" not in page


def test_predictions_beside_yarn_are_refused_outside_latent_attention() -> None:
    """Megatron-LM's `validate_args` stops at them: only rotary positions as they are, or none."""
    scaled = ModelConstants.model_validate({"rotary_scaling": {"kind": "yarn", "factor": 4.0}})
    glm, deepseek = load_model("glm-4.5-air"), load_model("deepseek-v3")
    assert not inexpressible(glm) and glm.mtp_num_layers and not inexpressible(deepseek)
    refused = inexpressible(glm.model_copy(update={"constants": scaled}))
    assert len(refused) == 1 and "not stretched by YaRN outside latent attention" in refused[0]
    assert not inexpressible(glm.model_copy(update={"constants": scaled, "mtp_num_layers": 0}))


def test_one_chosen_expert_is_weighed_among_all() -> None:
    """Megatron refuses a softmax over one expert ("Please use --moe-router-pre-softmax when topk is 1")."""
    model = load_model("mixtral-8x7b")
    assert model.moe is not None
    switch = model.model_copy(update={"moe": model.moe.model_copy(update={"top_k": 1})})
    assert [argument.flag for argument in constant_arguments(switch, NEWEST)] == ["--moe-router-pre-softmax"]
    assert constant_arguments(model, NEWEST) == ()


def test_flagscale_and_bridge_state_them_too() -> None:
    model = load_model("deepseek-v2-lite")
    fields = bridge_model.provider_fields(model, grouped_gemm=True)
    assert fields["layernorm_epsilon"] == "1e-06" and fields["rotary_base"] == "10000"
    assert fields["moe_router_pre_softmax"] == "True" and fields["rotary_scaling_factor"] == "40.0"
    plain = model.model_copy(update={"constants": ModelConstants()})
    # Latent attention of Megatron-Bridge stretches positions 40 times unless it is told not to.
    assert bridge_model.provider_fields(plain, grouped_gemm=True)["rotary_scaling_factor"] == "1.0"
    problem, plan = plans.two_stages("qwen3-8b")
    problem, plan = (
        problem.model_copy(update={"target": "flagscale"}),
        plan.model_copy(update={"target": "flagscale"}),
    )
    tree: Any = yaml.safe_load(flagscale.launch_files(problem, plan, None)["train/hetero.yaml"])
    assert tree["data"]["tokenizer"]["vocab_size"] == load_model("qwen3-8b").vocab_size - 1
    assert (tree["model"]["rotary_base"], tree["model"]["norm_epsilon"]) == (1_000_000, 1e-6)
    kimi = bridge_model.provider_fields(load_model("kimi-k2"), grouped_gemm=True)
    assert (kimi["rotary_scaling_factor"], kimi["beta_fast"]) == ("32.0", "1.0")
    oss = bridge_model.provider_fields(load_model("gpt-oss-20b"), grouped_gemm=True)
    assert (oss["position_embedding_type"], oss["yarn_beta_fast"]) == ("'yarn'", "32.0")
    assert oss["yarn_correction_range_round_to_int"] == "False" and "rotary_scaling_factor" not in oss
    llama = bridge_model.provider_fields(load_model("llama3.1-405b"), grouped_gemm=True)
    assert (llama["rope_scaling"], llama["rope_scaling_factor"]) == ("True", "8.0")


@pytest.mark.parametrize(
    ("constants", "complaint"),
    [
        ({"expert_groups": 8}, "go together"),
        ({"expert_groups": 3, "groups_visited": 1}, "does not divide"),
        ({"expert_groups": 8, "groups_visited": 1}, "hold no 2 experts"),
        ({"expert_groups": 8, "groups_visited": 4}, "must be at most moe.top_k 2"),
    ],
)
def test_groups_that_cannot_be_are_refused(constants: dict[str, int], complaint: str) -> None:
    model = load_model("mixtral-8x7b")
    with pytest.raises(ValueError, match=complaint):
        ModelSpec(**(model.model_dump() | {"constants": constants}))


BIASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "has biases .all. but none in its experts": ("mixtral-8x7b", {"linear_bias": "all"}, {}),
    "in its experts but not in all other maps": (
        "mixtral-8x7b",
        {},
        {"expert_bias": True, "router_bias": True},
    ),
    "in its experts but not in the router": ("gpt-oss-20b", {}, {"router_bias": False}),
    "beside shared ones": ("gpt-oss-20b", {}, {"shared_ffn_hidden_size": 512}),
    "not in all other maps .linear_bias attention": (
        "gpt-oss-20b",
        {"ffn_hidden_size": 512},
        {"first_dense_layers": 1},
    ),
    "in latent attention": ("deepseek-v2-lite", {"linear_bias": "qkv"}, {}),
    "beside Mamba layers": ("nemotron-h-8b", {"linear_bias": "all"}, {}),
    "has biases in attention only": ("llama3-8b", {"linear_bias": "attention"}, {}),
}
"""What is complained of, and a model with what of it is changed, in itself and in its experts."""


@pytest.mark.parametrize("complaint", BIASES)
def test_biases_that_megatron_would_place_otherwise_are_refused(complaint: str) -> None:
    """A model with biases everywhere but in its experts once trained with biases in them, too."""
    name, own, of_experts = BIASES[complaint]
    model = load_model(name)
    moe = model.moe and model.moe.model_copy(update=of_experts)
    changed = model.model_copy(update={**own, "moe": moe})
    assert inexpressible(model, builds_hybrids=True) == ()
    (sentence,) = inexpressible(changed, builds_hybrids=True)
    assert re.search(complaint, sentence)


def test_scores_of_experts_are_those_of_the_model() -> None:
    """Only models that balance by a bias could have sigmoid scores; a script with others passed as any."""
    mixture = load_model("qwen3-30b-a3b")
    constants = mixture.constants.model_copy(update={"expert_scores": "sigmoid", "routed_scale": 2.5})
    scored = mixture.model_copy(update={"constants": constants, "id": "ours"})
    script, _ = scripts(scored)
    assert "--moe-router-score-function sigmoid" in script
    assert "--moe-router-topk-scaling-factor 2.5" in script
    assert "--moe-router-pre-softmax" not in script
    assert "--moe-router-enable-expert-bias" not in script
    assert bridge_model.provider_fields(scored, True)["moe_router_score_function"] == "'sigmoid'"
    balanced = load_model("glm-4.5")
    softmax = balanced.constants.model_copy(update={"expert_scores": "softmax"})
    (reason,) = inexpressible(balanced.model_copy(update={"constants": softmax}))
    assert "balances its experts by a bias on a softmax" in reason


@pytest.mark.parametrize("scale", [2.5, 1e-5])
def test_a_scale_is_a_number_in_a_recipe_file_however_it_is_written(scale: float) -> None:
    """Exponents made a string of it."""
    mixture = load_model("qwen3-30b-a3b")
    constants = mixture.constants.model_copy(update={"expert_scores": "sigmoid", "routed_scale": scale})
    fields = bridge_model.provider_fields(mixture.model_copy(update={"constants": constants}), True)
    assert ast.literal_eval(fields["moe_router_topk_scaling_factor"]) == scale


def test_scores_that_an_older_version_lacks_are_refused() -> None:
    problem, plan = plans.experts()
    constants = problem.model.constants.model_copy(update={"expert_scores": "sqrtsoftplus"})
    model = problem.model.model_copy(update={"constants": constants})
    problem = problem.model_copy(update={"model": model})
    assert version_violations(problem, plan, "0.18") == ()
    (reason,) = version_violations(problem, plan, "0.17")
    assert "take version 0.18 or newer" in reason


def test_gates_of_shared_experts_are_refused_for_the_version_that_has_none() -> None:
    """Core 0.15 stopped at an argument that it does not know."""
    problem, plan = plans.two_stages("mixtral-8x7b")
    assert problem.model.moe is not None
    gate = {"shared_ffn_hidden_size": 1024, "shared_expert_gate": True}
    moe = problem.model.moe.model_copy(update=gate)
    gated = problem.model_copy(update={"model": problem.model.model_copy(update={"moe": moe})})
    assert version_violations(gated, plan, "0.16") == version_violations(problem, plan, "0.15") == ()
    (reason,) = version_violations(gated, plan, "0.15")
    assert "no gate of shared experts; take version 0.16" in reason


def test_hidden_exchanges_beside_predictions_on_one_stage_are_refused_for_versions_that_stop_at_them() -> (
    None
):
    """Core 0.17 stopped at an exported script in the constructor of its configuration."""
    problem, plan = plans.two_stages("glm-4.5-air")
    one = plan.model_copy(update={"stages": plan.stages[:1], "expert_parallel": 8})
    hidden = problem.model_copy(update={"stack": problem.stack.model_copy(update={"ep_overlap": True})})
    for version in ("0.16", "0.17"):
        (reason,) = version_violations(hidden, one, version)
        assert "takes several stages for it; take version 0.18" in reason
        assert version_violations(problem, one, version) == ()
        assert version_violations(hidden, plan.model_copy(update={"expert_parallel": 8}), version) == ()
    assert version_violations(hidden, one, "0.15") == version_violations(hidden, one, "0.18") == ()


def test_the_tokenizer_of_made_up_data_makes_no_vocabulary_of_its_own(tmp_path: Path) -> None:
    """Up to core 0.17 it adds an entry: 128,256 were padded to 128,384, and another model was timed."""
    problem, plan = plans.uniform()
    for version, entries in (("0.17", 128_255), ("0.18", 128_256)):
        files = megatron_lm.launch_files(problem, plan, None, version)
        assert f"--vocab-size {entries}\n" in files["launch.sh"]
    out = export_plan(problem, plan, "megatron-lm", tmp_path / "launch", version="0.17")
    assert read_script(out / "launch.sh", "2x8 h100-sxm-80gb").problem.model == problem.model
