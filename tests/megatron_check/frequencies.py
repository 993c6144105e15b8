"""Prints the scale and the rotary frequencies that Megatron's YaRN builds. Runs in Megatron's environment."""

from __future__ import annotations

import sys


def main() -> None:
    """Numbers by name on the command line: factor, length, fast, slow, base and size of a head."""
    from tests.megatron_check import standins

    standins.install(9)
    from megatron.core.models.common.embeddings.yarn_rotary_pos_embedding import YarnRotaryEmbedding

    given = dict(zip(sys.argv[1::2], map(float, sys.argv[2::2]), strict=True))
    built = YarnRotaryEmbedding(
        int(given["head"]),
        rotary_base=given["base"],
        use_cpu_initialization=True,
        scaling_factor=given["factor"],
        original_max_position_embeddings=int(given["length"]),
        beta_fast=given["fast"],
        beta_slow=given["slow"],
        correction_range_round_to_int=False,
    )
    angles, scale = built.get_emb(2)
    print(scale, *angles[1, 0, 0, : int(given["head"]) // 2].tolist())


if __name__ == "__main__":
    main()
