"""Pipelines told apart by their ends, where both of these hold the embedding.

FlagScale pairs the ranks of first and last stage that hold the same part of such weights
(`planner.search.meshes.shapes.leads_to_its_end`): both ends have one tensor parallelism t, the data
parallelism of one divides that of the other, and with d the lesser of the two every stage between has a
multiple of t and a multiple of d. So each pipeline belongs to one t, and there to one d with one of

    the first stage has d replicas, the last one a multiple of d
    the last stage has d replicas, the first one more, a multiple of d

Walks know of neighbours alone and let the ends be anything: with stages of many chips at the ends and small
ones between they come to pipelines that no launcher runs. So each t, then each d, is bounded by itself, with
what inner stages may be and the fewer shapes of the ends; the least of these bounds holds for every pipeline.
What is not told apart, such as whether the rows of the embedding divide, only lets more pipelines be.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.data.problem import Problem
from planner.search.meshes.shapes import Batch

Bools = NDArray[np.bool_]

MOST_ENDS = 64
"""Choices of the ends of one tensor parallelism up to which they are told apart. A guess."""


@dataclass(frozen=True)
class Ends:
    """What both ends of some pipelines are."""

    tensor_parallel: int
    fewest: int | None = None
    """Replicas of the end that has fewer; None where any are meant."""
    first_has_fewest: bool = True
    """Whether the first stage has so few; if not, the last one alone."""

    def inner(self, batch: Batch) -> Bools:
        """[shape] what stages between may be."""
        is_multiple = batch.tensor_parallel % self.tensor_parallel == 0
        return np.asarray(is_multiple & (batch.data_parallel % (self.fewest or 1) == 0))

    def first(self, batch: Batch) -> Bools:
        """[shape] what the first stage may be."""
        if self.fewest is None:
            return self._is_end(batch)
        fewest = batch.data_parallel == self.fewest
        return np.asarray(self._is_end(batch) & (fewest if self.first_has_fewest else ~fewest))

    def last(self, batch: Batch) -> Bools:
        """[shape] what the last stage may be."""
        if self.fewest is None or self.first_has_fewest:
            return self._is_end(batch)
        return np.asarray(self._is_end(batch) & (batch.data_parallel == self.fewest))

    def may_be_of(self, batch: Batch) -> bool:
        """Whether shapes of a batch can be these ends."""
        return bool(self.first(batch).any() and self.last(batch).any())

    def of_stages(self, batch: Batch, num_stages: int) -> Bools:
        """[stage, shape] what each stage of a pipeline may be."""
        allowed = np.repeat(self.inner(batch)[None], num_stages, axis=0)
        allowed[0] &= self.first(batch)
        allowed[-1] &= self.last(batch)
        return allowed

    def _is_end(self, batch: Batch) -> Bools:
        return np.asarray(self.inner(batch) & (batch.tensor_parallel == self.tensor_parallel))


def matter(problem: Problem) -> bool:
    """Whether what the ends are rules pipelines out."""
    return problem.model.copies_embedding and problem.target == "flagscale"


def list_ends(batches: Iterable[Batch], of: Ends | None) -> list[Ends]:
    """All ends of pipelines of some batches, or what some ends are cut into; nothing where these are many."""
    found: dict[Ends, None] = {}
    for batch in batches:
        if of is None:
            own = [Ends(t) for t in np.unique(batch.tensor_parallel).tolist()]
        else:
            degrees = np.unique(batch.data_parallel[of.last(batch)]).tolist() if of.fewest is None else []
            own = [Ends(of.tensor_parallel, d, is_first) for d in degrees for is_first in (True, False)]
        found |= dict.fromkeys(ends for ends in own if ends.may_be_of(batch))
    return list(found) if len(found) <= MOST_ENDS else []
