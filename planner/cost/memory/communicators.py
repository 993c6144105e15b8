"""Memory of communicators, which lies outside what the framework's allocator hands out.

Each kind of group with several ranks has a communicator, and so has the whole job. On A100 joined by NVLink a
group of two took 544 MB, one of three or four 688 MB (github.com/NVIDIA/nccl, issue 964), on MI250X 0.65 GiB
(github.com/Lumi-supercomputer/LUMI-AI-Guide, issue 111); beyond a node the number of ranks no longer counts
(nccl, issue 986). An exchange of all with all connects every pair of a node: the first one among eight H100
took 3.28 GB more (issue 1685), 32 channels a pair; stages side by side below fast links are such pairs. A
mixture of experts under Megatron-LM on eight H100 held 7 to 10 GB in all (github.com/verl-project/verl, issue
6266). Since 2.19 NCCL takes whole pages of 2 MiB for each block on the chip (NCCL_CUMEM_ENABLE, by default),
which was seen to take more (issue 1137). In issue 964, of the summer before, three small blocks of a channel
took next to nothing (initChannel in src/channel.cc, ncclCudaCallocAsync in src/include/alloc.h); for 32
channels they are 192 MiB. What later releases save, which connect when something is exchanged, was not
measured: only stacks known to run 2.19 count that. Where switches add up (NVLink SHARP), NCCL holds buffers
for every rank of a group that lies on them (nvlsPerRankSize in its log: 192 MiB in 2.18 and 2.19, then 32),
for groups of three or more.

Which groups exchange anything is measured for Megatron-LM core 0.19.2: its calls to `torch.distributed` were
counted for 53 layouts on CPUs. Beside the groups that share layers, sequence, gradients, experts and the
pipeline these are the ranks of one replica (norm and zeros of the gradients, skipped steps), those that share
the distributed optimizer (all ranks), and with experts those of an expert layer (`megatron_inside`).
DeepSpeed's pipeline engine has one of a replica too, for the norm and overflows (`ds_model_proc_group` in
deepspeed/runtime/pipe/topology.py). Groups are made when they first exchange something: a stage holds those
of its own job, however many chips stay idle, and only the ends of a pipeline that group in which they sum the
gradients of the embedding (`_allreduce_embedding_grad` in megatron/core/distributed/finalize_model_grads.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from planner.cost.elementwise import Values, maximum, minimum, where
from planner.cost.memory.dispatchers import dispatcher_bytes
from planner.cost.sizes import Sizes
from planner.data.model_spec import ModelSpec
from planner.data.problem import Problem
from planner.data.stack import SoftwareStack
from planner.units import GB, GIB, MIB

TWO_RANKS = 544 / 688
"""Memory of a group of two over that of a larger one (nccl, issue 964)."""

EXCHANGE_PEERS = 7.0
"""Peers of a rank in the exchange that was measured; more are not known to take more."""

EXCHANGE_BYTES_PER_PEER = 3.28 * GB / EXCHANGE_PEERS
"""What it took for each of them (nccl, issue 1685)."""


def communicator_bytes(
    problem: Problem, sizes: Sizes, domain_chips: Sequence[float], dp_mode: str, holders: float = 2.0
) -> list[list[tuple[Values, Values]]]:
    """Memory of all communicators of a rank on each node class [bytes].

    Lists [node_class][length] of what a stage holds in each of its `planner.cost.prices.ROLES`, in a pipeline
    of length + 1 stages, the last also in any longer one. Nothing that the cluster has beside the pipeline
    counts. In a pipeline of stages of several sizes each counts as if all were of its own.

    Parameters
    ----------
    domain_chips
        [node_class] chips that fast links join.
    holders
        Stages that share an embedding that several hold.
    """
    stack, s, model = problem.stack, sizes, problem.model
    inside = sharing_inside(s)
    if stack.megatron_groups:
        inside += megatron_inside(model, s)
    inside_bytes, of_lengths = _alike_bytes(stack, inside), []
    for p in map(float, range(1, told_lengths(stack, domain_chips) + 1)):
        job = p * s.stage_chips
        groups, ends = sharing_across(s, job), []
        if stack.megatron_groups:
            groups += megatron_across(model, s, job, dp_mode)
            ends = embedding_groups(model, s, job, holders)
        elif stack.replica_communicator:
            groups.append(_replica_group(s, job))
        inner = inside_bytes + _alike_bytes(stack, groups)
        of_lengths.append((p, inside + groups, ends, inner, _alike_bytes(stack, ends)))
    per_peer = EXCHANGE_BYTES_PER_PEER if stack.communicator_gib else 0.0
    found = []
    for c, domain in enumerate(domain_chips):
        reduces = problem.chip_of(c).switch_reduces
        exchange = _exchange_bytes(model, stack, s, domain)
        of_class = []
        for p, groups, ends, inner, more in of_lengths:
            inner = inner + exchange + near_stages(s, p, domain) * per_peer
            if stack.far_communicator_gib is not None or (reduces and stack.switch_buffer_mib):
                inner = inner + _reach_bytes(stack, groups, domain, reduces)
                more = more + _reach_bytes(stack, ends, domain, reduces)
            of_class.append((inner, inner + more))
        found.append(of_class)
    return found


def told_lengths(stack: SoftwareStack, domain_chips: Sequence[float]) -> int:
    """Lengths of a pipeline that tell how much memory communicators take: longer ones take as much.

    A group of three is as large as any, and a stage has two neighbours. Where it also counts how far a group
    reaches, a pipeline of more stages than fast links join chips has no group of all stages below them.
    """
    if stack.far_communicator_gib is None and not stack.switch_buffer_mib:
        return 3
    return max(3, int(max(domain_chips)) + 1)


def _alike_bytes(stack: SoftwareStack, groups: Sequence[Group]) -> Values:
    """Memory of the communicators of some groups as if fast links joined all of each [bytes]."""
    return sum(_sets(group.ranks) for group in groups) * stack.communicator_gib * GIB


def _reach_bytes(stack: SoftwareStack, groups: Sequence[Group], domain_chips: float, reduces: bool) -> Values:
    """What there is beyond that by how far each group reaches [bytes]; `reduces`: whether switches add up."""
    found: Values = 0.0
    if stack.far_communicator_gib is not None:
        far = (stack.far_communicator_gib - stack.communicator_gib) * GIB
        found = found + far * sum(_sets(group.ranks) * group.reaches_beyond(domain_chips) for group in groups)
    if reduces and stack.switch_buffer_mib:
        near: Values = sum(_near_ranks(group, domain_chips) for group in groups)
        found = found + near * stack.switch_buffer_mib * MIB
    return found


class Group(NamedTuple):
    """Ranks that exchange something, each so many ranks after the last."""

    ranks: Values
    stride: Values = 1.0

    def reaches_beyond(self, domain_chips: float) -> Values:
        """One where it spans more chips than fast links join, else zero."""
        return where(self.ranks * self.stride > domain_chips, 1.0, 0.0)


def sharing_inside(sizes: Sizes) -> list[Group]:
    """The groups that share work inside a stage, as any stack has them; one rank needs no communicator."""
    s = sizes
    return [Group(s.tp), Group(s.cp, s.tp), Group(s.gradient_ranks, s.tp), Group(s.ep, s.etp)]


def sharing_across(sizes: Sizes, job: Values) -> list[Group]:
    """Those across stages: of the pipeline and of all ranks of the job."""
    return [Group(job / sizes.stage_chips, sizes.stage_chips), Group(job)]


def megatron_inside(model: ModelSpec, sizes: Sizes) -> list[Group]:
    """The further groups of Megatron-LM that exchange something inside every stage."""
    s = sizes
    if model.moe is None:
        return []
    of_experts = Group(s.expert_gradient_ranks, s.ep * s.etp)
    return [Group(s.tp * s.cp), Group(s.etp), Group(s.ep * s.etp), of_experts]


def megatron_across(model: ModelSpec, sizes: Sizes, job: Values, dp_mode: str) -> list[Group]:
    """Those across stages."""
    groups = [_replica_group(sizes, job)]
    if dp_mode == "distopt":
        groups.append(Group(job))
    elif model.moe is not None:
        groups.append(Group(sizes.ep * sizes.etp * (job / sizes.stage_chips)))
    return groups


def embedding_groups(model: ModelSpec, sizes: Sizes, job: Values, holders: float = 2.0) -> list[Group]:
    """The group of the first and the last stage of Megatron-LM where both hold the embedding, or of more."""
    if not model.copies_embedding:
        return []
    return [Group(minimum(job / sizes.stage_chips, holders), sizes.stage_chips)]


def _replica_group(sizes: Sizes, job: Values) -> Group:
    """The ranks that hold one copy of the model: neighbours in a stage, and as many in every other."""
    s = sizes
    stages = job / s.stage_chips
    return Group(s.tp * stages, where(stages > 1, s.stage_chips / s.tp, 1.0))


def near_stages(sizes: Sizes, num_stages: float, domain_chips: float) -> Values:
    """Neighbours in the pipeline that fast links join with a stage: at most the one before and the one after.

    The first and the last stage count as any other, as they send to each other where stages are interleaved.
    """
    together = minimum(domain_chips // sizes.stage_chips, num_stages)
    return minimum(maximum(together - 1, 0.0), 2.0)


def _near_ranks(group: Group, domain_chips: float) -> Values:
    """Ranks of a group on the rank's own switches, where they are enough for these to add up."""
    near = minimum(group.ranks, maximum(domain_chips / group.stride, 1.0))
    return where(near > 2, near, 0.0)


def _sets(ranks: Values) -> Values:
    """Communicators of a group, in those of a large one."""
    if isinstance(ranks, np.ndarray):
        return np.where(ranks > 2, 1.0, np.where(ranks > 1, TWO_RANKS, 0.0))
    return 1.0 if ranks > 2 else TWO_RANKS if ranks > 1 else 0.0


def _exchange_bytes(model: ModelSpec, stack: SoftwareStack, sizes: Sizes, domain_chips: float) -> Values:
    """What the exchange of tokens among experts connects, or the buffers of the library that moves them."""
    if not stack.communicator_gib or model.moe is None:
        return 0.0
    if stack.moe_dispatcher == "deduplicating":
        return dispatcher_bytes(model, stack, sizes, domain_chips)
    peers = maximum(minimum(sizes.ep, domain_chips) - 1, 0.0)
    return minimum(peers, EXCHANGE_PEERS) * EXCHANGE_BYTES_PER_PEER
