"""What the hosts of a plan must load that they did not hold under an earlier plan.

A host holds the layers of its stages, and embedding or head with the first or last of them. Counted are
parameters by host and layer: how tensor parallelism cuts a layer inside a host is left out, as those cuts
stay on the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product

from planner.cost.parameters import embedding_parameters, head_parameters, layer_parameters
from planner.data.cluster import Cluster
from planner.data.model_spec import ModelSpec
from planner.data.plan import Plan, Stage

Piece = int | str
"""A layer by its number; `embedding`, `head`."""
Held = dict[str, frozenset[Piece]]
"""Pieces of each host."""


@dataclass(frozen=True)
class Moves:
    """What changes hands.

    Parameters
    ----------
    loaded_fraction
        Of the parameters on all hosts of the new plan, counted once a host, those that their host lacks.
    layers
        Layers that some host must load.
    """

    loaded_fraction: float
    layers: int


def moves(model: ModelSpec, before: Held, plan: Plan) -> Moves:
    """What a plan must load where hosts hold these pieces already."""
    weights = piece_weights(model)
    now = held(model, plan)
    lacking = [pieces - before.get(host, frozenset()) for host, pieces in now.items()]
    total = sum(weights[piece] for pieces in now.values() for piece in pieces)
    loaded = sum(weights[piece] for pieces in lacking for piece in pieces)
    layers = {piece for pieces in lacking for piece in pieces if isinstance(piece, int)}
    return Moves(loaded / total, len(layers))


def held(model: ModelSpec, plan: Plan) -> Held:
    """Pieces that each host of a plan holds."""
    found: dict[str, frozenset[Piece]] = {}
    placed = [
        (stage, stage is part.stages[0], stage is part.stages[-1])
        for part in plan.pipeline_plans
        for stage in part.stages
    ]
    for stage, first, last in placed:
        pieces = frozenset(_pieces(stage, first=first, last=last))
        for host in (host for _, _, hosts in stage.places for host in hosts):
            found[host] = found.get(host, frozenset()) | pieces
    return found


def _pieces(stage: Stage, *, first: bool, last: bool) -> Iterator[Piece]:
    """Layers of a stage; embedding and head by its place, as it may be without a layer beside them."""
    for chunk in stage.chunks:
        yield from range(chunk[0], chunk[1] + 1)
    if first:
        yield "embedding"
    if last:
        yield "head"


def piece_weights(model: ModelSpec) -> dict[Piece, int]:
    """Parameters of each piece; a head that shares the embedding's still holds a copy of it."""
    embedding = embedding_parameters(model).total
    head = head_parameters(model).total + (embedding if model.tied_embeddings else 0)
    weights: dict[Piece, int] = {"embedding": embedding, "head": head}
    for layer, kind in enumerate(model.kind_of_layer):
        weights[layer] = layer_parameters(model, kind).total
    return weights


def on_hosts_that_hold_most(model: ModelSpec, cluster: Cluster, before: Held, plan: Plan) -> Plan:
    """The plan with the hosts of each class in another order, so that little must be loaded.

    Hosts of a class are alike, so that any order gives a plan of the same shape. Groups of hosts with the
    same pieces are matched, those with most in common first, then better by exchanges between two of them:
    a good order, not always the very best. The plan stays as it is where that is no better.
    """
    weights, now = piece_weights(model), held(model, plan)
    names: dict[str, str] = {}
    for c in range(len(cluster.classes)):
        hosts = cluster.hosts_of(c)
        wanted, given = _groups(hosts, now), _groups(hosts, before)
        value = [[sum(weights[p] for p in role & holding) for holding in given] for role in wanted]
        dealt = _dealt(value, [len(g) for g in wanted.values()], [len(g) for g in given.values()])
        names |= _names(dealt, list(wanted.values()), list(given.values()))
    other = renamed(plan, names)
    keeps_more = moves(model, before, other).loaded_fraction < moves(model, before, plan).loaded_fraction
    return other if keeps_more else plan


def _groups(hosts: Sequence[str], pieces: Held) -> dict[frozenset[Piece], list[str]]:
    """Hosts by what they hold; idle ones hold nothing."""
    found: dict[frozenset[Piece], list[str]] = {}
    for host in hosts:
        found.setdefault(pieces.get(host, frozenset()), []).append(host)
    return found


def _dealt(value: list[list[int]], wanted: list[int], given: list[int]) -> list[list[int]]:
    """How many hosts of each group on the right serve each on the left, so that much is kept."""
    rows, columns = range(len(wanted)), range(len(given))
    dealt = [[0 for _ in columns] for _ in rows]
    wanting, free = list(wanted), list(given)
    for i, j in sorted(product(rows, columns), key=lambda pair: (-value[pair[0]][pair[1]], pair)):
        count = min(wanting[i], free[j])
        dealt[i][j], wanting[i], free[j] = count, wanting[i] - count, free[j] - count
    cells = list(product(rows, columns))
    while any([_exchanged(dealt, value, a, b) for a, b in product(cells, cells) if a < b]):
        pass
    return dealt


def _exchanged(
    dealt: list[list[int]], value: list[list[int]], a: tuple[int, int], b: tuple[int, int]
) -> bool:
    """Let the hosts of two cells change places where that keeps more; whether it did."""
    count = min(dealt[a[0]][a[1]], dealt[b[0]][b[1]])
    gain = value[a[0]][b[1]] + value[b[0]][a[1]] - value[a[0]][a[1]] - value[b[0]][b[1]]
    if count == 0 or gain <= 0:
        return False
    for row, column, change in ((*a, -count), (*b, -count), (a[0], b[1], count), (b[0], a[1], count)):
        dealt[row][column] += change
    return True


def _names(dealt: list[list[int]], wanted: list[list[str]], given: list[list[str]]) -> dict[str, str]:
    """For each host as the plan names it the host to take in its place."""
    free = [iter(group) for group in given]
    found: dict[str, str] = {}
    for counts, takers in zip(dealt, wanted, strict=True):
        givers = (host for j, count in enumerate(counts) for host in islice(free[j], count))
        found |= zip(takers, givers, strict=True)
    return found


def renamed(plan: Plan, names: Mapping[str, str]) -> Plan:
    """The plan with other hosts in the place of its own."""

    def of(hosts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(host, host) for host in hosts)

    stages = []
    for stage in plan.stages:
        replicas = stage.replicas and tuple(
            replica.model_copy(update={"hosts": of(replica.hosts)}) for replica in stage.replicas
        )
        stages.append(stage.model_copy(update={"hosts": of(stage.hosts), "replicas": replicas}))
    return plan.model_copy(update={"stages": tuple(stages)})
