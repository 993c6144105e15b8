"""What is left of communication that runs beside computation.

Hidden communication slows the computation that hides it by 13% (Galvatron, arXiv 2211.13878, the
published overlap coefficient 1.13).
"""

from __future__ import annotations

from planner.cost.elementwise import Values, minimum

OVERLAP_SLOWDOWN = 0.13
"""Time that computation loses per second of communication hidden behind it (Galvatron, above)."""

SHARDS_SLOWDOWN = 0.3
"""The same where PyTorch gathers and scatters shards in every micro-batch, by NCCL's usual kernels: 1.3 in
the evaluation of Galvatron, with PyTorch's collectives beside products (README of its overlap test; it says
1.1 to 1.3 elsewhere). On A100 and H100 computation beside such collectives was 18.9% slower on average (arXiv
2507.03114). Megatron-FSDP's recipes register their buffers, for which kernels of few multiprocessors do. That
PyTorch's lie at the upper end of that range was judged with measured runs in view."""


def exposed_behind(
    communication_s: Values,
    computation_s: Values,
    share: Values = 1.0,
    slowdown: float = OVERLAP_SLOWDOWN,
) -> Values:
    """What is left of communication behind computation, with what the computation loses by it [s].

    Parameters
    ----------
    share
        Of the communication, what the schedule lets run beside computation at all.
    slowdown
        Time that computation loses per second of what is hidden.
    """
    hidden = minimum(share * communication_s, computation_s)
    return communication_s - hidden + slowdown * hidden


def partly_hidden(communication_s: Values, fraction: float) -> Values:
    """What is left of communication of which the stack hides a fraction [s]."""
    return communication_s * (1 - fraction + OVERLAP_SLOWDOWN * fraction)
