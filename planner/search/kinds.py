"""Layers of several kinds that the search can split: leading ones of another kind, then all alike."""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.identity import remembered
from planner.data.model_spec import ModelSpec
from planner.data.problem import Problem
from planner.errors import InstanceError


@dataclass(frozen=True)
class LayerKinds:
    """Most layers are of kind `main` (index into the model's kinds), the first `num_lead` of kind `lead`."""

    main: int
    lead: int
    num_lead: int


def layer_kinds(model: ModelSpec) -> LayerKinds | None:
    """The kinds of a model; None where they mix in another way."""
    sequence, kinds = model.kind_of_layer, model.layer_kinds
    if len(kinds) == 1:
        return LayerKinds(0, 0, 0)
    num_lead = sequence.index(kinds[1])
    if len(kinds) > 2 or any(kind != kinds[1] for kind in sequence[num_lead:]):
        return None
    return LayerKinds(main=1, lead=0, num_lead=num_lead)


@remembered
def kinds_of(problem: Problem) -> LayerKinds | None:
    """The kinds of a problem's model."""
    return layer_kinds(problem.model)


def check_kinds(problem: Problem) -> None:
    """Refuse a model whose layers mix in a way that only the search for uniform degrees can split.

    Raises
    ------
    InstanceError
        With the kinds of layers.
    """
    if layer_kinds(problem.model) is None:
        kinds = ", ".join(problem.model.layer_kinds)
        raise InstanceError(
            f"model {problem.model.id} mixes layers of several kinds ({kinds}) otherwise than by leading "
            f"ones, which the search for {problem.target} cannot split yet; plan it for megatron-lm, or let "
            "`predict` evaluate a plan of your own",
            problem.name,
        )
