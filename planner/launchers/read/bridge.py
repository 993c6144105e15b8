"""The way back from Megatron-Bridge: overrides on a recipe, as the words of a Megatron-LM command line.

The overrides say what the plan decides, the recipe what the model is: a named recipe is one of ours, and a
recipe of our own writing states the fields of its provider. Both become Megatron-LM's arguments, which are
then read as from any launch script.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from planner.data.load import load_model
from planner.errors import InstanceError
from planner.launchers.bridge import model as bridge_model
from planner.launchers.bridge.fields import IMPLIED, PROVIDER, SWITCHES, VALUES
from planner.launchers.bridge.overrides import CURRENT_SCALING, MIXED_PRECISION
from planner.launchers.megatron.arguments import words
from planner.launchers.megatron.model import model_arguments, moe_arguments
from planner.launchers.megatron.plan_arguments import FP32_GRADIENTS, number_format
from planner.launchers.model_constants import all_constants
from planner.rules.versions import NEWEST

_FORMATS = {"bfloat16": "bf16", "float32": "fp32"}
"""Number formats by PyTorch's names, in Megatron-LM's."""


def megatron_words(entry_point: Path, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Words of Megatron-LM's command line that say the same as a rank's `train.py` and its overrides.

    Parameters
    ----------
    arguments
        The file of overrides, then further overrides, of which later ones win.

    Raises
    ------
    InstanceError
        Where a file is missing, or the recipe is none that we know.
    """
    lines = [*_text(Path(arguments[0])).splitlines(), *arguments[1:]]
    pairs = [line.partition("=") for line in lines if line.strip() and not line.startswith("#")]
    fields = {key.lstrip("+"): value.strip("\"'") for key, _, value in pairs}
    of_format = _wide_layers_words(entry_point, fields)
    settings = (*_override_words(fields), *_settings_words(entry_point), *of_format)
    return (*_model_words(entry_point, fields), *settings)


def _settings_words(entry_point: Path) -> Iterator[str]:
    """What `train.py` sets itself, as overrides cannot."""
    backend = _constant(entry_point, "ATTENTION_BACKEND", "auto")
    if backend != "auto":
        yield from ("--attention-backend", str(backend))
    formats = _constant(entry_point, "GRADIENT_FORMATS", {})
    assert isinstance(formats, dict)
    for name, value in formats.items():
        yield from ("--" + name.replace("_", "-"), _FORMATS[value])
    narrow = _constant(entry_point, "NARROW_WEIGHTS", {})
    assert isinstance(narrow, dict)
    yield from ("--" + name.replace("_", "-") for name, value in narrow.items() if value)


def _wide_layers_words(entry_point: Path, fields: dict[str, str]) -> Iterator[str]:
    """That first and last layer stay in 16 bits, as current scaling has it unless `train.py` says other."""
    named = fields.get("mixed_precision", "").replace("-", "_")
    if named == CURRENT_SCALING and _constant(entry_point, "FIRST_LAST_LAYERS_BF16", True):
        yield "--first-last-layers-bf16"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InstanceError(f"cannot be read: {error}", str(path)) from None


def _override_words(fields: dict[str, str]) -> Iterator[str]:
    for key, value in fields.items():
        if key in IMPLIED or value == "null":
            continue
        if key == "mixed_precision":
            of_tensor = value == CURRENT_SCALING
            precision = next((p for p, name in MIXED_PRECISION.items() if name == value), None)
            if precision is None and not of_tensor:
                raise InstanceError(f"mixed_precision {value} is not known", "overrides")
            yield from words(number_format(precision or "fp8", current_scaling=of_tensor))
        elif key in SWITCHES:
            if value == "true":
                yield SWITCHES[key]
        elif key == "model.gradient_accumulation_fusion":
            if value == "false":
                yield "--no-gradient-accumulation-fusion"
        elif key == "ddp.grad_reduce_in_fp32":
            yield "--grad-reduce-in-bf16" if value == "false" else FP32_GRADIENTS
        elif key in VALUES:
            yield VALUES[key]
            yield from value.strip("[]").replace(" ", "").split(",")
        else:  # told to the user as a flag that we do not know
            yield f"--{key}"


def _model_words(entry_point: Path, fields: dict[str, str]) -> tuple[str, ...]:
    """The model of the recipe that `train.py` names, as arguments of Megatron-LM."""
    recipe = _constant(entry_point, "RECIPE")
    length = int(told) if (told := fields.get("model.seq_length", "")).isdecimal() else 0
    named = next((model for model, known in bridge_model.RECIPES.items() if known == recipe), None)
    if named is not None:
        model = load_model(named)
        shape = (*model_arguments(model, length), *moe_arguments(model, grouped_gemm=False))
        return words((*shape, *all_constants(model, NEWEST)))
    own = entry_point.parent / "recipe.py"
    if recipe != ("recipe", "pretrain_config") or not own.is_file():
        raise InstanceError(
            f"recipe {recipe} is none that is known; known are those of the export", str(entry_point)
        )
    return tuple(_provider_words(own, length))


def _constant(path: Path, name: str, default: object = None) -> object:
    """A constant that a Python file assigns at its top; the default where it assigns none."""
    for node in ast.parse(_text(path)).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == name for t in node.targets
        ):
            return ast.literal_eval(node.value)
    if default is not None:
        return default
    raise InstanceError(f"assigns no {name}; only train.py as exported is read back", str(path))


def _provider_words(recipe: Path, length: int) -> Iterator[str]:
    """The provider that a recipe of our own writing builds, as arguments of Megatron-LM."""
    calls = [node for node in ast.walk(ast.parse(_text(recipe))) if isinstance(node, ast.Call)]
    provider = next((call for call in calls if "Provider" in ast.unparse(call.func)), None)
    if provider is None:
        raise InstanceError("builds no model provider; only a recipe as exported is read back", str(recipe))
    texts = {word.arg: ast.unparse(word.value) for word in provider.keywords if word.arg is not None}
    values = {name: _literal(text) for name, text in texts.items()}
    told = {flag: values[name] for name, flag in PROVIDER.items() if values.get(name) is not None}
    yield from (word for flag, value in told.items() for word in (flag, str(value)))
    yield from ("--max-position-embeddings", str(length))
    if "num_query_groups" in values and values["num_query_groups"] != values["num_attention_heads"]:
        yield "--group-query-attention"
    for name in ("moe_layer_freq", "linear_attention_freq"):
        if name in values:
            yield from (f"--{name.replace('_', '-')}", texts[name].replace(" ", ""))
    if isinstance(window := values.get("window_size"), tuple):
        yield from ("--window-size", f"{window[0]},{window[1]}")
    switches = {
        "--multi-latent-attention": values.get("multi_latent_attention"),
        "--qk-layernorm": values.get("qk_layernorm"),
        "--attention-output-gate": values.get("attention_output_gate"),
        "--apply-layernorm-1p": values.get("layernorm_zero_centered_gamma"),
        "--untie-embeddings-and-output-weights": not values.get("share_embeddings_and_output_weights"),
        "--disable-bias-linear": values.get("add_bias_linear") is False,
        "--add-qkv-bias": values.get("add_qkv_bias"),
        "--no-yarn-correction-range-round-to-int": values.get("yarn_correction_range_round_to_int") is False,
        "--rotary-interleaved": values.get("rotary_interleaved"),
        "--use-rope-scaling": values.get("rope_scaling"),
        "--moe-shared-expert-gate": values.get("moe_shared_expert_gate"),
        "--moe-router-pre-softmax": values.get("moe_router_pre_softmax"),
        "--moe-router-enable-expert-bias": values.get("moe_router_enable_expert_bias"),
        "--quick-geglu": texts["activation_func"] == "quick_gelu",
        "--squared-relu": texts["activation_func"] == "squared_relu",
        "--swiglu": texts["activation_func"].endswith(".silu") and values.get("gated_linear_unit"),
    }
    yield from (flag for flag, on in switches.items() if on)


def _literal(text: str) -> object:
    """A value written out, or None where it is a name."""
    try:
        return ast.literal_eval(text)
    except ValueError:
        return None
