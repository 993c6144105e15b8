"""The way back: a Megatron-LM launch script or argument list, as the problem and plan that it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.data.cluster import Cluster
from planner.data.load import build_problem, load_cluster
from planner.data.plan import DpMode, Plan, Stage
from planner.data.problem import Problem, TargetName
from planner.data.stack import SoftwareStack
from planner.errors import InstanceError
from planner.launchers.forms.rank_arguments import arguments_of_ranks
from planner.launchers.megatron.plan_arguments import GROUP_SIZE
from planner.launchers.read.back import ReadBack
from planner.launchers.read.bridge import megatron_words
from planner.launchers.read.flags import Flags, differing, split_words
from planner.launchers.read.layout import prediction_stage
from planner.launchers.read.model import read_model
from planner.launchers.read.other import same_cost_other_network
from planner.launchers.read.refusals import attention_refusals, refusals_of
from planner.launchers.read.run_script import NodeStart, run_as_nodes
from planner.launchers.read.software import read_precision, read_recompute_modules, read_stack
from planner.launchers.read.stages import is_selective, read_stages
from planner.launchers.read.warnings import device_connections, warnings_of

MAY_DIFFER = frozenset(
    {
        "--recompute-activations",
        "--recompute-granularity",
        "--recompute-method",
        "--recompute-num-layers",
        "--recompute-modules",
    }
)
"""Flags that may differ between stages without harm, and that a plan can tell apart."""


_STRATEGIES: dict[str, DpMode] = {"no_shard": "ddp", "optim": "distopt", "optim_grads": "zero2"}
"""What Megatron-FSDP shards, by its names; anything else is all of it."""


def read_script(
    script: str | Path,
    cluster: str | Cluster,
    *,
    num_nodes: int | None = None,
    stack: str = "megatron-core",
    words: Sequence[str] = (),
) -> ReadBack:
    """Run a launch script with recorders in place of its launchers, and read what it starts.

    Parameters
    ----------
    cluster
        The chips that it runs on; node k of the script is the cluster's k-th node, class by class, unless
        `hosts.txt` beside the script names them.
    num_nodes
        Nodes to run it as; what the script itself says where absent.
    words
        What follows the script on its command line.

    Raises
    ------
    InstanceError
        Where the script starts nothing, or something in it cannot be read back.
    """
    path = Path(script)
    if not path.is_file():
        raise InstanceError("no such file", str(path))
    chosen = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    notes: list[str] = []
    started = run_as_nodes(path, num_nodes, _chips_of_nodes(chosen), words, notes)
    target: TargetName = "megatron-lm"
    if started[0][0].arguments[:1] and started[0][0].arguments[0].endswith("overrides.txt"):
        target, started = "megatron-bridge", [(_of_bridge(start), count) for start, count in started]
    ranks: list[tuple[str, ...]] = []
    hosts: list[int] = []
    for node, (start, count) in enumerate(started):
        ranks += arguments_of_ranks(start, len(ranks), count, str(path))
        hosts += [node] * count
    back = assemble(ranks, hosts, cluster, stack, str(path), path.parent / "hosts.txt", target)
    connections = {start.connections for start, _ in started}
    return replace(
        back,
        notes=tuple(dict.fromkeys((*notes, *back.notes))),
        warnings=(*back.warnings, *device_connections(back.problem, back.plan, connections)),
    )


def _chips_of_nodes(cluster: Cluster) -> list[int]:
    return [c.chips_per_node for c in cluster.classes for _ in range(c.num_nodes)]


def _of_bridge(start: NodeStart) -> NodeStart:
    """What Megatron-LM would be told where Megatron-Bridge is given a file of overrides."""
    return replace(start, arguments=megatron_words(Path(start.entry_point), start.arguments))


def read_arguments(
    text: str, cluster: str | Cluster, *, where: str, stack: str = "megatron-core"
) -> ReadBack:
    """Read an argument list, as one would hand it to `pretrain_gpt.py`, on all chips of a cluster.

    Raises
    ------
    InstanceError
        Where something in it cannot be read back.
    """
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    words = tuple(split_words(" ".join(line.rstrip().removesuffix("\\") for line in lines), where))
    chosen = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    hosts = [node for node, chips in enumerate(_chips_of_nodes(chosen)) for _ in range(chips)]
    return assemble([words] * len(hosts), hosts, chosen, stack, where, None)


def read_problem(
    flags: Flags, cluster: str | Cluster, stack: str, notes: list[str], gradient_ranks: int = 1
) -> Problem:
    """Everything but the plan."""
    seq_length = flags.number("--seq-length")
    problem = build_problem(
        cluster=cluster,
        model=read_model(flags, notes),
        seq_length=seq_length,
        global_batch_size=flags.number("--global-batch-size", 1),
        precision=read_precision(flags),
        stack=stack,
    )
    workload = problem.workload.model_copy(update={"train_iters": flags.number("--train-iters", 500_000)})
    read = {
        "workload": workload,
        "stack": read_stack(flags, problem.stack, notes, gradient_ranks),
        "name": Path(flags.where).stem,
    }
    return problem.model_copy(update=read)


def assemble(
    ranks: list[tuple[str, ...]],
    node_of_rank: list[int],
    cluster: str | Cluster,
    stack: str,
    where: str,
    hosts_file: Path | None,
    target: TargetName = "megatron-lm",
) -> ReadBack:
    """The command lines of all ranks as problem and plan.

    Parameters
    ----------
    hosts_file
        Names of the nodes, the first word of each line, where they are hosts of the cluster.

    Raises
    ------
    InstanceError
        Where ranks differ in what Megatron-LM does not bear, or something cannot be read back.
    """
    lines = {words: Flags(words, where) for words in dict.fromkeys(ranks)}
    flags = lines[ranks[0]]
    torn = differing(lines.values()) - MAY_DIFFER
    if torn:
        raise InstanceError(
            f"ranks differ in {', '.join(sorted(torn))}, which Megatron-LM does not bear", where
        )
    notes: list[str] = []
    shape = _shape(flags, len(ranks), where)
    gradient_ranks = shape["data_parallel"] * shape["context_parallel"]
    problem = read_problem(flags, cluster, stack, notes, gradient_ranks)
    if "--global-batch-size" not in flags:
        batch = shape["microbatch_size"] * shape["data_parallel"]
        notes.append(f"global batch of {batch}, one micro-batch a replica; no --global-batch-size is given")
        problem = problem.model_copy(
            update={"workload": problem.workload.model_copy(update={"global_batch_size": batch})}
        )
    per_step = shape["microbatch_size"] * shape["data_parallel"]
    names = host_names(problem.cluster, node_of_rank[-1] + 1, hosts_file, where, notes)
    fields = plan_fields(flags, lines.values(), problem.stack, notes)
    if shape["tensor_parallel"] == 1:  # Megatron-LM's parser switches it off
        fields["sequence_parallel"] = False
    host_of_rank = [names[node] for node in node_of_rank]
    stages = read_stages(problem, flags, lines, ranks, host_of_rank, shape, fields["rank_order"], where)
    plan = Plan(
        target=target,
        **shape,
        num_microbatches=max(1, problem.workload.global_batch_size // per_step),
        virtual_stages=len(stages[0].chunks),
        microbatch_group_size=_group_size(flags, stages),
        prediction_stage=prediction_stage(flags),
        stages=stages,
        **fields,
    )
    unknown = dict.fromkeys(flag for line in lines.values() for flag in line.unknown)
    said = [refusal for line in lines.values() for refusal in refusals_of(line)]
    return ReadBack(
        problem,
        plan,
        tuple(unknown),
        tuple(dict.fromkeys(notes)),
        warnings_of(problem, plan, flags),
        tuple(dict.fromkeys([*said, *attention_refusals(problem, plan, flags)])),
        tuple(same_cost_other_network(flags)),
    )


def plan_fields(
    flags: Flags, lines: Iterable[Flags], stack: SoftwareStack, notes: list[str]
) -> dict[str, Any]:
    """Decisions that are no degree and no place, by the plan's names of them.

    Parameters
    ----------
    lines
        All command lines of the run; the first that recomputes selectively says which modules.
    """
    selective = next((line for line in lines if is_selective(line)), None)
    return {
        "sequence_parallel": "--sequence-parallel" in flags,
        "dp_mode": _dp_mode(flags),
        "recompute_modules": None if selective is None else read_recompute_modules(selective, stack, notes),
        "rank_order": "tp-cp-ep-pp-dp" if "--use-tp-pp-dp-mapping" in flags else "tp-cp-ep-dp-pp",
    }


def _shape(flags: Flags, world_size: int, where: str) -> dict[str, int]:
    """Degrees and micro-batch of the plan, by its field names."""
    tp = flags.number("--tensor-model-parallel-size", 1)
    pp = flags.number("--pipeline-model-parallel-size", 1)
    cp = flags.number("--context-parallel-size", 1)
    if min(tp, pp, cp) < 1 or world_size % (tp * pp * cp):
        raise InstanceError(
            f"{world_size} ranks are no multiple of tensor {tp} x pipeline {pp} x context {cp} parallel",
            where,
        )
    return {
        "tensor_parallel": tp,
        "context_parallel": cp,
        "expert_parallel": flags.number("--expert-model-parallel-size", 1),
        "expert_tensor_parallel": flags.number("--expert-tensor-parallel-size", tp),
        "data_parallel": world_size // (tp * pp * cp),
        "microbatch_size": flags.number("--micro-batch-size"),
    }


def _group_size(flags: Flags, stages: Sequence[Stage]) -> int | None:
    """Micro-batches of a group of interleaving; None where they are as many as the stages."""
    size = flags.number(GROUP_SIZE, len(stages))
    return None if size == len(stages) or len(stages[0].chunks) == 1 else size


def _dp_mode(flags: Flags) -> DpMode:
    if "--use-megatron-fsdp" in flags or "--use-custom-fsdp" in flags:
        return _STRATEGIES.get(flags.text("--data-parallel-sharding-strategy", "no_shard"), "fsdp")
    zero_stage = flags.number("--zero-stage", 0, least=0)
    if "--use-torch-fsdp2" in flags or zero_stage == 3:
        return "fsdp"
    if zero_stage == 2:
        return "zero2"
    return "distopt" if "--use-distributed-optimizer" in flags else "ddp"


def host_names(
    cluster: Cluster, num_nodes: int, hosts_file: Path | None, where: str, notes: list[str]
) -> list[str]:
    """Host of every node of the script.

    Raises
    ------
    InstanceError
        Where the cluster has fewer nodes.
    """
    known = [host for i in range(len(cluster.classes)) for host in cluster.hosts_of(i)]
    if hosts_file is not None and hosts_file.is_file():
        lines = hosts_file.read_text("utf-8", errors="replace").splitlines()
        listed = [line.split()[0] for line in lines if line.split()]
        if len(listed) == num_nodes and set(listed) <= set(known):
            return listed
    if num_nodes > len(known):
        raise InstanceError(f"runs on {num_nodes} nodes, the cluster has {len(known)}", where)
    if len(cluster.classes) > 1:
        notes.append(
            "nodes taken in the order of the cluster's classes: "
            + ", ".join(f"{c.num_nodes} x {c.chip}" for c in cluster.classes)
        )
    return known[:num_nodes]
