"""Real training by Megatron-LM on CPUs, over gloo: what stands in for `pretrain_gpt.py`.

A launch directory starts this file through torchrun on every node, as it would start Megatron-LM's own.
Widths are shrunk as in `simulate`; layers, degrees, micro-batches and schedule are the plan's. Every
process trains TRAIN_ITERS iterations together with all others, and then writes its rank, node, place,
layers and losses to a file in the directory RANK_TABLE.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.megatron_check import simulate, standins
from tests.megatron_check.local_modules import prepare_local_modules
from tests.megatron_check.nodes import flags_of
from tests.megatron_check.validate import read_arguments


def main() -> None:
    """Train, then say where this process was."""
    import torch

    arguments, world_size = sys.argv[1:], int(os.environ["WORLD_SIZE"])
    rank, local_rank = int(os.environ["RANK"]), os.environ["LOCAL_RANK"]
    standins.install(9)
    torch.set_num_threads(1)
    standins.pretend_transformer_engine("2.9.0")
    args = read_arguments(arguments, world_size, rank)
    os.environ["LOCAL_RANK"] = local_rank
    standins.pretend_transformer_engine(None)
    prepare_local_modules()
    simulate.skip_data_and_compilation()
    seen = _watch_forward_steps()
    flags = flags_of(simulate.shrunk_arguments(arguments, args))
    del flags["--fake-process-group"]
    flags |= {"--distributed-backend": ("gloo",), "--train-iters": (os.environ["TRAIN_ITERS"],)}
    simulate.run_training([word for flag, values in flags.items() for word in (flag, *values)])
    line = {"rank": rank, "node": int(os.environ["GROUP_RANK"]), "place": simulate.coordinates(), **seen}
    Path(os.environ["RANK_TABLE"], f"{rank}.json").write_text(json.dumps(line))


def _watch_forward_steps() -> dict[str, list[Any]]:
    """Note the layers that this process runs, and the loss of every micro-batch on the last stage."""
    from megatron.core.utils import unwrap_model

    seen: dict[str, list[Any]] = {"layers": [], "losses": []}
    plain = simulate.forward_step

    def forward_step(batches: Any, model: Any, *others: Any) -> Any:
        numbers = [layer.layer_number - 1 for layer in unwrap_model(model).decoder.layers]
        seen["layers"] = sorted({*seen["layers"], *numbers})
        output, reduce = plain(batches, model, *others)

        def noted(losses: Any) -> Any:
            seen["losses"].append(float(losses.float().mean()))
            return reduce(losses)

        return output, noted

    simulate.forward_step = forward_step
    return seen


if __name__ == "__main__":
    main()
