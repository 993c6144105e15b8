"""Pipelines that may run side by side: what `formulations.replica_mix` chooses from.

Of each class alone the shapes that do most for their chips, with few stages and any data parallelism; and the
pipelines of plans at hand, whole and with a part of their replicas. The times are those of the rows of
`formulations.stage_selection` at a few numbers of micro-batches, with lines in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain

import numpy as np

from formulations.replica_mix import Template
from formulations.stage_selection_data import StageChoice, StageSelectionData, objective_ms
from formulations.stage_selection_tables import least_recompute, with_least_recompute
from planner.search.local import first_layers, improve_layers
from planner.search.meshes.neighbours import Place, most_stages
from planner.search.meshes.opener import MeshOpener
from planner.search.meshes.shapes import Batch

SIZES_OF_DEGREE = 2
"""Micro-batch sizes that are looked at with each tensor-parallel degree of a class."""
LONGER = (1, 2)
"""Numbers of stages of one class, in times of the fewest that fit."""
MOST_TEMPLATES = 80
"""Templates that are kept, those that do most for their chips."""


Kinds = dict[tuple[int, int, bool], tuple[float, list[tuple[int, int]]]]
"""By tensor parallelism, micro-batch size and split of the sequence: chip seconds of a layer and sequence,
and the batches and shapes of that kind."""


@dataclass(frozen=True)
class Candidate:
    """A template and the pipeline that it stands for."""

    place: Place
    choice: StageChoice
    template: Template


def list_candidates(opener: MeshOpener, seeds: Sequence[Place], like: Batch) -> list[Candidate]:
    """Templates that share what a whole plan shares: experts' degrees and the split of the sequence."""
    found: list[Candidate] = []
    kept: list[Candidate] = []
    seen: set[Place] = set()
    for place in chain(_parts_of(opener, seeds), _of_classes(opener, like)):
        if opener.clock.is_up:
            break
        if place in seen or opener.batches[place[0]].shared != like.shared:
            continue
        seen.add(place)
        candidate = _candidate(opener, place)
        if candidate is not None:
            (kept if place in seeds else found).append(candidate)
    chips = [node_class.num_chips for node_class in opener.problem.cluster.classes]

    def cost(candidate: Candidate) -> float:
        """Share of the cluster times time for each sequence."""
        template = candidate.template
        share = max(take / have for take, have in zip(template.chips, chips, strict=True))
        return share * template.times_ms[-1] / (len(template.times_ms) * template.sequences)

    return [*kept, *sorted(found, key=cost)[:MOST_TEMPLATES]]


def _of_classes(opener: MeshOpener, like: Batch) -> Iterator[Place]:
    """Pipelines of one shape on one class that share what `like` shares, from the fewest stages that fit."""
    longest = most_stages(opener.problem)
    for c, node_class in enumerate(opener.problem.cluster.classes):
        kinds: Kinds = {}
        for number, batch in enumerate(opener.batches):
            for k in np.flatnonzero(batch.node_class == c).tolist():
                shape = batch.shapes[k]
                cost = float(opener.bounds.layer_s[shape.choice, c]) * shape.num_chips / batch.sequences
                kind = (
                    shape.tensor_parallel,
                    batch.sequences // shape.data_parallel,
                    batch.sequence_parallel,
                )
                best, members = kinds.get(kind, (np.inf, []))
                kinds[kind] = (min(best, cost), [*members, (number, k)])
        for members in _best_of_degrees(kinds):
            for number, k in members:
                if opener.batches[number].shared != like.shared:
                    continue
                room = node_class.num_chips // opener.batches[number].shapes[k].num_chips
                fewest = _fewest_stages(opener, number, k, min(room, longest))
                for times in LONGER if fewest else ():
                    if fewest * times <= min(room, longest):
                        yield number, (k,) * (fewest * times)


def _best_of_degrees(kinds: Kinds) -> list[list[tuple[int, int]]]:
    """Members of the cheapest kinds of each tensor-parallel degree."""
    seen: Counter[int] = Counter()
    chosen = []
    for (tp, _, _), (_, members) in sorted(kinds.items(), key=lambda item: (item[1][0], item[0])):
        if seen[tp] < SIZES_OF_DEGREE:
            seen[tp] += 1
            chosen.append(members)
    return chosen


def _fewest_stages(opener: MeshOpener, number: int, k: int, most: int) -> int:
    """Fewest stages of a shape that hold the model; 0 where none do, or none were found in time."""
    for p in range(1, most + 1):
        if opener.clock.is_up:
            return 0
        data = opener.meshes.data(number, (k,) * p)
        if first_layers(data, least_recompute(data)) is not None:
            return p
    return 0


def _parts_of(opener: MeshOpener, seeds: Sequence[Place]) -> Iterator[Place]:
    """Pipelines of plans at hand, with all of their replicas or fewer."""
    for number, order in seeds:
        batch = opener.batches[number]
        yield number, order
        keys = [(batch.shapes[k].node_class, batch.shapes[k].tensor_parallel) for k in order]
        degrees = [batch.shapes[k].data_parallel for k in order]
        for other, smaller in enumerate(opener.batches):
            share = Fraction(smaller.sequences, batch.sequences)
            if share >= 1 or any(d * share != int(d * share) for d in degrees):
                continue
            index = {
                (shape.node_class, shape.tensor_parallel, shape.data_parallel): k
                for k, shape in enumerate(smaller.shapes)
            }
            wanted = [(*key, int(d * share)) for key, d in zip(keys, degrees, strict=True)]
            if all(key in index for key in wanted):
                yield other, tuple(index[key] for key in wanted)


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
