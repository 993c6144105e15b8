"""Plans written by hand, each for one thing that a launch directory must get right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from planner.data.chip import Precision
from planner.data.load import build_problem, load_model
from planner.data.model_spec import ModelSpec
from planner.data.plan import Plan, Recompute, Replica, Stage
from planner.data.problem import Problem

Case = tuple[Problem, Plan]


@dataclass(frozen=True)
class Sketch:
    """The decisions of a plan; hosts and layer numbers follow from them."""

    layers: Sequence[Sequence[int]]
    """Layers of every virtual stage of every stage."""
    node_class: Sequence[int]
    """Index of the node class of every stage."""
    tensor_parallel: int = 1
    context_parallel: int = 1
    expert_parallel: int = 1
    data_parallel: int = 1
    num_microbatches: int = 2
    sequence_parallel: bool = False
    recompute: dict[int, tuple[Recompute, int]] = field(default_factory=dict)
    """Recomputation of the stages that have any."""

    def plan(self, problem: Problem) -> Plan:
        """The plan, its stages packed on the hosts of their classes in order."""
        size = self.tensor_parallel * self.context_parallel * self.data_parallel
        chunks = len(self.layers[0])
        in_order = [stage[v] for v in range(chunks) for stage in self.layers]
        ends = list(accumulate(in_order))
        used = [0] * len(problem.cluster.classes)
        stages = []
        for s, (counts, c) in enumerate(zip(self.layers, self.node_class, strict=True)):
            node_class = problem.cluster.classes[c]
            first, used[c] = used[c], used[c] + size
            hosts = problem.cluster.hosts_of(c)[
                first // node_class.chips_per_node : -(-used[c] // node_class.chips_per_node)
            ]
            kind, count = self.recompute.get(s, ("none", 0))
            position = [v * len(self.layers) + s for v in range(chunks)]
            ranges = tuple((ends[i] - n, ends[i] - 1) for i, n in zip(position, counts, strict=True))
            stages.append(
                Stage(
                    layers=ranges if chunks > 1 else ranges[0],
                    chip=node_class.chip,
                    node_class=node_class.name,
                    hosts=hosts,
                    tensor_parallel=self.tensor_parallel,
                    data_parallel=self.data_parallel,
                    recompute=kind,
                    recompute_layers=count,
                )
            )
        return Plan(
            target="megatron-lm",
            tensor_parallel=self.tensor_parallel,
            context_parallel=self.context_parallel,
            expert_parallel=self.expert_parallel,
            data_parallel=self.data_parallel,
            microbatch_size=problem.workload.global_batch_size
            // (self.data_parallel * self.num_microbatches),
            num_microbatches=self.num_microbatches,
            virtual_stages=chunks,
            sequence_parallel=self.sequence_parallel,
            stages=tuple(stages),
        )


def case(
    model: str | ModelSpec,
    cluster: str,
    batch: int,
    seq_length: int,
    sketch: Sketch,
    precision: Precision = "bf16",
) -> Case:
    """A problem and the plan of a sketch."""
    problem = build_problem(
        cluster=cluster,
        model=model,
        seq_length=seq_length,
        global_batch_size=batch,
        precision=precision,
    )
    return problem, sketch.plan(problem)


def uniform(chip: str = "h100-sxm-80gb") -> Case:
    """Two equal stages on two equal nodes."""
    sketch = Sketch(
        [[16], [16]], [0, 0], tensor_parallel=2, data_parallel=4, num_microbatches=2, sequence_parallel=True
    )
    return case("llama3-8b", f"2x8 {chip}", 8, 8192, sketch)


def mixed_128() -> Case:
    """128 ranks, uneven stages on two kinds of chips, each recomputing in its own way."""
    sketch = Sketch(
        [[26], [28], [13], [13]],
        [0, 0, 1, 1],
        tensor_parallel=8,
        data_parallel=4,
        num_microbatches=4,
        sequence_parallel=True,
        recompute={0: ("full", 4), 2: ("selective", 0), 3: ("full", 13)},
    )
    return case("llama3-70b", "8x8 h100-sxm-80gb, 8x8 a100-sxm-80gb", 16, 8192, sketch)


def stages_share_a_host() -> Case:
    """Stages of half a node that recompute differently, and a node with fewer chips."""
    sketch = Sketch(
        [[13], [12], [7]],
        [0, 0, 1],
        tensor_parallel=2,
        data_parallel=2,
        num_microbatches=3,
        sequence_parallel=True,
        recompute={0: ("full", 5), 2: ("selective", 0)},
    )
    return case("llama3-8b", "1x8 h100-sxm-80gb, 1x4 a100-sxm-80gb", 6, 4096, sketch)


def ranks_of_a_stage_on_two_classes() -> Case:
    """The second stage has one of its ranks on a slower chip, which leaves its host most of its chips."""
    sketch = Sketch(
        [[20], [12]],
        [0, 1],
        tensor_parallel=2,
        data_parallel=4,
        num_microbatches=3,
        sequence_parallel=True,
        recompute={1: ("selective", 0)},
    )
    problem, plan = case("llama3-8b", "2x8 h100-sxm-80gb, 1x8 a100-sxm-80gb", 12, 4096, sketch)
    (slow,), (_, fast) = (problem.cluster.hosts_of(c) for c in (1, 0))
    classes = problem.cluster.classes
    replicas = tuple(
        Replica(node_class=classes[c].name, chip=classes[c].chip, hosts=(host,), tensor_parallel=2)
        for c, host in ((1, slow), (0, fast), (0, fast), (0, fast))
    )
    mixed = plan.stages[1].model_copy(update={"hosts": (slow, fast), "replicas": replicas})
    checked = plan.model_copy(update={"stages": (plan.stages[0], mixed)})
    return problem, Plan.model_validate(checked.model_dump())


def virtual_stages() -> Case:
    """Two uneven chunks a rank."""
    sketch = Sketch(
        [[9, 8], [8, 7]],
        [0, 0],
        tensor_parallel=4,
        data_parallel=2,
        num_microbatches=4,
        sequence_parallel=True,
        recompute={1: ("full", 3)},
    )
    return case("llama2-7b", "2x8 a100-sxm-80gb", 8, 4096, sketch)


def biases_and_learned_positions() -> Case:
    """OPT: biases, learned positions, tied embeddings, layer norms; fp16 on chips without bf16."""
    sketch = Sketch([[15], [9]], [0, 1], data_parallel=8, num_microbatches=2)
    return case("sailor-opt-350m", "2x4 a100-sxm-40gb, 1x8 v100-sxm-16gb", 16, 2048, sketch, "fp16")


def experts() -> Case:
    """Experts over the ranks of a stage."""
    sketch = Sketch([[17], [15]], [0, 0], data_parallel=8, expert_parallel=8, num_microbatches=2)
    return case("mixtral-8x7b", "2x8 h200-sxm-141gb", 16, 4096, sketch)


def replicas_outermost() -> Case:
    """Rank order with each replica on neighbouring ranks."""
    sketch = Sketch(
        [[16], [16]],
        [0, 0],
        tensor_parallel=2,
        data_parallel=4,
        num_microbatches=2,
        sequence_parallel=True,
    )
    problem, plan = case("llama3-8b", "2x8 h100-sxm-80gb", 8, 8192, sketch)
    hosts = problem.cluster.hosts_of(0)
    stages = tuple(stage.model_copy(update={"hosts": hosts}) for stage in plan.stages)
    return problem, plan.model_copy(update={"rank_order": "tp-cp-ep-pp-dp", "stages": stages})


def context_parallel() -> Case:
    """Sequences split over ranks, one stage."""
    sketch = Sketch(
        [[32]],
        [0],
        tensor_parallel=2,
        context_parallel=2,
        data_parallel=2,
        num_microbatches=1,
        sequence_parallel=True,
    )
    return case("llama3-8b", "1x8 h100-sxm-80gb", 2, 8192, sketch)


def latent_attention_and_prediction() -> Case:
    """A short DeepSeek-V3: latent attention, a dense layer before the experts, multi-token prediction,
    experts recomputed."""
    model = load_model("deepseek-v3")
    assert model.moe is not None
    short = model.model_copy(
        update={
            "id": "short-deepseek",
            "num_layers": 5,
            "num_attention_heads": 16,
            "num_query_groups": 16,
            "moe": model.moe.model_copy(update={"num_experts": 8, "top_k": 2, "first_dense_layers": 1}),
            "constants": model.constants.model_copy(
                update={"expert_groups": 4, "groups_visited": 2, "group_experts": 1}
            ),
            "published_params": None,
        }
    )
    sketch = Sketch(
        [[3], [2]],
        [0, 0],
        tensor_parallel=2,
        expert_parallel=4,
        data_parallel=4,
        num_microbatches=2,
        sequence_parallel=True,
        recompute={0: ("selective", 0), 1: ("selective", 0)},
    )
    problem, plan = case(short, "2x8 h100-sxm-80gb", 8, 4096, sketch)
    return problem, plan.model_copy(update={"recompute_modules": ("core_attn", "moe")})


def sharded_parameters() -> Case:
    """Parameters, gradients and optimizer sharded by Megatron-FSDP, in its own number formats and buckets."""
    sketch = Sketch([[32]], [0], data_parallel=16)
    problem, plan = case("llama3-8b", "2x8 h100-sxm-80gb", 32, 4096, sketch)
    stack = problem.stack.model_copy(update={"scattered_gradient_bytes": 4.0})
    return problem.model_copy(update={"stack": stack}), plan.model_copy(update={"dp_mode": "fsdp"})


def hybrid_layers(virtual: bool = False, model: str = "nemotron-h-8b", expert_parallel: int = 1) -> Case:
    """Mamba-2, attention and feed-forward or expert layers, more of them on the faster chips."""
    more = load_model(model).num_layers - 52
    counts = [[7, 11], [19, 15 + more]] if virtual else [[15], [37 + more]]
    recompute: dict[int, tuple[Recompute, int]] = {0: ("full", 5)}
    sketch = Sketch(
        counts,
        [1, 0],
        tensor_parallel=2,
        data_parallel=4,
        expert_parallel=expert_parallel,
        num_microbatches=4,
        sequence_parallel=expert_parallel > 1,
        recompute=recompute,
    )
    return case(model, "1x8 h100-sxm-80gb, 1x8 a100-sxm-80gb", 16, 4096, sketch)


def few_experts(model: ModelSpec) -> ModelSpec:
    """A model with 32 experts at most, which Megatron-LM builds one by one on the CPU."""
    if model.moe is None or model.moe.num_experts <= 128:
        return model
    moe = model.moe.model_copy(update={"num_experts": 32})
    return model.model_copy(update={"id": f"{model.id}-few-experts", "moe": moe})


def linear_layers(virtual: bool = False, context_parallel: int = 1, *, few: bool = False) -> Case:
    """Linear and full attention with experts, more layers on the faster chips."""
    model = load_model("qwen3-next-80b-a3b")
    counts = [[7, 8], [20, 13]] if virtual else [[15], [33]]
    sketch = Sketch(
        counts,
        [1, 0],
        tensor_parallel=2,
        context_parallel=context_parallel,
        data_parallel=4 // context_parallel,
        expert_parallel=8,
        num_microbatches=4,
        sequence_parallel=True,
        recompute={0: ("full", 5)},
    )
    cluster = "1x8 h100-sxm-80gb, 1x8 a100-sxm-80gb"
    return case(few_experts(model) if few else model, cluster, 16, 4096, sketch)


HYBRIDS = [("nemotron-h-8b", 1), ("nemotron-3-nano-30b-a3b", 8), ("nemotron-3-super-120b-a12b", 4)]
"""Models with Mamba layers, and degrees of expert parallelism for `hybrid_layers`."""


def without_recomputation(plan: Plan) -> Plan:
    """The same plan, keeping all activations."""
    kept = {"recompute": "none", "recompute_layers": 0}
    return plan.model_copy(update={"stages": tuple(s.model_copy(update=kept) for s in plan.stages)})


def two_stages(model: str | ModelSpec) -> Case:
    """Any shipped model, or a change of one, halved."""
    spec = load_model(model) if isinstance(model, str) else model
    half = spec.num_layers // 2
    return in_stages(spec, [half, spec.num_layers - half])


def in_stages(spec: ModelSpec, layers: Sequence[int]) -> Case:
    """A model with so many layers on each stage."""
    sketch = Sketch(
        [[count] for count in layers],
        [0] * len(layers),
        tensor_parallel=2,
        data_parallel=8,
        expert_parallel=8 if spec.moe is not None else 1,
        num_microbatches=2,
        sequence_parallel=True,
    )
    return case(spec, "4x8 h100-sxm-80gb", 16, min(1024, spec.max_position_embeddings), sketch)


CASES: dict[str, Callable[[], Case]] = {
    function.__name__: function
    for function in (
        uniform,
        mixed_128,
        stages_share_a_host,
        ranks_of_a_stage_on_two_classes,
        virtual_stages,
        biases_and_learned_positions,
        experts,
        replicas_outermost,
        context_parallel,
        latent_attention_and_prediction,
    )
}

ALL = CASES | {"sharded_parameters": sharded_parameters}
"""With a plan that Megatron-LM reads on a CPU but cannot run there."""


def prediction_apart() -> Case:
    """Prediction of further tokens on a stage of its own, between the last layers and the loss."""
    sketch = Sketch(
        [[23], [23], [0], [0]],
        [0, 0, 0, 0],
        tensor_parallel=2,
        expert_parallel=4,
        data_parallel=4,
        num_microbatches=8,
        sequence_parallel=True,
    )
    problem, plan = case("glm-4.5-air", "4x8 h200-sxm-141gb", 32, 2048, sketch)
    return problem, plan.model_copy(update={"prediction_stage": 2})
