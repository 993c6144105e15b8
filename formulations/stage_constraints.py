"""What one stage recomputes, holds and takes, as constraints of a linear program.

`stage_selection` and `joint` state these groups in their docstrings, from (recomputed) to (follow_up), and
add them here over *places*: a place is a stage on a class. With the class of every stage fixed a stage has
one place, which is taken; `joint` has a place for each class, of which one is taken, and all terms of the
others are 0. Times in ms, sizes in GiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import pulp

from formulations import solvers
from formulations.stage_selection_data import (
    StageSelectionData,
    least_full_ms,
    least_full_peak_gib,
    most_full_saves_gib,
)


@dataclass(frozen=True)
class Place:
    """A stage on a class: what it costs there, and the variables that say what it does there."""

    label: str
    """Ends the names of its variables and constraints: the stage, or stage and class."""
    stage: int
    data: StageSelectionData
    """The pipeline on this class; row `stage` is of use."""
    most: int
    """N: most layers that fit; valid as a big-M because no feasible n exceeds it (`most_layers`)."""
    taken: pulp.LpVariable | int
    """1 where the stage runs here; a number where there is no choice."""
    n: pulp.LpVariable
    """Layers."""
    u: pulp.LpVariable
    """Layers recomputed in full."""
    k1: pulp.LpVariable
    """Layers whose core attention is recomputed."""
    x: pulp.LpVariable
    """Whether some layer is recomputed in full."""
    y: pulp.LpVariable
    """Whether core attention is recomputed."""

    def term(self, name: str) -> float:
        """A coefficient of the stage on this class."""
        return float(getattr(self.data, name)[self.stage])


Places = Sequence[Sequence[Place]]
"""[stage][class]"""


def make_place(
    label: str, stage: int, data: StageSelectionData, *, least: int, most: int, taken: pulp.LpVariable | int
) -> Place:
    """A place with variables of its own.

    Parameters
    ----------
    least, most
        Bounds on its layers; where fewer fit than there must be, (memory) or (assign) refuses the place.
    """

    def whole(name: str, low: int) -> pulp.LpVariable:
        return pulp.LpVariable(f"{name}_{label}", low, max(most, low), cat="Integer")

    return Place(
        label=label,
        stage=stage,
        data=data,
        most=most,
        taken=taken,
        n=whole("n", least),
        u=whole("u", 0),
        k1=whole("k1", 0),
        x=pulp.LpVariable(f"x_{label}", cat="Binary"),
        y=pulp.LpVariable(f"y_{label}", cat="Binary"),
    )


def read_place(solution: solvers.Solution, label: str) -> tuple[int, str, int]:
    """Layers of a place, what it recomputes and in how many layers, out of a solution."""
    full = solution.integer(f"u_{label}")
    selective = solution.integer(f"y_{label}") == 1
    return solution.integer(f"n_{label}"), "selective" if selective else "full" if full else "none", full


def add_recomputed(model: pulp.LpProblem, places: Places) -> None:
    """Layers are recomputed in full only where the stage holds them and says so."""
    for at in _each(places):
        model += at.u <= at.n, f"recomputed_held_{at.label}"
        model += at.u <= at.most * at.x, f"recomputed_said_{at.label}"
        model += at.u >= at.x, f"recomputed_some_{at.label}"


def add_selective(model: pulp.LpProblem, places: Places) -> None:
    """Core attention is recomputed in all layers of a stage or in none."""
    for at in _each(places):
        model += at.k1 <= at.n, f"selective_held_{at.label}"
        model += at.k1 <= at.most * at.y, f"selective_said_{at.label}"
        model += at.k1 >= at.n - at.most + at.most * at.y, f"selective_all_{at.label}"


def add_one_kind(model: pulp.LpProblem, places: Places) -> None:
    """A stage recomputes core attention or whole layers, not both, and only where it runs."""
    for at in _each(places):
        model += at.x + at.y <= at.taken, f"one_kind_{at.label}"


def add_memory(model: pulp.LpProblem, places: Places) -> None:
    """What a stage holds fits its chips."""
    for at in _each(places):
        full_saves_gib = float(most_full_saves_gib(at.data)[at.stage])
        lead_saves_gib = at.term("lead") * (
            at.term("lead_selective_saves_gib") - at.term("selective_saves_gib")
        )
        need = (
            at.term("layer_gib") * at.n
            - full_saves_gib * at.u
            - at.term("selective_saves_gib") * at.k1
            - (lead_saves_gib - at.term("selective_peak_gib")) * at.y
            + float(least_full_peak_gib(at.data)[at.stage]) * at.x
        )
        alone = at.data.alone_gib
        less_gib = 0.0 if alone is None else max(float(alone[:3, at.stage].max()), 0.0)
        room = (at.term("limit_gib") - at.term("base_gib")) * at.taken
        if less_gib and at.term("lead"):
            room += less_gib * at.taken
        elif less_gib:
            empty = pulp.LpVariable(f"e_{at.label}", cat="Binary")
            model += at.n <= at.most * (1 - empty), f"memory_empty_{at.label}"
            room += less_gib * empty
        model += need <= room, f"memory_{at.label}"


def add_forward_time(model: pulp.LpProblem, places: Places, forward: Sequence[pulp.LpVariable]) -> None:
    """Forward of a stage: its layers, and embedding or head."""
    for s, own in enumerate(places):
        time = _total(own, lambda at: _line(at, "forward_ms", "base_forward_ms"))
        model += forward[s] == time, f"forward_time_{s}"


def add_backward_time(model: pulp.LpProblem, places: Places, backward: Sequence[pulp.LpVariable]) -> None:
    """Backward of a stage: its layers, what they recompute, and embedding or head."""

    def on_place(at: Place) -> pulp.LpAffineExpression:
        again = float(least_full_ms(at.data)[at.stage]) * at.u + at.term("selective_ms") * at.k1
        return _line(at, "backward_ms", "base_backward_ms") + again + at.term("selective_more_ms") * at.y

    for s, own in enumerate(places):
        time = _total(own, on_place)
        cheapest = any(at.term("lead") for at in own)  # in which case the layers recomputed may cost more
        model += backward[s] >= time if cheapest else backward[s] == time, f"backward_time_{s}"


def add_reduction(
    model: pulp.LpProblem,
    places: Places,
    backward: Sequence[pulp.LpVariable],
    reduction: Sequence[pulp.LpVariable],
) -> None:
    """Gradient reduction shows where the last backward does not hide it, or all of it comes behind that."""
    for s, own in enumerate(places):
        total = _total(own, lambda at: _line(at, "reduce_ms", "base_reduce_ms"))
        hidden = own[0].data.hidden_fraction * backward[s]
        model += reduction[s] >= total - hidden, f"reduction_{s}"
        in_one = _total(own, lambda at: _line(at, "bucket_ms", "base_bucket_ms"))
        tail = _total(own, lambda at: at.term("reduce_tail_ms") * at.taken)
        model += reduction[s] >= in_one - tail, f"reduction_in_one_{s}"


def add_gathering(
    model: pulp.LpProblem,
    places: Places,
    forward: Sequence[pulp.LpVariable],
    gathering: Sequence[pulp.LpVariable],
) -> None:
    """Parameter gathering shows where the first forward does not hide it."""
    for s, own in enumerate(places):
        total = _total(own, lambda at: _line(at, "gather_ms", "base_gather_ms"))
        hidden = own[0].data.hidden_fraction * forward[s]
        model += gathering[s] >= total - hidden, f"gathering_{s}"


def add_follow_up(
    model: pulp.LpProblem, places: Places, gathering: Sequence[pulp.LpVariable], follow: pulp.LpVariable
) -> None:
    """After all stages have met, the slowest optimizer and gathering end the step."""
    for s, own in enumerate(places):
        time = _total(own, lambda at: _line(at, "optimizer_ms", "base_optimizer_ms"))
        tail = _total(own, lambda at: at.term("gather_tail_ms") * at.taken)
        model += follow >= time + tail + gathering[s], f"follow_up_{s}"


def _each(places: Places) -> Iterator[Place]:
    return chain.from_iterable(places)


def _line(at: Place, layer: str, base: str) -> pulp.LpAffineExpression:
    """A time that is linear in the layers of a place; 0 where the stage does not run there."""
    return at.term(layer) * at.n + at.term(base) * at.taken


def _total(own: Sequence[Place], term: Callable[[Place], pulp.LpAffineExpression]) -> pulp.LpAffineExpression:
    """Sum over the places of a stage."""
    return pulp.lpSum(term(at) for at in own)
