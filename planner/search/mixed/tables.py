"""What a pipeline with mixed stages costs at least, by kind of its stages and by what they consist of.

Two kinds of orders are priced. An order of *kinds* says of every stage which class sets its pace and whether
it is mixed; its values hold whatever else a mixed stage consists of: the memory of the roomiest class that
may fill it up, and gradients over the fastest link to one. An order of *compositions* names all classes of
every stage: the memory of the tightest, and gradients over the slowest link that a ring over its classes must
have (`planner.cost.communication.replica_sync`). Both are those of the pipeline of rank 0, so that the
objective of `stage_selection` is a bound on the referee's step time; that another rank has slower hops, or a
faster class hides less behind its backward, is left to the referee.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import lru_cache

import numpy as np

from formulations.stage_selection_data import StageSelectionData
from planner.cost.communication.collectives import LAUNCH_S
from planner.cost.communication.replica_sync import ReplicaPlace, replica_link
from planner.cost.memory.states import WEIGHT_BYTES
from planner.cost.parameters import (
    ParameterCounts,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    mtp_parameters,
    padded_vocab,
)
from planner.cost.prices import SIZES_BY_CLASS, Floats, Prices
from planner.cost.stage import shown_ends
from planner.data.problem import Problem
from planner.search.coefficients import stage_coefficients
from planner.search.kinds import layer_kinds
from planner.search.mixed.memory import fullest, less_room_gib, limits_of_kinds
from planner.search.mixed.rank_zero import of_rank_zero
from planner.search.mixed.space import MixedSpace
from planner.search.tables import ClassTables, Start, Tables, start_of
from planner.tolerances import BOUND_TOL
from planner.units import MS


class MixedTables(Tables):
    """Coefficients of orders of kinds and of compositions."""

    shares = False  # they depend on the cutoff, and on what other classes have left

    def __init__(
        self, problem: Problem, prices: Prices, space: MixedSpace, cutoff_s: Callable[[], float]
    ) -> None:
        """`cutoff_s` tells how fast a plan must be to be of interest."""
        self.space, self.plain, self.cutoff_s = space, problem, cutoff_s
        self.num_classes = len(problem.cluster.classes)
        self.whole_prices = of_rank_zero(problem, prices, space)
        self._slowest_link = lru_cache(maxsize=None)(self._find_slowest_link)
        super().__init__(with_mixed_classes(problem), self._with_mixed(), space.table)
        self._composed = lru_cache(maxsize=256)(self._of_compositions)

    def start(self, choice: int, class_of_stage: Sequence[int]) -> Start:
        """Coefficients of an order of kinds or of compositions, and what follows from them."""
        if class_of_stage[0] < 2 * self.num_classes:
            return super().start(choice, class_of_stage)
        return self._composed(choice, tuple(class_of_stage))

    def longest_step_s(self, choice: int, num_stages: int, used: Sequence[int]) -> float:
        """Unknown: stages too slow for the cutoff are left out."""
        return float("inf")

    def code(self, classes: Sequence[int]) -> int:
        """A composition as a number behind those of the kinds."""
        return 2 * self.num_classes + sum(1 << c for c in classes)

    def ranks_order(self, choice: int, code: int) -> tuple[int, ...]:
        """Classes of a composition in the order of its ranks."""
        mask = code - 2 * self.num_classes
        return self.space.slowest_first(choice, [c for c in range(self.num_classes) if mask >> c & 1])

    def _compute(self, choice: int, num_stages: int) -> ClassTables:
        """The same, with no more layers on a mixed stage than its own work and synchronisation allow.

        Where sends block, they hide synchronisation too (`_of_compositions`), by the longest hop at most.
        """
        tables = super()._compute(choice, num_stages)
        if not self.plain.stack.p2p_overlap:
            hidden_ms = self.prices.hidden_fraction * float(self.prices.send_s[choice].max()) / MS
            tables = replace(
                tables,
                follow_ms=np.maximum(tables.follow_ms - hidden_ms, 0.0),
                reduce_ms=np.maximum(tables.reduce_ms - hidden_ms, 0.0),
            )
        m = int(self.table.num_microbatches[choice])
        mixed = slice(self.num_classes, None)
        alone = (
            m * tables.times_ms[mixed] + self._exposed_ms(tables, choice)[:, None] + tables.follow_ms[mixed]
        )
        too_long = alone + tables.constant_ms > self.cutoff_s() / MS * (1 + BOUND_TOL)
        tables.times_ms[mixed][too_long] = np.inf
        return tables

    def _exposed_ms(self, tables: ClassTables, choice: int) -> Floats:
        """Reduction of the layers of a mixed stage that its backward does not hide, [node_class, n]."""
        kinds = layer_kinds(self.problem.model)
        assert kinds is not None
        mixed = slice(self.num_classes, None)
        layers = np.arange(tables.times_ms.shape[2])
        total = self.prices.layer_reduce_s[choice][:, mixed].min(axis=0)[:, None] / MS * layers
        backward = tables.backward_ms[mixed].max(axis=1)
        hidden = self.prices.hidden_fraction * np.where(np.isfinite(backward), backward, 0.0)
        if not self.plain.stack.p2p_overlap:
            hidden = hidden + self.prices.hidden_fraction * float(self.prices.send_s[choice].max()) / MS
        exposed: Floats = np.maximum(total - hidden, 0.0)
        return exposed

    def _with_mixed(self) -> Prices:
        """Prices by kind of stage: those of whole stages, then those of mixed ones."""
        prices = _twice(self.whole_prices)
        changed: dict[str, Floats] = {}
        for task, width in ("reduce", self.plain.stack.gradient_bytes), ("gather", WEIGHT_BYTES):
            for piece in ("layer", "embedding", "head", "head_beside_embedding"):
                name = f"{piece}_{task}_s"
                changed[name] = getattr(prices, name).copy()
                changed[name][..., self.num_classes :] = 0.0
            changed[f"layer_{task}_s"][..., self.num_classes :] = self._layers_s(width)
            tail = getattr(prices, f"{task}_tail_s").copy()
            tail[:, self.num_classes :] = 0.0
            changed[f"{task}_tail_s"] = tail
        return replace(prices, limit_bytes=limits_of_kinds(self.whole_prices), **changed)  # type: ignore[arg-type]

    def _layers_s(self, width: float) -> Floats:
        """Seconds for a layer's parameters over the fastest link to a faster class, [choice, kind, class]."""
        space, kinds = self.space, self.plain.model.layer_kinds
        found = np.zeros((len(space.usable), len(kinds), self.num_classes))
        counts = [layer_parameters(self.plain.model, kind) for kind in kinds]
        for choice in np.flatnonzero(space.usable.any(axis=1)).tolist():
            layers = np.array([self._parameters(choice, of_kind) for of_kind in counts])
            for c in np.flatnonzero(space.usable[choice]).tolist():
                rates = [self._ring(choice, (c, f))[0] for f in space.faster(choice, c)]
                if rates:
                    found[choice, :, c] = layers * width * min(rates)
        return found

    def _ring(self, choice: int, classes: Sequence[int]) -> tuple[float, float]:
        """Seconds for each byte of a rank, and beside it, of a ring over classes in the order of the ranks.

        The slowest link from one class to the next, which the ring has whatever the numbers of ranks.
        """
        degrees = self.space.table.degrees
        tp, ranks = int(degrees.tensor_parallel[choice]), int(degrees.data_parallel[choice])
        bytes_per_s, latency_s = self._slowest_link(tuple(classes), tp, int(degrees.context_parallel[choice]))
        return (ranks - 1) / ranks / bytes_per_s, (ranks - 1) * latency_s + LAUNCH_S

    def _find_slowest_link(self, classes: tuple[int, ...], tp: int, cp: int) -> tuple[float, float]:
        """Rate [bytes/s] and latency [s] of the slowest link of a ring over classes."""
        places = [ReplicaPlace(c, (str(c),), tp * cp, tp) for c in classes]
        after = [*places[1:], places[0]]
        return min(replica_link(self.plain, *pair) for pair in zip(places, after, strict=True))

    def _parameters(self, choice: int, counts: ParameterCounts) -> float:
        """Parameters that one chip of a row of degrees holds."""
        degrees = self.space.table.degrees
        return counts.per_rank(
            int(degrees.tensor_parallel[choice]),
            int(degrees.expert_parallel[choice]),
            int(degrees.expert_tensor_parallel[choice]),
        )

    def _of_compositions(self, choice: int, order: tuple[int, ...]) -> Start:
        classes = [self.ranks_order(choice, code) for code in order]
        size, m = int(self.table.stage_size[choice]), int(self.table.num_microbatches[choice])
        arguments = self.plain, self.whole_prices, choice, size, m, [own[0] for own in classes]
        data, alone = stage_coefficients(*arguments), stage_coefficients(*arguments, with_sends=False)
        # The blocking part of a pass hides synchronisation here, as the referee has it for replicas.
        changed = {name: getattr(alone, name).copy() for name in ("base_reduce_ms", "base_gather_ms")}
        synced = "reduce_ms", "reduce_tail_ms", "bucket_ms", "base_bucket_ms", "gather_ms", "gather_tail_ms"
        changed |= {name: getattr(data, name).copy() for name in synced}
        full = [fullest(self.whole_prices, choice, own) for own in classes]
        held = stage_coefficients(*arguments[:-1], full, with_sends=False) if full != arguments[-1] else data
        changed |= {name: getattr(held, name) for name in vars(held) if name.endswith("_gib")}
        changed["limit_gib"] = held.limit_gib.copy()
        for s, own in enumerate(classes):
            if len(own) > 1:
                self._mix(changed, choice, s, own, len(order))
        return start_of(replace(data, **changed))

    def by_memory(self, choice: int, order: tuple[int, ...]) -> list[StageSelectionData]:
        """An order of compositions as often as a stage has classes, in the memory of another one each time.

        A plan fits if and only if it fits in all of them.
        """
        classes = [self.ranks_order(choice, code) for code in order]
        size, m = int(self.table.stage_size[choice]), int(self.table.num_microbatches[choice])
        found = []
        for k in range(max(len(own) for own in classes)):
            holders = [own[min(k, len(own) - 1)] for own in classes]
            held = stage_coefficients(
                self.plain, self.whole_prices, choice, size, m, holders, with_sends=False
            )
            sizes = {name: value for name, value in vars(held).items() if name.endswith("_gib")}
            found.append(replace(self.data(choice, order), **sizes))
        return found

    def _mix(
        self, changed: dict[str, Floats], choice: int, s: int, classes: Sequence[int], num_stages: int
    ) -> None:
        """Write the synchronisation and the memory limit of a mixed stage."""
        prices = self.whole_prices
        per_byte_s, beside_s = self._ring(choice, classes)
        shown = shown_ends(prices, choice, classes[0], first=s == 0, last=s == num_stages - 1)
        layer, base = self._stage_parameters(choice, s, num_stages, shown)
        if any(shown):  # which have a share of it
            beside_s = 0.0
        for task, width in ("reduce", self.plain.stack.gradient_bytes), ("gather", WEIGHT_BYTES):
            changed[f"{task}_ms"][s] = layer * width * per_byte_s / MS
            changed[f"base_{task}_ms"][s] = (base * width * per_byte_s + beside_s) / MS
            changed[f"{task}_tail_ms"][s] = 0.0
        if s > 0 and prices.later_stages_have_one_bucket:
            changed["bucket_ms"][s] = changed["reduce_ms"][s]
            changed["base_bucket_ms"][s] = changed["base_reduce_ms"][s]
        is_end = s in (0, num_stages - 1)
        changed["limit_gib"][s] -= less_room_gib(
            prices, choice, classes, is_end=is_end, num_stages=num_stages
        )

    def _stage_parameters(
        self, choice: int, s: int, num_stages: int, shown: tuple[bool, bool]
    ) -> tuple[float, float]:
        """Parameters of a layer on one chip, and of what a stage holds beside its layers.

        `shown`: whether embedding and head are left out, whose exchange nothing hides.
        """
        model, kinds = self.plain.model, layer_kinds(self.plain.model)
        assert kinds is not None
        vocab = padded_vocab(model.vocab_size, int(self.space.table.degrees.tensor_parallel[choice]))
        main = self._parameters(choice, layer_parameters(model, model.layer_kinds[kinds.main]))
        lead = self._parameters(choice, layer_parameters(model, model.layer_kinds[kinds.lead]))
        base = kinds.num_lead * (lead - main) if s == 0 else 0.0
        ends = ParameterCounts()
        if s == 0 and not shown[0]:
            ends += embedding_parameters(model, vocab)
        if s == num_stages - 1 and not shown[1]:
            ends += head_parameters(model, vocab) + mtp_parameters(model)
            if model.tied_embeddings and s > 0:
                ends += ParameterCounts(tensor_sharded=vocab * model.hidden_size)
        return main, base + self._parameters(choice, ends)


def with_mixed_classes(problem: Problem) -> Problem:
    """The problem with a class for the mixed stages of each pace behind its own; for tables alone."""
    cluster = problem.cluster
    mixed = tuple(c.model_copy(update={"name": f"{c.name} mixed"}) for c in cluster.classes)
    doubled = cluster.model_copy(update={"classes": (*cluster.classes, *mixed)})
    return problem.model_copy(update={"cluster": doubled})


def _twice(prices: Prices) -> Prices:
    """Every class once for its whole stages, and once for mixed ones of its pace."""
    changed: dict[str, Floats] = {}
    for field in fields(prices):
        value = getattr(prices, field.name)
        if not isinstance(value, np.ndarray):
            continue
        if field.name in ("send_s", "tied_sync_s"):
            changed[field.name] = np.tile(value, (1, 2, 2))
        elif field.name == "limit_bytes":
            changed[field.name] = np.tile(value, 2)
        elif field.name.endswith("_s") or field.name in ("fixed_bytes", *SIZES_BY_CLASS):
            axis = 2 if field.name.startswith("layer_") else 1
            changed[field.name] = np.concatenate([value, value], axis=axis)
    return replace(prices, **changed)  # type: ignore[arg-type]
