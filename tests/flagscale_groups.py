"""The process groups that FlagScale forms of a configuration, by our own reading of its rules.

Source: `ProcessMesh` and `ParallelContext` of Megatron-LM-FL (Apache-2.0, megatron/plugin/hetero/
parallel_context.py): `build_inter_mesh_process_groups` and `build_global_process_groups`. Meshes of one stage
each; ranks are logical, so that mesh by mesh they follow one another, tensor parallelism fastest.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from planner.rules.flagscale_config import HeteroConfig

Rank = tuple[int, int, int]
"""Mesh, place among the tensor-parallel ranks, and among the replicas."""


def overlaps(first: int, second: int) -> dict[int, list[int]]:
    """Parts of `second` equal ones that each of `first` equal ones meets (`find_overlapped_mapping`)."""
    return {
        i: [
            j
            for j in range(second)
            if Fraction(i, first) < Fraction(j + 1, second) and Fraction(j, second) < Fraction(i + 1, first)
        ]
        for i in range(first)
    }


def neighbours(config: HeteroConfig, mesh: int) -> dict[Rank, list[Rank]]:
    """Ranks of the next mesh that each rank of a mesh is connected with."""
    (tp1, _, _, dp1, _), (tp2, _, _, dp2, _) = config.meshes[mesh], config.meshes[mesh + 1]
    alone = tp1 == tp2 == 1
    of_tp = {0: [0]} if alone else overlaps(tp1, tp2)
    of_dp = overlaps(dp1, dp2)
    return {
        (mesh, i, k): [(mesh + 1, j, n) for j in of_tp[i] for n in of_dp[k]] for i in of_tp for k in of_dp
    }


def pipelines(config: HeteroConfig) -> Iterator[tuple[Rank, ...]]:
    """Every pipeline group: one for every way through the meshes, in the order in which they are made."""
    links = [neighbours(config, mesh) for mesh in range(len(config.meshes) - 1)]

    def ways(way: tuple[Rank, ...]) -> Iterator[tuple[Rank, ...]]:
        if len(way) == len(config.meshes):
            yield way
            return
        for rank in links[len(way) - 1][way[-1]]:
            yield from ways((*way, rank))

    tp, _, _, dp, _ = config.meshes[0]
    for k in range(dp):
        for i in range(tp):
            yield from ways(((0, i, k),))


def embedding_groups(config: HeteroConfig) -> list[tuple[Rank, Rank]]:
    """Pairs of ranks that sum what both hold of the embedding, each once."""
    return list(dict.fromkeys((way[0], way[-1]) for way in pipelines(config)))


def rows_summed(config: HeteroConfig, rank: Rank, pair: int, pairs: int) -> tuple[Fraction, Fraction]:
    """Part of its own rows that a rank sums with its n-th pair of so many (`_allreduce_embedding_grad`)."""
    if not config.distributed_optimizer:
        return Fraction(0), Fraction(1)
    share = Fraction(1, config.meshes[rank[0]][3] * pairs)
    begin = share * (rank[2] * pairs + pair)
    return begin, begin + share
