"""What a problem must fulfil beyond its single fields: one small function a rule.

Each returns the field at fault and a message, or None. What a launcher allows is the business of
`planner.rules`; here stands only what makes no sense for any launcher.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from planner.data.catalog import shipped_name
from planner.data.precision import chip_supports, supported_precisions
from planner.data.problem import Problem

Finding = tuple[str, str]

MAX_CHIPS = 1_000_000
"""More chips than any cluster has; a larger count is a slip of the hand."""
MAX_LAYERS = 10_000
"""More layers than any model has."""
MAX_WIDTH = 10_000_000
"""More than any width, number of heads, vocabulary or number of experts."""
MAX_BATCH = 10_000_000
"""More sequences than any step has."""
MAX_SEQ_LENGTH = 100_000_000
"""More tokens than any sequence has."""
_WIDTHS = (
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "head_dim",
    "vocab_size",
    "mtp_num_layers",
)
MAX_NAME_LENGTH = 200
"""Longer names break tables and file systems."""
_PLAIN_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._\-]{0,252}\Z")


def idle_notes(problem: Problem) -> tuple[str, ...]:
    """Sentences on the classes that stay idle because they lack the precision."""
    return tuple(
        f"class {node_class.name}: chip {node_class.chip} has no {problem.workload.precision}; it stays idle"
        for i, node_class in enumerate(problem.cluster.classes)
        if not chip_supports(problem.chip_of(i), problem.workload.precision)
    )


def some_class_has_the_precision(problem: Problem) -> Finding | None:
    """At least one class must multiply in the workload's precision."""
    precision = problem.workload.precision
    chips = {c.chip: problem.chips[c.chip] for c in problem.cluster.classes}
    if any(chip_supports(chip, precision) for chip in chips.values()):
        return None
    possible = dict.fromkeys(p for chip in chips.values() for p in supported_precisions(chip))
    way_out = f"; try {' or '.join(possible)}" if possible else ""
    return "workload.precision", f"no chip of the cluster has {precision} ({', '.join(chips)}){way_out}"


def sequence_fits_learned_positions(problem: Problem) -> Finding | None:
    """A learned position table has an end; rotary positions do not."""
    model, length = problem.model, problem.workload.seq_length
    if model.position_embedding != "learned" or length <= model.max_position_embeddings:
        return None
    return (
        "workload.seq_length",
        f"{length} tokens exceed the {model.max_position_embeddings} learned positions of {model.id}",
    )


def counts_are_sane(problem: Problem) -> Finding | None:
    """Absurd counts are slips of the hand; they would only cost memory and overflow later."""
    model, workload = problem.model, problem.workload
    for field, value, limit in (
        ("cluster.classes", problem.cluster.num_chips, MAX_CHIPS),
        ("model.num_layers", model.num_layers, MAX_LAYERS),
        *((f"model.{name}", getattr(model, name), MAX_WIDTH) for name in _WIDTHS),
        ("model.moe.num_experts", model.moe.num_experts if model.moe else 0, MAX_WIDTH),
        ("workload.global_batch_size", workload.global_batch_size, MAX_BATCH),
        ("workload.seq_length", workload.seq_length, MAX_SEQ_LENGTH),
    ):
        if value > limit:
            what = " chips in all" if field == "cluster.classes" else ""
            return field, f"must be <= {limit}, got {value}{what}"
    return None


def nodes_are_connected(problem: Problem) -> Finding | None:
    """Several nodes need adapters, or a stated link where each class is one node."""
    cluster = problem.cluster
    if cluster.num_nodes == 1:
        return None
    linked = {name for link in cluster.links for name in link.between}
    for i, node_class in enumerate(cluster.classes):
        alone = node_class.num_nodes == 1 and node_class.name in linked
        if node_class.node_bandwidth_bytes_per_s == 0 and not alone:
            return (
                f"cluster.classes[{i}].nics_per_node",
                f"class {node_class.name} has no adapters, the cluster has {cluster.num_nodes} nodes; "
                "state nics_per_node and nic_gbit_per_s, or a link",
            )
    return None


def names_are_plain(problem: Problem) -> Finding | None:
    """Names of hosts and classes end up in file names and start scripts."""
    for i, node_class in enumerate(problem.cluster.classes):
        at = f"cluster.classes[{i}]"
        if not _PLAIN_NAME.match(node_class.name):
            return f"{at}.name", f"{_cut(node_class.name)} may hold letters, digits, '.', '-' and '_' only"
        for j, host in enumerate(node_class.hosts or ()):
            if not _PLAIN_NAME.match(host):
                return f"{at}.hosts[{j}]", f"{_cut(host)} is no host name: letters, digits, '.', '-', '_'"
    if not problem.name.isprintable() or len(problem.name) > MAX_NAME_LENGTH:
        return "name", f"must be printable and at most {MAX_NAME_LENGTH} characters, got {_cut(problem.name)}"
    return None


def profiles_fit_the_model(problem: Problem) -> Finding | None:
    """A profile is of this model at this sequence length, and of layers that are all alike."""
    for i, profile in enumerate(problem.profiles):
        at, model = f"profiles[{i}]", problem.model
        if len(model.layer_kinds) > 1 or model.mtp_num_layers:
            return at, f"{model.id} has layers of several kinds; a profile of one kind cannot price it"
        measured, ours = (shipped_name("models", name) for name in (profile.model, model.id))
        if measured is not None and ours is not None and measured != ours:
            return f"{at}.model", f"measured on {measured}, but the model is {ours}; leave the profile out"
        if profile.num_layers not in (None, model.num_layers):
            return f"{at}.num_layers", f"{profile.num_layers}, but {model.id} has {model.num_layers}"
        if profile.seq_length not in (None, problem.workload.seq_length):
            return (
                f"{at}.seq_length",
                f"measured at {profile.seq_length} tokens, the workload has {problem.workload.seq_length}; "
                "measure it anew or leave the profile out",
            )
    return None


def _cut(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


RULES: tuple[Callable[[Problem], Finding | None], ...] = (
    counts_are_sane,
    names_are_plain,
    some_class_has_the_precision,
    sequence_fits_learned_positions,
    nodes_are_connected,
    profiles_fit_the_model,
)
"""Every rule, in the order in which they are reported."""
