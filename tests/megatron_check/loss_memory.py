"""Most memory that Megatron-LM's loss holds at once, in bytes a logit: every tensor's storage is watched.

Prints one JSON object with the plain loss and the fused one (not compiled), forward and backward.
"""

from __future__ import annotations

import json
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

TOKENS, ENTRIES = 64, 4096


def main() -> None:
    """Run both losses on 16-bit logits."""
    from tests.megatron_check import standins

    standins.install(9)
    import torch
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.fusions.fused_cross_entropy import fused_vocab_parallel_cross_entropy

    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": sys.argv[1], "RANK": "0", "WORLD_SIZE": "1"}
    torch.distributed.init_process_group("gloo")
    parallel_state.initialize_model_parallel()
    group = parallel_state.get_tensor_model_parallel_group()
    labels = torch.randint(0, ENTRIES, (TOKENS, 1))
    found = {
        "plain": most_bytes(lambda logits: tensor_parallel.vocab_parallel_cross_entropy(logits, labels)),
        "fused": most_bytes(lambda logits: fused_vocab_parallel_cross_entropy(logits, labels, group)),
    }
    sys.stdout.write(json.dumps({name: size / (TOKENS * ENTRIES) for name, size in found.items()}))


def most_bytes(loss: Callable[[Any], Any]) -> int:
    """Most bytes of storage alive at once, from the making of the logits to the end of the backward."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    alive: dict[int, int] = {}
    most = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal most
            result = func(*args, **(kwargs or {}))
            for tensor in tree_leaves(result):
                if isinstance(tensor, torch.Tensor):
                    storage = tensor.untyped_storage()
                    if storage._cdata not in alive:
                        alive[storage._cdata] = storage.nbytes()
                        weakref.finalize(storage, alive.pop, storage._cdata, None)
            most = max(most, sum(alive.values()))
            return result

    state = torch.zeros(TOKENS, 1, 1, dtype=torch.bfloat16, requires_grad=True)
    with Watch():
        loss(state.expand(TOKENS, 1, ENTRIES) * 1.0).mean().backward()
    return most


if __name__ == "__main__":
    main()
