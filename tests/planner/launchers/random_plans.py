"""Random legal plans for Megatron-LM."""

from __future__ import annotations

import random
from collections.abc import Sequence

from planner.data.chip import Precision
from planner.data.load import load_model
from planner.data.model_spec import ModelSpec
from planner.data.plan import Recompute
from planner.launchers.nearest import is_legal
from planner.rules.tensor import tp_is_legal
from planner.rules.versions import NEWEST, version_violations
from tests.planner.launchers import plans

MODELS = (
    *("llama3-8b", "llama2-7b", "qwen3-8b", "mixtral-8x7b", "gpt-oss-20b", "phi-4", "qwen3-30b-a3b"),
    *("deepseek-v2-lite", "glm-4.5-air"),  # latent attention; prediction after experts
)
CHIPS = ("h100-sxm-80gb", "a100-sxm-80gb", "h200-sxm-141gb")


def random_case(seed: int, models: Sequence[str] = MODELS, version: str = NEWEST) -> plans.Case:
    """A plan that breaks no rule, on one or two classes of nodes; the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(1000):
        found = _attempt(rng, models)
        if found is not None and is_legal(*found) and not version_violations(*found, version):
            return found
    raise AssertionError(f"seed {seed}: no legal plan in 1000 attempts")


def _attempt(rng: random.Random, models: Sequence[str]) -> plans.Case | None:
    return random_attempt(rng, [plans.few_experts(load_model(rng.choice(models)))], CHIPS)


def random_attempt(
    rng: random.Random, models: Sequence[ModelSpec], chips: Sequence[str], precision: Precision = "bf16"
) -> plans.Case | None:
    """A plan that may break rules, of one of the models on one or two of the chips; None where none was
    found."""
    model = rng.choice(models)
    chips_a_node = rng.choice([4, 8])
    tp = rng.choice([t for t in (1, 2, 4, 8) if t <= chips_a_node and tp_is_legal(model, t)])
    cp, dp, pp = rng.choice([1, 1, 1, 2]), rng.choice([1, 2, 3, 4, 8]), rng.choice([1, 2, 3, 4, 6, 8])
    if tp * cp * dp * pp > 96:
        return None
    chunks = rng.choice([1, 1, 1, 2]) if pp > 1 else 1
    layers = _split(rng, model.num_layers, pp * chunks)
    if layers is None:
        return None
    if chunks > 1 and rng.random() < 0.5:
        _empty_an_end(rng, layers)
    by_stage = [[layers[v * pp + s] for v in range(chunks)] for s in range(pp)]
    num_classes = rng.choice([1, 2]) if pp > 1 else 1
    border = rng.randint(1, pp - 1) if num_classes == 2 else pp
    node_class = [0] * border + [1] * (pp - border)
    size = tp * cp * dp
    nodes = [max(1, -(-node_class.count(c) * size // chips_a_node)) for c in range(num_classes)]
    names = rng.sample(chips, num_classes)
    cluster = ", ".join(f"{n}x{chips_a_node} {name}" for n, name in zip(nodes, names, strict=True))
    count = rng.choice([1, 2, 4]) * (pp if chunks > 1 else rng.choice([1, 2, 3]))
    batch = count * dp * rng.choice([1, 1, 2])
    ep = 1
    if model.moe is not None:
        ep = rng.choice(
            [e for e in (1, 2, 4, 8) if model.moe.num_experts % e == 0 and (tp * cp * dp) % e == 0]
        )
    sketch = plans.Sketch(
        by_stage,
        node_class,
        tensor_parallel=tp,
        context_parallel=cp,
        expert_parallel=ep,
        data_parallel=dp,
        num_microbatches=count,
        sequence_parallel=tp > 1 and (model.moe is not None or rng.random() < 0.7),
        recompute={s: _recompute(rng, by_stage[s]) for s in range(pp)},
    )
    problem, plan = plans.case(
        model, cluster, batch, min(2048, model.max_position_embeddings), sketch, precision
    )
    return problem, plan.model_copy(update={"dp_mode": rng.choice(["distopt", "distopt", "ddp"])})


def _split(rng: random.Random, layers: int, parts: int) -> list[int] | None:
    """Layers in uneven parts, none of them empty."""
    if parts > layers:
        return None
    cuts = sorted(rng.sample(range(1, layers), parts - 1))
    return [end - start for start, end in zip([0, *cuts], [*cuts, layers], strict=True)]


def _empty_an_end(rng: random.Random, layers: list[int]) -> None:
    """Leave the embedding, or the loss, a virtual stage to itself."""
    end, neighbour = rng.choice([(0, 1), (-1, -2)])
    layers[neighbour], layers[end] = layers[neighbour] + layers[end], 0


def _recompute(rng: random.Random, layers: list[int]) -> tuple[Recompute, int]:
    kind: Recompute = rng.choice(["none", "selective", "full"])
    return kind, rng.randint(1, max(layers)) if kind == "full" else 0
