"""What more nodes, faster links, more memory or another batch would bring, each by solving again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations

from planner.data.changes import with_class, with_cluster, with_faster_pair, with_more_memory, with_nodes
from planner.data.problem import Problem

FASTER = 1.1
"""How much faster each link is made: the question that `hetplan explain` answers, not a measurement."""
MORE_GIB = 8.0
"""How much memory each chip of a class gets more [GiB]; likewise."""


Change = Callable[[Problem], Problem]


def more_nodes(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """The problem with one more node of each class."""
    for c, node_class in enumerate(problem.cluster.classes):
        cluster = with_nodes(problem.cluster, c, node_class.num_nodes + 1)
        assert cluster is not None
        yield f"one more node of {node_class.name}", with_cluster(problem, cluster)


def faster_links(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """The problem with the links of each kind faster."""
    return ((words, change(problem)) for words, change in _faster_links(problem))


def more_memory_or_batch(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """The problem with more memory on each class, and with twice the batch."""
    for c, node_class in enumerate(problem.cluster.classes):
        yield f"8 GiB more on each chip of {node_class.name}", with_more_memory(problem, c, MORE_GIB)
    workload = problem.workload
    twice = workload.model_copy(update={"global_batch_size": 2 * workload.global_batch_size})
    yield "twice the global batch", problem.model_copy(update={"workload": twice})


def _faster_links(problem: Problem) -> Iterator[tuple[str, Change]]:
    """What makes the links of one kind faster, for every kind; no two change the same links."""
    classes = problem.cluster.classes
    for c, node_class in enumerate(classes):
        inside = node_class.intra_node_bandwidth_gb_per_s or problem.chip_of(c).intra_node_bandwidth_gb_per_s
        yield (
            f"10% faster links inside the nodes of {node_class.name}",
            partial(with_class, class_index=c, intra_node_bandwidth_gb_per_s=FASTER * inside),
        )
        if node_class.num_nodes > 1:
            yield (
                f"10% faster network of {node_class.name}",
                partial(with_class, class_index=c, nic_gbit_per_s=FASTER * node_class.nic_gbit_per_s),
            )
    for a, b in combinations(range(len(classes)), 2):
        yield (
            f"10% faster link between {classes[a].name} and {classes[b].name}",
            partial(with_faster_pair, a=a, b=b, factor=FASTER),
        )
