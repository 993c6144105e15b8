"""How many places a token must reach: ranks or nodes that hold at least one of the experts that it visits.

Experts are chosen at random and spread evenly over N places. Of any experts, k choices meet
N (1 - (1 - 1/N)^k) places. Routers of DeepSeek-V3 and its like choose v of G groups first and k experts of
those alone (Megatron-LM core, transformer/moe/moe_utils.py, group_limited_topk), and neighbouring places hold
a group. Where a place holds g = G/N whole groups, j of the visited ones are its own with the hypergeometric
chance C(g, j) C(G - g, v - j) / C(G, v), and then meets no choice with (1 - j/v)^k; where N/G places share a
group, the choices fall on v N/G places.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb

import numpy as np

from planner.cost.elementwise import Values, where
from planner.data.model_spec import ModelSpec


def distinct_share(model: ModelSpec, places: Values) -> Values:
    """Copies of a token that places receive over those that its experts do.

    Parameters
    ----------
    places
        Ranks or nodes that experts are spread over.
    """
    assert model.moe is not None
    top_k = model.moe.top_k
    groups, visited = model.constants.expert_groups, model.constants.groups_visited
    if not groups or not visited or visited == groups:
        return _met(places, top_k) / top_k
    holding, met = _met_in_groups(top_k, groups, visited)
    few = np.interp(places, holding, met)
    return where(places > groups, _met(visited * places / groups, top_k), few) / top_k


def _met(places: Values, choices: int) -> Values:
    return places * (1 - (1 - 1 / places) ** choices)


@lru_cache(maxsize=64)
def _met_in_groups(top_k: int, groups: int, visited: int) -> tuple[list[int], list[float]]:
    """Numbers of places that hold whole groups, and how many of them a token then meets."""
    places = [n for n in range(1, groups + 1) if groups % n == 0]
    return places, [n * _chance(top_k, groups, visited, groups // n) for n in places]


def _chance(top_k: int, groups: int, visited: int, own: int) -> float:
    """Chance that a place meets a token, which holds so many groups."""
    ways = (
        comb(own, j) * comb(groups - own, visited - j) * (1 - (1 - j / visited) ** top_k)
        for j in range(1, min(own, visited) + 1)
    )
    return sum(ways) / comb(groups, visited)
