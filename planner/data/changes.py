"""The same cluster or problem with one thing changed, for questions of the form "what if"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planner.data.cluster import Cluster, Link, NodeClass
from planner.data.options import Options
from planner.data.problem import Problem
from planner.units import BYTES_PER_GBIT, GIB


def with_nodes(cluster: Cluster, class_index: int, num_nodes: int) -> Cluster | None:
    """The cluster with another number of nodes in a class; None where no node is left at all."""
    old = cluster.classes[class_index]
    classes = list(cluster.classes)
    if num_nodes == 0:
        del classes[class_index]
    else:
        classes[class_index] = resized(old, num_nodes)
    if not classes:
        return None
    kept = {node_class.name for node_class in classes}
    links = tuple(link for link in cluster.links if kept.issuperset(link.between))
    return cluster.model_copy(update={"classes": tuple(classes), "links": links})


def without_nodes(cluster: Cluster, lost: Mapping[str, int]) -> Cluster | None:
    """The cluster without the last nodes of some classes, by name; None where no node is left at all."""
    left: Cluster | None = cluster
    for name, count in lost.items():
        if left is not None:
            index = left.class_index(name)
            left = with_nodes(left, index, left.classes[index].num_nodes - count)
    return left


def with_prices(problem: Problem, usd_per_hour: Mapping[str, float]) -> Problem:
    """The problem with prices of a node [$ an hour], by class or by chip; the former goes first."""
    classes = []
    for old in problem.cluster.classes:
        price = usd_per_hour.get(old.name, usd_per_hour.get(old.chip, old.price_usd_per_hour))
        classes.append(old.model_copy(update={"price_usd_per_hour": price}))
    return with_cluster(problem, problem.cluster.model_copy(update={"classes": tuple(classes)}))


def resized(node_class: NodeClass, num_nodes: int) -> NodeClass:
    """A class with another number of nodes: its first hosts, and made-up names for new ones.

    Some nodes of a class keep the pace of all, so that none of them is faster for the others' absence: which
    chip is the slow one nobody knows.
    """
    hosts = node_class.hosts
    pace_chips = node_class.num_pacing_chips if num_nodes < node_class.num_nodes else node_class.pace_chips
    if hosts is not None:
        new = (f"new-{node_class.name}-{i}" for i in range(max(0, num_nodes - len(hosts))))
        hosts = (*hosts[:num_nodes], *new)
    return node_class.model_copy(update={"num_nodes": num_nodes, "hosts": hosts, "pace_chips": pace_chips})


def with_named_hosts(problem: Problem) -> Problem:
    """The problem with every host named, so that a change of one class renames no host of another."""
    cluster = problem.cluster
    classes = tuple(
        node_class.model_copy(update={"hosts": cluster.hosts_of(c)})
        for c, node_class in enumerate(cluster.classes)
    )
    return with_cluster(problem, cluster.model_copy(update={"classes": classes}))


def with_cluster(problem: Problem, cluster: Cluster) -> Problem:
    """The problem on another cluster."""
    return problem.model_copy(update={"cluster": cluster})


def with_class(problem: Problem, class_index: int, **changes: object) -> Problem:
    """The problem with fields of one node class changed."""
    classes = list(problem.cluster.classes)
    classes[class_index] = classes[class_index].model_copy(update=changes)
    return with_cluster(problem, problem.cluster.model_copy(update={"classes": tuple(classes)}))


def with_more_memory(problem: Problem, class_index: int, more_gib: float) -> Problem:
    """The problem with more memory on every chip of a class [GiB]."""
    memory_gib = problem.usable_memory_bytes(class_index) / GIB + more_gib
    return with_class(problem, class_index, memory_gib=memory_gib)


def with_faster_pair(problem: Problem, a: int, b: int, factor: float) -> Problem:
    """The problem with the link between two classes faster by a factor."""
    cluster = problem.cluster
    names = cluster.classes[a].name, cluster.classes[b].name
    bytes_per_s, _, transport = cluster.link_between(a, b)
    known = [link for link in cluster.links if set(link.between) == set(names)]
    if known:
        faster = known[0].model_copy(update={"gbit_per_s": known[0].gbit_per_s * factor})
    else:
        latency_us = max(cluster.classes[a].latency_us, cluster.classes[b].latency_us)
        faster = Link(
            between=names,
            gbit_per_s=bytes_per_s / BYTES_PER_GBIT * factor,
            latency_us=latency_us,
            transport=transport,
            rate_basis="measured" if cluster.rate_is_measured(a, b) else "rated",
        )
    links = (*(link for link in cluster.links if link not in known), faster)
    return with_cluster(problem, cluster.model_copy(update={"links": links}))


def without_a_wish(options: Options) -> Iterator[tuple[str, str, Options]]:
    """The options with one pin, prohibition or wish for a class given up: kind, what it says, the rest."""
    for name, value in options.pin.items():
        rest = {key: other for key, other in options.pin.items() if key != name}
        yield "pin", f"{name}={value}", options.model_copy(update={"pin": rest})
    for kind in ("forbid", "spare", "use"):
        wishes: tuple[str, ...] = getattr(options, kind)
        for wish in wishes:
            others = tuple(other for other in wishes if other != wish)
            yield kind, wish, options.model_copy(update={kind: others})
