"""Ready questions about one problem: what if nodes are lost, bought, or the batch is another one.

Each becomes ordinary jobs, the problem as it stands and its variants, so that they are kept, resumed
and shared as any other. `study.py` puts their answers beside each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from planner.batch.ask import DRAWS, WITHIN, Ask
from planner.batch.job_spec import Candidate, JobSpec
from planner.data import load
from planner.data.changes import resized, with_named_hosts, without_nodes
from planner.data.cluster import NodeClass
from planner.data.problem import Problem
from planner.errors import InstanceError
from planner.leaving import portable

BASE = "as it stands"
"""Name of the variant that changes nothing."""


@dataclass(frozen=True)
class Variant:
    """One answer that a study needs.

    Parameters
    ----------
    name
        What is changed.
    problem
        None where the change leaves no problem.
    refused
        Why it leaves none.
    nodes_changed
        Nodes added (or, below zero, lost).
    price_usd
        Price of what is bought [$].
    share
        Of a fleet split: the training, its nodes of every class, and how its tokens count.
    ask
        What is asked beside the best plan.
    """

    name: str
    problem: Problem | None
    refused: str | None = None
    nodes_changed: int = 0
    price_usd: float | None = None
    share: dict[str, Any] | None = None
    ask: Ask | None = None


def variants(spec: JobSpec, problem: Problem, where: str) -> Iterator[Variant]:
    """The problem as it stands, then everything that the study changes in it, one change at a time."""
    yield Variant(BASE, problem)
    if spec.kind == "node_loss":
        within = WITHIN if spec.within is None else spec.within
        yield from _losses(problem, _lost_counts(problem, spec, where), within, where)
    elif spec.kind == "robustness":
        ask = Ask(kind="robust", draws=spec.draws or DRAWS)
        yield Variant(f"under {ask.draws} draws", problem, ask=ask)
    elif spec.kind == "growth":
        for candidate in spec.candidates or ():
            yield _bought(problem, candidate, where)
    elif spec.kind == "sweep":
        for axis in ("global_batch_size", "seq_length"):
            for value in (spec.values or {}).get(axis, ()):
                workload = problem.workload.model_copy(update={axis: value})
                changed = problem.model_copy(update={"workload": workload})
                if changed != problem:
                    yield _checked(f"{axis} {value}", changed, where)


def check_study(spec: JobSpec, where: str) -> None:
    """Refuse a kind without what it needs, and fields that belong to another kind.

    Raises
    ------
    InstanceError
        With the field that is missing or out of place.
    """
    needs = {"growth": "candidates", "sweep": "values", "fleet_split": "trainings"}
    own = {field: kind for kind, field in needs.items()} | {
        "lose": "node_loss",
        "within": "node_loss",
        "draws": "robustness",
        "node_step": "fleet_split",
        "one_class": "fleet_split",
    }
    for field, kind in own.items():
        given = getattr(spec, field)
        if kind != spec.kind and given is not None:
            raise InstanceError(
                f"belongs to `kind: {kind}`, this job is of kind {spec.kind}", f"{where}.{field}"
            )
    field_needed = needs.get(spec.kind)
    if field_needed is not None and not getattr(spec, field_needed):
        raise InstanceError(f"`kind: {spec.kind}` needs `{field_needed}:`", where)
    for axis, values in (spec.values or {}).items():
        if axis not in ("global_batch_size", "seq_length"):
            raise InstanceError(
                f"unknown key {axis!r}; there are global_batch_size and seq_length", f"{where}.values"
            )
        if min(values, default=0) < 1:
            raise InstanceError("must be whole numbers of at least 1", f"{where}.values.{axis}")


def _checked(
    name: str, problem: Problem, where: str, *, nodes_changed: int = 0, price_usd: float | None = None
) -> Variant:
    """A variant, checked as a whole."""
    try:
        sound = load.resolve_problem(load.problem_file(problem), where)
    except InstanceError as refusal:
        return Variant(name, None, str(refusal), nodes_changed, price_usd)
    return Variant(name, sound, None, nodes_changed, price_usd)


def _lost_counts(problem: Problem, spec: JobSpec, where: str) -> Iterator[dict[str, int]]:
    """Nodes of each class that are lost together, one loss after the other.

    Raises
    ------
    InstanceError
        Where a class is unknown, or has fewer nodes than it is to lose.
    """
    sizes = {node_class.name: node_class.num_nodes for node_class in problem.cluster.classes}
    lose = spec.lose or 1
    if isinstance(lose, int):
        for name, size in sizes.items():
            yield from ({name: lost} for lost in range(1, min(lose, size) + 1))
        return
    for name, lost in lose.items():
        if name not in sizes:
            raise InstanceError(f"no class is named {name!r}; there are {', '.join(sizes)}", f"{where}.lose")
        if lost > sizes[name]:
            raise InstanceError(f"{name} has {sizes[name]} nodes and cannot lose {lost}", f"{where}.lose")
    yield lose


def _losses(
    problem: Problem, losses: Iterator[dict[str, int]], within: float, where: str
) -> Iterator[Variant]:
    """Classes without their last nodes: the best plan, and the one that changes least."""
    named = with_named_hosts(problem)
    ask = Ask(kind="least_change", base=load.problem_file(portable(named)), within=within)
    for lost in losses:
        nodes = (f"{n} {'node' if n == 1 else 'nodes'} of {name}" for name, n in lost.items())
        name, total = f"without {' and '.join(nodes)}", sum(lost.values())
        smaller, left = without_nodes(problem.cluster, lost), without_nodes(named.cluster, lost)
        if smaller is None or left is None:
            yield Variant(name, None, f"{where}: {name} nothing is left", -total)
            continue
        best = _checked(name, problem.model_copy(update={"cluster": smaller}), where, nodes_changed=-total)
        yield best
        if best.problem is not None:
            same = best.problem.model_copy(update={"cluster": left})
            yield Variant(f"{name}, changing least", same, None, -total, ask=ask)


def _bought(problem: Problem, candidate: Candidate, where: str) -> Variant:
    """The problem with a candidate's nodes: more of a class that has such nodes, or classes of their own."""
    try:
        bought = load.load_cluster(candidate.add)
    except InstanceError as refusal:
        return Variant(f"with {candidate.add}", None, f"{where}: candidates: {refusal}")
    classes, chips = list(problem.cluster.classes), dict(problem.chips)
    links = [*problem.cluster.links, *bought.links]
    for new in bought.classes:
        same = [
            i for i, c in enumerate(classes) if (c.chip, c.chips_per_node) == (new.chip, new.chips_per_node)
        ]
        if same:
            old = classes[same[0]]
            classes[same[0]] = resized(old, old.num_nodes + new.num_nodes)
        else:
            classes.append(new.model_copy(update={"name": _free_name(new.name, classes)}))
            chips.setdefault(new.chip, load.load_chip(new.chip))
    names = {c.name for c in classes}
    cluster = problem.cluster.model_copy(
        update={
            "classes": tuple(classes),
            "links": tuple(link for link in links if names.issuperset(link.between)),
            "assumptions": problem.cluster.assumptions + bought.assumptions,
        }
    )
    changed = problem.model_copy(update={"cluster": cluster, "chips": chips})
    return _checked(
        f"with {candidate.name or candidate.add}",
        changed,
        where,
        nodes_changed=bought.num_nodes,
        price_usd=candidate.price_usd,
    )


def _free_name(name: str, classes: list[NodeClass]) -> str:
    taken = {c.name for c in classes}
    return name if name not in taken else f"{name}-new"
