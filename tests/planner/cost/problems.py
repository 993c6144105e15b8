"""Problems and rows of degrees that the cost tests share."""

from __future__ import annotations

from functools import lru_cache

from planner.cost.prices import Degrees, Prices
from planner.cost.pricing import price
from planner.data.load import build_problem
from planner.data.problem import Problem


@lru_cache(maxsize=64)
def problem(
    cluster: str = "4x8 h100-sxm-80gb",
    model: str = "llama3-8b",
    seq_length: int = 4096,
    precision: str = "bf16",
    stack: str = "megatron-core",
) -> Problem:
    """A shipped model on nodes in short form."""
    return build_problem(
        cluster=cluster,
        model=model,
        seq_length=seq_length,
        global_batch_size=64,
        precision=precision,
        stack=stack,
    )


def prices(of: Problem, **degrees: int | bool | str) -> Prices:
    """Prices of one row of degrees."""
    return price(of, Degrees.single(**degrees))  # type: ignore[arg-type]


def with_stack(of: Problem, **changes: object) -> Problem:
    """The same problem with fields of its software changed."""
    return of.model_copy(update={"stack": of.stack.model_copy(update=changes)})


def without_assumptions_of_nics(of: Problem, nic_gbit_per_s: float) -> Problem:
    """The same problem with other adapters in every node."""
    classes = tuple(c.model_copy(update={"nic_gbit_per_s": nic_gbit_per_s}) for c in of.cluster.classes)
    return of.model_copy(update={"cluster": of.cluster.model_copy(update={"classes": classes})})
