"""Prices of the pieces of a stage on one node class, as arrays of axis `choice`."""

from __future__ import annotations

from typing import NamedTuple

from planner.cost.checkpointing import policy_of, repeated_shares
from planner.cost.communication.inside_node import inside_s
from planner.cost.communication.last_bucket import LastBucket
from planner.cost.communication.layer_communication import (
    TensorCollectives,
    context_layer_s,
    cut_heads_s,
    expert_layer_s,
    tensor_collectives,
    tensor_forward_s,
    tensor_layer_s,
)
from planner.cost.communication.links import Network
from planner.cost.communication.overlap import exposed_behind, partly_hidden
from planner.cost.communication.synchronisation import Synchronisation, synchronisation
from planner.cost.communication.userbuffers import PieceTimes, piece_times
from planner.cost.elementwise import Values, exists, maximum, total, where
from planner.cost.kernels.attention import attention_times
from planner.cost.kernels.compute import MatmulTimes, gradient_sum_s, traffic_s
from planner.cost.kernels.gated_units import plain_gated_s
from planner.cost.kernels.host_waits import HEAD_LAUNCHES, HostWaits, Parts, parts_of
from planner.cost.kernels.linear_attention import exchanged_heads_s, mixer_s
from planner.cost.kernels.operators import HALF
from planner.cost.kernels.small_tensors import small_tensors
from planner.cost.kernels.traffic import ring_traffic, selective_traffic
from planner.cost.kernels.work import Piece, Routed, Work
from planner.cost.memory.attention_buffers import gathered_heads_bytes
from planner.cost.parameters import embedding_parameters, head_parameters, layer_parameters
from planner.cost.recomputation import launches_again, modules_of, products_again, tensor_blocks_again
from planner.cost.sharding import Sharding, Tensors
from planner.cost.sizes import Sizes, context_levels
from planner.data.chip import HALF_PRECISIONS
from planner.data.model_spec import WITH_ATTENTION, LayerKind
from planner.data.problem import Problem
from planner.data.stack import SoftwareStack

EMBEDDING_RATE = 0.5
"""Rate of gathering and scattering rows over that of copies (guess)."""


class LayerTimes(NamedTuple):
    """Prices of one layer, by part [s]."""

    forward: Parts
    backward: Parts
    selective: Parts
    full: Parts


class ClassPricing:
    """Prices of each piece on one node class, from the times of its products there."""

    def __init__(
        self,
        problem: Problem,
        work: Work,
        times: MatmulTimes,
        network: Network,
        stack: SoftwareStack,
        sizes: Sizes,
        class_index: int,
        dp_mode: str,
    ) -> None:
        self.problem, self.work, self.sizes, self.vocab = problem, work, sizes, work.vocab
        self.times, self.model, self.stack = times, problem.model, stack
        self.layer_work = work.layers[self.stack.flash_attention]
        self.kinds, self.pieces = work.kinds, work.pieces
        chip = problem.chip_of(class_index)
        precision = problem.workload.precision
        self.network, self.relative = network, network.relative
        self.factor = self.stack.time_factor.get(chip.id, 1.0)
        self.zero = sizes.zeros
        self.host = HostWaits(self.stack, chip, sizes)
        self.sync: Synchronisation = synchronisation(
            self.network, sizes, dp_mode, self.stack, precision, self.model.moe is not None
        )
        self.last_bucket = LastBucket(self.sync, self.network, dp_mode, self.stack, precision)
        self.sharding = Sharding(self.network, sizes, dp_mode, self.stack, precision)
        self.tensor: TensorCollectives = tensor_collectives(
            self.network, self.model, sizes, precision, self.stack
        )
        self.layers: dict[LayerKind, LayerTimes] = {}
        self.attention = self._attention()

    def _attention(self) -> tuple[Values, Values]:
        """Forward and backward of core attention [s]."""
        if self.stack.flash_attention:
            forward, backward = attention_times(
                self.relative, self.model, self.sizes, self.stack, self.network.domain_chips
            )
            ring = context_levels(self.stack, self.sizes, self.network.domain_chips)[1]
            if self.stack.cp_exchange == "all_gather" or not exists(ring > 1):
                return forward, backward
            joined = ring_traffic(self.model, self.stack, self.sizes, ring)
            return (
                forward + traffic_s(self.relative, joined.forward_bytes),
                backward + traffic_s(self.relative, joined.backward_bytes),
            )
        piece = self.pieces["scores"]
        traffic = self.work.scores
        forward = total(piece.rows(self.times.forward_s))
        both = total(piece.rows(self.times.dgrad_s)) + total(piece.rows(self.times.wgrad_s))
        return (
            forward + traffic_s(self.relative, traffic.forward_bytes),
            both + traffic_s(self.relative, traffic.backward_bytes),
        )

    def layer(self, kind: LayerKind) -> LayerTimes:
        """Forward, backward and recomputation of one layer."""
        if kind not in self.layers:
            self.layers[kind] = self._layer(kind)
        return self.layers[kind]

    def _layer(self, kind: LayerKind) -> LayerTimes:
        stack, sizes, piece = self.stack, self.sizes, self.pieces[kind]
        forward = total(piece.rows(self.times.forward_s))
        backward = total(piece.rows(self.times.dgrad_s)) + total(piece.rows(self.times.wgrad_s))
        work = self.layer_work[kind]
        forward = forward + traffic_s(self.relative, work.traffic.forward_bytes) + work.starts_s[0]
        backward = backward + traffic_s(self.relative, work.traffic.backward_bytes) + work.starts_s[1]
        has_attention = kind in WITH_ATTENTION
        core = self.attention if has_attention else (self.zero, self.zero)
        gated = plain_gated_s(self.relative, self.model, kind, stack, sizes)
        for more in (gated, mixer_s(self.relative, self.model, kind, sizes), core):
            forward, backward = forward + more[0], backward + more[1]
        compute = (self.factor * forward, self.factor * backward)
        passes = (
            total(piece.column_rows(self.times.dgrad_s)),
            total(piece.column_rows(self.times.wgrad_s)),
        )
        tp = tensor_layer_s(
            self.tensor, stack, sizes, work.blocks, work.reductions, *passes, self._pieces(piece)
        )
        cp = (exchanged_heads_s(self.network, self.model, kind, sizes),) * 2
        gathered = gathered_heads_bytes(self.model, sizes) if has_attention else self.zero
        if exists(gathered > 0):
            cut = cut_heads_s(self.network, gathered, sizes)
            tp = (tp[0] + cut[0], tp[1] + cut[1])
        if has_attention:
            cp = context_layer_s(self.network, self.model, stack, sizes, core[0], core[1])
        ep = expert_layer_s(self.network, self.model, kind, stack, sizes)
        if stack.ep_overlap:
            # What tensor-parallel ranks of experts gather alone hides behind nothing.
            share = where(sizes.ep > 1, stack.ep_overlap_share, 0.0)
            ep = (exposed_behind(ep[0], compute[0], share), exposed_behind(ep[1], compute[1], share))
        dp: tuple[Values, Values] = (0.0, 0.0)
        if self.sharding.scatters:
            tensors = Tensors.of(piece.matmuls, small_tensors(self.model, kind))
            dp = self.sharding.layer_s(layer_parameters(self.model, kind), tensors, compute)
        times = self.stack.forwards_per_layer
        ran = (times * compute[0], times * tp[0], times * cp[0], times * ep[0])
        launched, reduced = times * work.launches, times * work.blocks
        if work.routed is not None:
            launched = maximum(launched, self._after_counting(piece, work.routed, total(ran), ep[0]))
        # FSDP keeps what it gathered for the recomputation until the backward is done, ZeRO-3 lets go of it.
        first = again = self.host.launched(parts_of(*ran, dp[0]), launched, reduced)
        if self.sharding.gathers and not self.sharding.releases_after_forward:
            again = self.host.launched(parts_of(*ran), launched, reduced)
        alone = parts_of(compute[1], tp[1], cp[1], ep[1], dp[1])
        return LayerTimes(
            forward=first,
            backward=self.host.launched(*work.launched_backward(alone)),
            selective=self._selective(kind, piece, core[0], cp[0], ep[0], alone),
            full=again,
        )

    def _after_counting(self, piece: Piece, routed: Routed, all_s: Values, exchange_s: Values) -> Values:
        """Launches that take as long as a forward whose experts the host launches when tokens are counted.

        The chip does what comes before the experts, then waits while they are launched.
        """
        times = zip(piece.matmuls, piece.rows(self.times.forward_s), strict=True)
        experts = total(time for product, time in times if product.grouped)
        experts = self.factor * (experts + traffic_s(self.relative, routed.moved_bytes)) + exchange_s
        return routed.launches + (all_s - experts) / self.host.layer_s

    def _pieces(self, piece: Piece) -> PieceTimes | None:
        """Tensor-parallel products in pieces, where the stack runs them so; never with latent attention."""
        if not self.stack.tp_userbuffers or self.model.mla is not None or not exists(self.sizes.tp > 1):
            return None
        whole = MatmulTimes(
            *(piece.rows(t) for t in (self.times.forward_s, self.times.dgrad_s, self.times.wgrad_s))
        )
        precision = self.problem.workload.precision
        return piece_times(self.relative, piece.matmuls, whole, self.sizes, precision, self.stack)

    def _selective(
        self, kind: LayerKind, piece: Piece, core: Values, cp: Values, ep: Values, backward: Parts
    ) -> Parts:
        """Forward of the modules that selective recomputation runs again, with their collectives, amid a
        backward without its waits; core attention alone counts no launch."""
        zero = self.zero
        if self.stack.selective_modules == ("core_attn",):
            return parts_of(self.factor * core, zero, cp if kind in WITH_ATTENTION else zero, zero)
        modules = modules_of(self.model, kind, self.stack.selective_modules)
        again = products_again(modules)
        shares = dict.fromkeys(again, 1.0)
        if "every_second_product" in modules:
            shares = repeated_shares(self.model, kind)
        times = zip(piece.matmuls, piece.rows(self.times.forward_s), strict=True)
        compute = zero + total(shares.get(product.name, 0.0) * time for product, time in times)
        has_core = "core_attn" in modules or policy_of(modules) is not None
        if has_core:
            compute = compute + core
        narrow = self.problem.workload.precision not in HALF_PRECISIONS
        moved = selective_traffic(self.model, kind, self.stack, self.sizes, narrow)
        compute = self.factor * (compute + traffic_s(self.relative, moved))
        blocks = tensor_blocks_again(self.model, modules)
        tp = tensor_forward_s(self.tensor, self.stack, self.sizes, blocks)
        parts = parts_of(compute, tp, cp if has_core else zero, ep if "moe" in modules else zero)
        launched = launches_again(self.model, self.stack, modules, self.sizes, narrow)
        return self.host.amid(parts, launched, self.layer_work[kind].launched_backward(backward), blocks)

    def embedding(self) -> tuple[Parts, Parts]:
        """Forward and backward of the embedding [s].

        Autograd fills its whole gradient with zeros before it adds rows (`embedding_dense_backward` of
        PyTorch). No product takes that to the sum of the micro-batches: a kernel of its own does
        (`param.main_grad.add_`, core/distributed/distributed_data_parallel.py of Megatron-LM).
        """
        traffic, starts_s = self.work.embedding, self.work.end_starts_s[0]
        rate = EMBEDDING_RATE * self.relative.memory_bytes_per_s
        sp, t, zero = self.sizes.splits_sequence, self.tensor, self.zero
        learned = self.model.position_embedding == "learned"
        scatter = t.all_reduce_s if learned else t.reduce_scatter_s
        parameters = self.work.vocab / self.sizes.tp * self.model.hidden_size
        added_s = traffic_s(self.relative, HALF) + gradient_sum_s(self.relative, self.stack)
        forward = traffic.forward_bytes / rate + starts_s[0]
        backward = traffic.backward_bytes / rate + starts_s[1] + parameters * added_s
        dp = (zero, zero)
        if self.sharding.scatters:
            counts = embedding_parameters(self.model, self.vocab)  # type: ignore[arg-type]
            dp = self.sharding.root_s(counts, Tensors([parameters], 0), zero)
        return (
            parts_of(forward, where(sp, scatter, t.all_reduce_s), zero, zero, dp[0]),
            parts_of(backward, where(sp, t.all_gather_s, 0.0), zero, zero, dp[1]),
        )

    def head(self) -> tuple[Parts, Parts]:
        """Forward and backward of final norm, head and loss [s].

        Each multi-token prediction adds a layer of the last kind (or those of a hybrid's pattern), the map of
        two states to one and another head.
        """
        forward, backward = self._one_head()
        predictions = self.model.mtp_num_layers
        if not predictions:
            return forward, backward
        layers, merge = [self.layer(kind) for kind in self.model.prediction_kinds], self.pieces["merge"]
        layer_forward = [total(values) for values in zip(*(x.forward for x in layers), strict=True)]
        layer_backward = [total(values) for values in zip(*(x.backward for x in layers), strict=True)]
        zero = self.zero
        once = self.factor * merge.rows(self.times.forward_s)[0]
        twice = self.factor * (merge.rows(self.times.dgrad_s)[0] + merge.rows(self.times.wgrad_s)[0])
        return (
            _with_predictions(forward, layer_forward, parts_of(once, zero, zero, zero), predictions),
            _with_predictions(backward, layer_backward, parts_of(twice, zero, zero, zero), predictions),
        )

    def _one_head(self) -> tuple[Parts, Parts]:
        """Norm, head and loss once."""
        piece, sizes, t = self.pieces["head"], self.sizes, self.tensor
        traffic, starts_s = self.work.head, self.work.end_starts_s[1]
        forward = total(piece.rows(self.times.forward_s))
        dgrad, wgrad = piece.rows(self.times.dgrad_s)[0], piece.rows(self.times.wgrad_s)[0]
        forward = self.factor * (forward + traffic_s(self.relative, traffic.forward_bytes) + starts_s[0])
        moved_s = traffic_s(self.relative, traffic.backward_bytes)
        backward = self.factor * (dgrad + wgrad + moved_s + starts_s[1])
        sp, zero, rows = sizes.splits_sequence, self.zero, 4.0 * sizes.tokens
        if self.stack.gathers_logits:
            loss = inside_s(self.network, "all_gather", HALF * sizes.tokens * self.vocab, sizes.tp)
        elif self.stack.fused_cross_entropy:
            loss = total(inside_s(self.network, "all_reduce", x, sizes.tp) for x in (rows, 2 * rows))
        else:
            loss = 3 * inside_s(self.network, "all_reduce", rows, sizes.tp)
        # The head is Megatron's own map, which user buffers do not serve.
        hidden = 0.0 if self.stack.tp_userbuffers else self.stack.tp_overlap_fraction
        gather = partly_hidden(where(sp, t.all_gather_s, 0.0), hidden)
        # Two collectives run behind dgrad and wgrad of the head, which are always the longer.
        behind = where(sp, t.all_gather_s + t.reduce_scatter_s, t.all_reduce_s)
        dp = (zero, zero)
        if self.sharding.scatters:
            counts, tensors = head_parameters(self.model, self.vocab), Tensors.of(piece.matmuls, 0)  # type: ignore[arg-type]
            dp = self.sharding.head_s(counts, tensors, (forward, backward))
        of_forward = parts_of(forward, gather + loss, zero, zero, dp[0])
        of_backward = parts_of(backward, partly_hidden(behind, 1.0), zero, zero, dp[1])
        launched = self.host.launched
        return launched(of_forward, HEAD_LAUNCHES), launched(of_backward, 2 * HEAD_LAUNCHES)


def _with_predictions(once: Parts, layer: Parts, merge: Parts, predictions: int) -> Parts:
    """A head and further predictions, each of which is a layer, the map of two states to one, and a head."""
    return [a + predictions * (a + b + c) for a, b, c in zip(once, layer, merge, strict=True)]
