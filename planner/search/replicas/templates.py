"""Pipelines that may run side by side: what `formulations.replica_mix` chooses from.

The chains that bounds were found with, pipelines of plans at hand, and chains of one shape, each with any
number of replicas. The times are those of the rows of `formulations.stage_selection` at a few numbers of
micro-batches, with lines in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from formulations.replica_mix import ReplicaMix, Template
from formulations.stage_selection_data import StageChoice, StageSelectionData, objective_ms
from formulations.stage_selection_tables import least_recompute, with_least_recompute
from planner.data.plan import Pipeline, Plan
from planner.data.problem import Problem
from planner.search.assemble import hosts_needed, hosts_of_stages
from planner.search.heuristics.local import first_layers, improve_layers
from planner.search.meshes.assemble import assemble_meshes
from planner.search.meshes.neighbours import Place, most_stages, sequence_of
from planner.search.meshes.opener import MeshOpener
from planner.search.replicas.boxes import Column
from planner.search.replicas.chains import Chains
from planner.search.replicas.mixes import Mixes
from planner.search.replicas.space import Shared

MOST_TEMPLATES = 150
"""Templates that are kept, those that do most for their chips."""
SIZES_OF_DEGREE = 2
"""Micro-batch sizes of chains that are all alike, beside one that divides the batch."""
MOST_CHAINS = 40
"""Chains that templates are made of, those found last first."""


@dataclass(frozen=True)
class Candidate:
    """A template and the pipeline that it stands for."""

    place: Place
    choice: StageChoice
    template: Template


Chain = tuple[int, tuple[tuple[int, int], ...]]
"""Micro-batch size, and class and tensor parallelism of every stage."""


def chains_of(chains: Chains, columns: Sequence[Column]) -> list[Chain]:
    """Chains of columns, those found last first."""
    found: dict[Chain, None] = {}
    for column in reversed(columns):
        stages = tuple((int(chains.node_class[i]), int(chains.tensor_parallel[i])) for i in column.items)
        found[column.microbatch_size, stages] = None
    return list(found)


def uniform_chains(opener: MeshOpener, shared: Shared) -> list[Chain]:
    """Chains of stages that are all alike, of the micro-batch sizes that suit each class and degree best."""
    found: list[Chain] = []
    costs: dict[tuple[int, int], list[tuple[float, int, int, int]]] = {}
    for number, batch in enumerate(opener.batches):
        if batch.shared != shared:
            continue
        for shape in batch.shapes:
            size = batch.sequences // shape.data_parallel
            cost = float(opener.bounds.layer_s[shape.choice, shape.node_class]) / size
            entry = (cost, size, -shape.data_parallel, number)
            costs.setdefault((shape.node_class, shape.tensor_parallel), []).append(entry)
    for (c, tp), entries in sorted(costs.items()):
        # Of each size the most replicas, which shard the optimizer most, fit on the fewest stages.
        sizes: dict[int, tuple[float, int, int, int]] = {}
        for entry in sorted(entries):
            sizes.setdefault(entry[1], entry)
        ranked = sorted(sizes.values())
        divide = [entry for entry in ranked if opener.problem.workload.global_batch_size % entry[1] == 0]
        for _, size, _, number in dict.fromkeys((*ranked[:SIZES_OF_DEGREE], *divide[:1])):
            shapes = opener.batches[number].shapes
            k = next(k for k, s in enumerate(shapes) if (s.node_class, s.tensor_parallel) == (c, tp))
            chips = opener.problem.cluster.classes[c].num_chips
            most = min(chips // tp, most_stages(opener.problem))
            fewest = _fewest_stages(opener, number, k, most)
            for stages in sorted({fewest, fewest + 1, 2 * fewest}) if fewest else ():
                if stages <= most:
                    found.append((size, ((c, tp),) * stages))
    return found


def _fewest_stages(opener: MeshOpener, number: int, k: int, most: int) -> int:
    """Fewest stages of a shape that hold the model; 0 where none do, or none were found in time."""
    for p in range(1, most + 1):
        if opener.clock.is_up:
            return 0
        data = opener.meshes.data(number, (k,) * p)
        if first_layers(data, least_recompute(data)) is not None:
            return p
    return 0


def chain_of_place(opener: MeshOpener, place: Place) -> Chain:
    """One replica of a pipeline."""
    batch = opener.batches[place[0]]
    shapes = [batch.shapes[k] for k in place[1]]
    return batch.sequences // shapes[0].data_parallel, tuple(
        (shape.node_class, shape.tensor_parallel) for shape in shapes
    )


def chains_by_share(
    opener: MeshOpener, plans: Sequence[Plan], mixes: Mixes
) -> Iterator[tuple[list[Chain], Shared]]:
    """By what all pipelines share: chains of plans at hand, those of bounds, and uniform ones."""
    known = [sequence_of(opener.problem, opener.batches, plan) for plan in plans if not plan.pipelines]
    places = [place for place in known if place is not None and opener.is_allowed(*place)]
    for shared in dict.fromkeys(batch.shared for batch in opener.batches):
        own = [chain_of_place(opener, at) for at in places if opener.batches[at[0]].shared == shared]
        bounded = mixes.parts.get(shared, mixes)
        found = [*own, *chains_of(bounded.chains, bounded.columns), *uniform_chains(opener, shared)]
        yield list(dict.fromkeys(found)), shared


def list_candidates(opener: MeshOpener, chains: Sequence[Chain], shared: Shared) -> list[Candidate]:
    """Templates of chains with every number of replicas that the cluster holds, the best for their chips."""
    found: list[Candidate] = []
    index = _shapes_of_batches(opener, shared)
    for size, stages in chains[:MOST_CHAINS]:
        for (of_size, _), (number, shape_of) in index.items():
            if opener.clock.is_up:
                break
            if of_size != size or any(stage not in shape_of for stage in stages):
                continue
            candidate = _candidate(opener, (number, tuple(shape_of[stage] for stage in stages)))
            if candidate is not None:
                found.append(candidate)
    chips = [node_class.num_chips for node_class in opener.problem.cluster.classes]

    def cost(candidate: Candidate) -> float:
        """Share of the cluster times time for each sequence."""
        template = candidate.template
        share = max(take / have for take, have in zip(template.chips, chips, strict=True))
        return share * template.times_ms[-1] / (len(template.times_ms) * template.sequences)

    return sorted(found, key=cost)[:MOST_TEMPLATES]


def _shapes_of_batches(
    opener: MeshOpener, shared: Shared
) -> dict[tuple[int, int], tuple[int, dict[tuple[int, int], int]]]:
    """By micro-batch size and replicas: number of the batch, its shapes by class and tensor degree."""
    index = {}
    for number, batch in enumerate(opener.batches):
        if batch.shared == shared:
            replicas = batch.shapes[0].data_parallel
            shapes = {(shape.node_class, shape.tensor_parallel): k for k, shape in enumerate(batch.shapes)}
            index[batch.sequences // replicas, replicas] = number, shapes
    return index


def _candidate(opener: MeshOpener, place: Place) -> Candidate | None:
    """The template of a pipeline with a good split of its layers; None where none fits."""
    number, order = place
    batch = opener.batches[number]
    if len({batch.shapes[k].data_parallel for k in order}) > 1 or not opener.is_allowed(number, order):
        return None
    data = opener.meshes.data(number, order)
    table = least_recompute(data)
    layers = first_layers(data, table)
    if layers is None:
        return None
    layers, _ = improve_layers(data, table, layers)
    choice = with_least_recompute(table, tuple(int(n) for n in layers))
    if choice is None:
        return None
    chips = np.zeros(len(opener.problem.cluster.classes), dtype=np.int64)
    np.add.at(chips, batch.node_class[list(order)], batch.num_chips[list(order)])
    return Candidate(place, choice, Template(tuple(chips.tolist()), batch.sequences, _times_ms(data, choice)))


def _times_ms(data: StageSelectionData, choice: StageChoice) -> tuple[float, ...]:
    """Time of 1 .. m micro-batches: at a few of them, and on lines in between."""
    most, p = data.num_microbatches, data.num_stages
    at = sorted({m for m in (1, 2, p, 2 * p, 4 * p, most) if m <= most})
    times = [objective_ms(replace(data, num_microbatches=m), choice) for m in at]
    counts = np.arange(1, most + 1)
    return tuple(np.maximum.accumulate(np.interp(counts, at, times)).tolist())


def assemble_mix(
    problem: Problem, opener: MeshOpener, candidates: Sequence[Candidate], mix: ReplicaMix
) -> Plan | None:
    """The plan of a mix, its copies class by class along the hosts; None where the hosts do not go round."""
    copies: list[tuple[Place, Candidate, int]] = []
    for candidate, count, microbatches in zip(candidates, mix.copies, mix.microbatches, strict=True):
        running = min(count, microbatches)
        for i in range(running):
            share = microbatches // running + (i < microbatches % running)
            copies.append((candidate.place, candidate, share))
    copies.sort(key=lambda copy: _along_hosts(opener, copy[0]))
    parts = [
        assemble_meshes(problem, opener.batches[number], order, candidate.choice)
        for (number, order), candidate, _ in copies
    ]
    shapes = [opener.batches[number].shapes[k] for (number, order), _, _ in copies for k in order]
    classes, sizes = [shape.node_class for shape in shapes], [shape.num_chips for shape in shapes]
    per_node = [node_class.chips_per_node for node_class in problem.cluster.classes]
    needed = hosts_needed(classes, sizes, per_node)
    if not parts or any(n > problem.cluster.classes[c].num_nodes for c, n in needed.items()):
        return None
    hosts = hosts_of_stages(problem, classes, sizes)
    stages = [stage for part in parts for stage in part.stages]
    placed = tuple(s.model_copy(update={"hosts": h}) for s, h in zip(stages, hosts, strict=True))
    pipelines = tuple(
        Pipeline(num_stages=len(part.stages), microbatch_size=part.microbatch_size, num_microbatches=share)
        for part, (_, _, share) in zip(parts, copies, strict=True)
    )
    first = parts[0].model_copy(update={"num_microbatches": copies[0][2], "stages": placed})
    split = any(part.sequence_parallel for part in parts)
    return first.model_copy(
        update={"pipelines": pipelines if len(parts) > 1 else None, "sequence_parallel": split}
    )


def _along_hosts(opener: MeshOpener, place: Place) -> tuple[list[int], list[int]]:
    """Copies on the same classes stand together, the widest tensor parallelism first."""
    shapes = [opener.batches[place[0]].shapes[k] for k in place[1]]
    return [shape.node_class for shape in shapes], [-shape.tensor_parallel for shape in shapes]
