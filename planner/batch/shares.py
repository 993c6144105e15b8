"""Shares of a cluster: every training of a fleet on every number of nodes that it may get."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from planner.batch.job_spec import JobSpec, Training
from planner.batch.records import Records
from planner.batch.what_if import Variant
from planner.data.changes import with_nodes
from planner.data.cluster import Cluster
from planner.errors import InstanceError

MOST_SHARES = 20_000
"""More plans than this for one split are a slip of the hand."""


def shares(spec: JobSpec, records: Records, where: str) -> Iterator[Variant]:
    """A plan for each training and each share of nodes.

    Raises
    ------
    InstanceError
        Where the cluster is missing or unknown, two trainings share a name, or there are too many shares.
    """
    trainings = spec.trainings or ()
    titles = [title(training) for training in trainings]
    if len(set(titles)) < len(titles):
        raise InstanceError("two trainings share a name; give each a `name`", f"{where}.trainings")
    # The first training stands for the rest of the entry: cluster, stack, target, options.
    sizes = [
        _sizes(c.num_nodes, spec.node_step or 1) for c in _problem(spec, trainings[0], records, where).classes
    ]
    apart = bool(spec.one_class)
    shares_each = sum(len(size) - 1 for size in sizes) if apart else math.prod(map(len, sizes)) - 1
    number = len(trainings) * shares_each
    if number > MOST_SHARES:
        raise InstanceError(
            f"{number:,} shares to plan, the limit is {MOST_SHARES:,}; give a larger `node_step`", where
        )
    for training in trainings:
        for counts in itertools.product(*sizes):
            if any(counts) and not (apart and sum(map(bool, counts)) > 1):
                yield _share(spec, training, counts, records, where)


def title(training: Training) -> str:
    """Name of a training in the results."""
    return training.name or (training.model if isinstance(training.model, str) else training.model.id)


def _sizes(num_nodes: int, step: int) -> tuple[int, ...]:
    """Numbers of nodes of a class that a share may have: multiples of the step, and all."""
    return (*range(0, num_nodes, step), num_nodes)


def _problem(spec: JobSpec, training: Training, records: Records, where: str) -> Cluster:
    return records.problem(_entry(spec, training), where).cluster


def _entry(spec: JobSpec, training: Training) -> JobSpec:
    """The entry of a training on the whole cluster."""
    fields = ("model", "seq_length", "global_batch_size", "precision")
    return spec.model_copy(update={name: getattr(training, name) for name in fields})


def _share(
    spec: JobSpec, training: Training, counts: tuple[int, ...], records: Records, where: str
) -> Variant:
    entry = _entry(spec, training)
    cluster = _problem(spec, training, records, where)
    nodes = {c.name: count for c, count in zip(cluster.classes, counts, strict=True)}
    for node_class, count in reversed(list(zip(cluster.classes, counts, strict=True))):
        if count != node_class.num_nodes:
            smaller = with_nodes(cluster, cluster.class_index(node_class.name), count)
            assert smaller is not None  # some count is above zero
            cluster = smaller
    taken = ", ".join(f"{count} of {name}" for name, count in nodes.items() if count)
    share = {
        "training": title(training),
        "nodes": nodes,
        "tokens": training.tokens,
        "weight": training.weight,
    }
    name = f"{title(training)} on {taken}"
    try:
        problem = records.problem(entry.model_copy(update={"cluster": cluster}), where)
    except InstanceError as refusal:
        return Variant(name, None, str(refusal), share=share)
    return Variant(name, problem, share=share)
