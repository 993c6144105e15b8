"""Why no degrees, or no numbers of stages, are legal: the rule that rules out what is wished for."""

from __future__ import annotations

from collections.abc import Iterator

from planner.data.changes import without_a_wish
from planner.data.problem import Problem
from planner.rules import batch, chips, experts, narrow, sequence, tensor
from planner.search.degrees import DegreeTable, allowed_stages, list_degrees
from planner.search.empty import most_stages, most_without_layers


def why_no_degrees(problem: Problem) -> str:
    """The reason that there are no legal degrees, in the rule's own words where one rule is to blame."""
    reasons = list(dict.fromkeys(_reasons(problem)))
    if reasons:
        return "; ".join(reasons)
    return _together(problem) or (
        f"no degrees are legal on any class for a batch of {problem.workload.global_batch_size} sequences: "
        "see the rules on heads, batch, precision and node size"
    )


def why_no_stages(problem: Problem, table: DegreeTable) -> str | None:
    """Why no row of degrees may have any number of stages; None where one may."""
    allowed = stages_of_rows(problem, table)
    if any(allowed):
        return None
    options, layers = problem.options, problem.model.num_layers
    longest = layers + most_without_layers(problem)
    most = min(int(table.max_stages.sum(axis=1).max()), longest)
    pinned = options.pin.get("pp")
    if pinned is None:
        return (
            f"every number of pipeline stages that the chips hold, 1 to {most}, is ruled out by the options"
        )
    if pinned > longest:
        but = " but for the embedding's and the loss's" if longest > layers else ""
        return f"pp={pinned} is pinned, but {problem.model.id} has {layers} layers, one a stage at least{but}"
    if options.max_pipeline_parallel is not None and pinned > options.max_pipeline_parallel:
        return f"pp={pinned} is pinned, but at most {options.max_pipeline_parallel} stages are allowed"
    if f"pp={pinned}" in options.forbid:
        return f"pp={pinned} is pinned and forbidden"
    smallest = int(table.stage_size.min())
    return (
        f"pp={pinned} is pinned, but the cluster holds at most {most} stages of the degrees that are "
        f"allowed: the smallest stage takes {smallest} of its {problem.cluster.num_chips} chips"
    )


def stages_of_rows(problem: Problem, table: DegreeTable) -> list[list[int]]:
    """Numbers of stages that each row of degrees may have, [choice]."""
    most = most_stages(problem)
    return [allowed_stages(problem.options, min(int(limit), most)) for limit in table.max_stages.sum(axis=1)]


def _reasons(problem: Problem) -> Iterator[str]:
    """Every rule that stands alone in the way."""
    usable = [c for c, one in enumerate(problem.cluster.classes) if one.name not in problem.options.spare]
    refusals = [chips.precision_runs(problem.chip_of(c), problem.workload.precision) for c in usable]
    if all(refusal is not None for refusal in refusals):
        yield from (refusal for refusal in refusals if refusal is not None)
    usable = [c for c, refusal in zip(usable, refusals, strict=True) if refusal is None]
    tp, precision = problem.options.pin.get("tp", 1), problem.workload.precision
    if (sides := narrow.tensor_widths_fill_blocks(problem.model, precision, tp)) is not None:
        yield sides
    yield from _pinned_tensor_parallel(problem, usable)
    yield from _pinned_others(problem)
    in_parts = [sequence.class_attends_in_parts(problem, c, problem.options.pin.get("cp", 1)) for c in usable]
    if usable and all(refusal is not None for refusal in in_parts):
        yield from (refusal for refusal in in_parts if refusal is not None)
    yield from _stage_size(problem, usable)


def _pinned_tensor_parallel(problem: Problem, usable: list[int]) -> Iterator[str]:
    """What a pinned tensor-parallel degree breaks: the model's widths, or every node."""
    tp = problem.options.pin.get("tp")
    if tp is None:
        return
    yield from tensor.tensor_parallel_refusals(problem.model, tp)
    most = problem.options.max_tensor_parallel
    if most is not None and tp > most:
        yield f"tp={tp} is pinned, but at most {most} is allowed"
    classes = [problem.cluster.classes[c] for c in usable]
    refusals = [chips.tensor_group_stays_in_node(tp, one.chips_per_node, one.name) for one in classes]
    if classes and all(refusal is not None for refusal in refusals):
        sizes = ", ".join(f"{one.chips_per_node} ({one.name})" for one in classes)
        devices = sum(one.num_chips for one in classes)
        yield (
            f"tp={tp} is pinned, but no node can hold such groups: its chips must be a multiple of {tp}, "
            f"nodes have {sizes}; the cluster has {devices} devices in all"
        )


def _pinned_others(problem: Problem) -> Iterator[str]:
    """What the other pinned degrees break."""
    model, work, pin = problem.model, problem.workload, problem.options.pin
    tp, cp, sp = pin.get("tp", 1), pin.get("cp", 1), pin.get("sp")
    found: list[str | None] = []
    if "cp" in pin:
        found.append(sequence.context_splits(work, cp))
        shared = model, problem.stack, tp, cp, problem.least_fast_domain_chips
        found += [sequence.attention_runs_in_parts(*shared), sequence.exchanged_heads_split(*shared)]
        tokens = work.seq_length // cp
        if cp > problem.options.max_context_parallel or cp & (cp - 1):
            found.append(
                f"cp={cp} is pinned, but the search takes powers of two up to "
                f"{problem.options.max_context_parallel}"
            )
        elif cp > 1 and tokens < problem.options.least_context_tokens:
            found.append(
                f"cp={cp} is pinned, but leaves {tokens} tokens a rank; at least "
                f"{problem.options.least_context_tokens} are wanted (least_context_tokens)"
            )
    if "ep" in pin:
        found += [experts.experts_exist(model, pin["ep"]), experts.experts_split(model, pin["ep"])]
    if "etp" in pin:
        found.append(experts.expert_width_splits(model, pin["etp"]))
        found.append(experts.biased_experts_stay_whole(model, pin["etp"]))
        found.append(narrow.expert_widths_fill_blocks(model, work.precision, pin["etp"]))
        if model.moe is not None and pin["etp"] not in (1, pin.get("tp", pin["etp"])):
            found.append(f"etp={pin['etp']} is pinned, but the search takes 1 or tp={tp}, which is pinned")
    if sp == 1 and "tp" in pin:
        found.append(sequence.sequence_parallel_has_ranks(tp, True))
        found.append(sequence.sequence_splits(work, tp, cp))
    if sp == 0 and "tp" in pin:
        found.append(sequence.experts_have_sequence_parallel(model, tp, False))
    if "mbs" in pin and pin["mbs"] > problem.most_microbatch_size:
        found.append(
            f"mbs={pin['mbs']} is pinned, but at most {problem.most_microbatch_size} is allowed "
            "(max_microbatch_size)"
        )
    if "mbs" in pin or "dp" in pin:
        found.append(batch.batch_divides(work, pin.get("mbs", 1), pin.get("dp", 1)))
    yield from (message for message in found if message is not None)


def _stage_size(problem: Problem, usable: list[int]) -> Iterator[str]:
    """Whether a stage of the pinned degrees is larger than every class."""
    pin = problem.options.pin
    named = {name: pin[name] for name in ("tp", "cp", "dp") if name in pin}
    size = 1
    for degree in named.values():
        size *= degree
    most = max((problem.cluster.classes[c].num_chips for c in usable), default=0)
    if size > most > 0:
        product = " x ".join(f"{name}={degree}" for name, degree in named.items())
        yield f"a stage of {product} needs {size} chips, the largest class has {most}"


def _together(problem: Problem) -> str | None:
    """The wishes of which any one, given up, leaves legal degrees; None where none alone does."""
    words = {"pin": "pinned", "forbid": "forbidden", "spare": "spared", "use": "to be used"}
    guilty = [
        f"{wish} {words[kind]}"
        for kind, wish, fewer in without_a_wish(problem.options)
        if len(list_degrees(problem.model_copy(update={"options": fewer})))
    ]
    if not guilty:
        return None
    way_out = "give up one of them" if guilty[1:] else "give it up"
    return f"no degrees are legal with {' and '.join(guilty)}; {way_out}"
