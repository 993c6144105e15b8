"""Why a plan is as it is: what binds each stage, what more of anything would bring, what lies idle.

And where there is no plan: the least changes that give one.
"""

from __future__ import annotations

from typing import Literal

from planner.data.base import Data

Binding = Literal["pace", "memory", "layers", "unknown"]


class StageReason(Data):
    """Why a stage holds no more layers."""

    stage: int
    """Pipeline stage."""
    binds: Binding
    """`pace`: it is the slowest itself. `memory`: another layer does not fit, or fits only with so much
    recomputation that the stage would be the slowest. `layers`: another whole layer would make it the
    slowest. `unknown`: not asked, as with virtual stages."""
    slack_s: float
    """Work that it has less than the slowest stage, over the step [s]."""
    headroom_gib: float
    """Memory that it may still reserve [GiB]."""
    words: str
    """The reason in a sentence."""


class Gain(Data):
    """What a change of the problem would bring, found by solving it again."""

    change: str
    """What is changed."""
    step_s: float | None
    """Step time of the best plan found then [s]; null where none was."""
    gain: float | None
    """1 - new step / step of the best plan, per token where the batch changes: at least this much."""
    gain_at_most: float | None
    """The same from the bound of the changed problem: no plan gains more. Null where unknown."""


class Alternative(Data):
    """The best plan of another kind: with one decision of the plan ruled out."""

    kind: str
    """What is ruled out."""
    step_s: float | None
    """Step time of the best plan found then [s]; null where none was."""
    slower: float | None
    """Step time over that of the best plan, less 1: at most this much."""
    slower_at_least: float | None
    """The same from the bound of the search: no plan of the kind is closer. Below 0 where one may be faster,
    within the gap of the plan in hand. Null where unknown."""
    words: str
    """What that plan decides otherwise, or why there is none."""


class IdleReason(Data):
    """Nodes that the plan leaves idle."""

    node_class: str
    """Name of the class."""
    idle_nodes: int
    """Nodes without any work."""
    num_nodes: int
    """Nodes of the class."""
    step_s: float | None
    """For a class idle as a whole: step time of the best plan found that uses it [s]."""
    bound_s: float | None
    """No plan that uses it is faster than this [s]."""
    words: str
    """The reason in a sentence."""


class Relaxation(Data):
    """A change after which there is a plan."""

    change: str
    """What to change."""
    amount: float | None
    """How much of it, where it is a quantity."""
    unit: str
    """Unit of the amount."""
    least: bool
    """Whether it is proven that less does not do; else it is the least that was found in the time."""
    step_s: float
    """Step time of the first plan found with it [s]; not the best."""


class Explanation(Data):
    """All that `hetplan explain` finds out."""

    problem: str
    """Name of the problem."""
    step_s: float | None
    """Step time of the plan [s]; null where there is none."""
    best_step_s: float | None = None
    """Step time of the best plan found [s], which the changes below are compared with: less than `step_s`
    only where a plan was given that can be beaten."""
    bound_s: float | None = None
    """No plan of the problem is faster [s]; null where unknown."""
    critical_stage: int | None
    """Stage with the most work in a step."""
    bubble_fraction: float | None
    """Share of the step in which the slowest stage waits."""
    stages: tuple[StageReason, ...] = ()
    """Stage by stage."""
    gains: tuple[Gain, ...] = ()
    """Changes of the cluster and batch, the most useful first."""
    alternatives: tuple[Alternative, ...] = ()
    """Best plans of other kinds, the closest first."""
    idle: tuple[IdleReason, ...] = ()
    """Classes with idle nodes."""
    relaxations: tuple[Relaxation, ...] = ()
    """Without a plan: single changes that give one."""
    reason: str | None = None
    """Without a plan: why there is none."""
    infeasible: bool = False
    """Whether it is proven that there is no plan."""
    interrupted: bool = False
    """Whether a time limit or Ctrl-C left questions open."""


class Alone(Data):
    """One node class training the same model by itself."""

    node_class: str
    """Name of the class."""
    tokens_per_s: float
    """Throughput of the best plan found on it alone; 0 where none fits [tokens/s]."""
    tokens_per_s_at_most: float | None
    """No plan on it alone has more [tokens/s]; null where no bound is known."""
    words: str
    """The plan's degrees, or why there is none."""


class SplitComparison(Data):
    """One job on all classes against one job a class, each with the whole batch."""

    tokens_per_s: float
    """Throughput of the mixed plan [tokens/s]."""
    alone: tuple[Alone, ...]
    """Each class by itself."""
    mixing_gain: float | None
    """Throughput of the mixed plan over the sum of what the classes reach alone; above 1 the mix is more
    than the sum of its parts. Null where no plan of a class alone was found."""
    mixing_gain_at_least: float | None
    """The same against the bounds of the classes alone: proven. Null where no class can train alone, or one's
    bound is unknown."""
    mixing_gain_at_most: float | None
    """The same from the bound of the mix: proven. Null where that bound is unknown."""
    words: str
    """Whether to train together, in a sentence."""


class RobustPlan(Data):
    """How one plan fares when the numbers behind it are off."""

    words: str
    """The plan in words."""
    chosen: bool
    """Whether it is the most robust."""
    nominal: bool
    """Whether it is the best by the numbers as they are."""
    step_s: float
    """Predicted step time by the numbers as they are [s]."""
    worst_step_s: float | None
    """Longest step time over all draws [s]; null where it does not fit in all of them."""
    fits_fraction: float
    """Share of the draws in which it fits."""
    best_fraction: float
    """Share of the draws in which no other candidate is faster."""
    mean_loss: float | None
    """Mean of step time over that of the draw's best candidate, minus 1, where it fits."""
    worst_loss: float | None
    """Largest of the same."""


class Robustness(Data):
    """All candidates on all draws, the most robust first."""

    draws: int
    """How often the numbers were drawn."""
    plans: tuple[RobustPlan, ...]
    """The candidates: the nominal plans, and the best plan of every draw."""


class Change(Data):
    """What a plan changes of the one in use, where the cluster has changed."""

    within: float
    """How much slower than the best plan it was allowed to be: 0.05 is 5%."""
    behind_best: float
    """Its step time over that of the best plan, minus 1."""
    degrees_changed: tuple[str, ...]
    """Of tp, cp, ep, pp and vp those that differ."""
    keeps_classes: bool
    """Whether every stage lies on the class of nodes on which it lay."""
    loaded_fraction: float
    """Of the parameters on all hosts, each counted once a host, those that their host must load."""
    best_loaded_fraction: float
    """The same of the best plan."""
    layers_loaded: int
    """Layers that some host must load."""
    words: str
    """All that it decides otherwise, in words."""


class Economy(Data):
    """What nodes to use, and how far from the cheapest choice it can be."""

    objective: Literal["cost", "energy"]
    """What is least."""
    reach_step_s: float | None
    """Step time that had to be reached [s]; null where cost or energy a token is least."""
    unit: str
    """Unit of value and bound."""
    value: float | None
    """What the plan costs; null where there is none."""
    bound: float | None
    """No plan costs less; null where it is proven that there is none."""
    gap: float | None
    """(value - bound) / value."""
    nodes: dict[str, int]
    """Nodes that the plan uses, by class."""
    searches: int
    """Subsets of nodes that were searched."""
    interrupted: bool
    """Whether a time limit or Ctrl-C cut it."""
    words: str
    """The nodes in words, or why there is no plan."""
