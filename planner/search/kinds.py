"""Layers of several kinds that the search can split: leading ones of another kind, then all alike."""

from __future__ import annotations

from dataclasses import dataclass

from planner.data.model_spec import ModelSpec


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
