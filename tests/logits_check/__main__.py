"""Compares logits of networks that launch scripts build with those of the publishers' code.

    python -m tests.logits_check CASES.json

CASES.json lists pairs: the values of a `config.json` and a launch script. Prints, by place, the largest
difference of a logit over their standard deviation, or what went wrong, as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

from tests.megatron_check import standins
from tests.megatron_check.refusal import Refused

from .built import build
from .weights import state_of

TOKENS, SEQUENCES = 192, 2
"""Positions must be many: slow rotations turn little in the first ones."""


def main() -> None:
    """Compare all cases and print what was found."""
    import torch

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    standins.install(9)
    found = []
    for config, script in json.loads(Path(sys.argv[1]).read_text()):
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                found.append(difference(config, script))
        except (Refused, LookupError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            found.append(f"{type(error).__name__}: {error}")
    print(json.dumps(found))


def difference(config: dict[str, Any], script: str) -> float:
    """Largest difference of a logit, over the standard deviation of all."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(1)
    model = build(script)
    _randomise(model)
    known = AutoConfig.for_model(**config)
    network = AutoModelForCausalLM.from_config(known, attn_implementation="eager").to(torch.float32).eval()
    state = state_of(model, network)
    network.load_state_dict(state)
    tokens = torch.randint(0, config["vocab_size"], (SEQUENCES, TOKENS))
    positions = torch.arange(TOKENS).expand(tokens.shape)
    future = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)[None, None]
    with torch.no_grad():
        ours = model(tokens, positions, future).float()
        theirs = network(tokens, use_cache=False).logits.float()
    return float((ours - theirs).abs().max() / theirs.std())


SMALL = 0.004
"""Standard deviation of what flows between blocks, and into the norms inside them."""


def _randomise(model: Any) -> None:
    """Weights with which every number of the network shows in the logits.

    What flows between blocks stays small, so that epsilons of norms count; scores of attention and of experts
    are of the order of 1, so that positions, temperatures and choices do.
    """
    import torch

    normalised = ["linear_proj", "linear_fc2", "out_proj", "q_down"] + [
        "linear_qkv"
    ] * model.config.qk_layernorm
    compressed = getattr(model.config, "kv_lora_rank", 0)
    for name, weight in [*model.named_parameters(), *model.named_buffers()]:
        if not weight.is_floating_point() or "inv_freq" in name:
            continue
        with torch.no_grad():
            if "norm" in name:
                weight.normal_(0 if "parametrizations" in name or name.endswith("bias") else 1, 0.2)
            elif weight.dim() < 2:
                weight.normal_(0, 0.3 if name.endswith(("expert_bias", "softmax_offset")) else 0.02)
            elif "embedding" in name:
                weight.normal_(0, SMALL)
            else:
                weight.normal_(0, 1.5 / weight.shape[1] ** 0.5)
                weight[: compressed if "kv_down" in name else 0].mul_(SMALL)
                if any(part in name for part in normalised):
                    weight.mul_(SMALL)


if __name__ == "__main__":
    main()
