"""Attention over sliding windows: whole blocks of keys, at the pace of short sequences."""

from __future__ import annotations

import pytest

from planner.cost.communication.networks import network_of
from planner.cost.kernels.attention import attention_times
from planner.cost.prices import Degrees
from planner.cost.sizes import Sizes
from planner.data.load import load_model
from tests.planner.cost.problems import problem


def _forward_s(window: int | None, seq_length: int = 4096, every: int = 1) -> float:
    model = load_model("llama3-8b").model_copy(update={"sliding_window": window, "global_layer_every": every})
    of = problem(seq_length=seq_length)
    forward, _ = attention_times(
        network_of(of, 0).relative, model, Sizes.single(of, Degrees.single()), of.stack, 8.0
    )
    return float(forward)


def test_a_window_of_one_block_visits_two_at_the_pace_of_short_sequences() -> None:
    # Of 1,024 tokens a block of 128 queries visits (1,024 + 128) / 2 keys in the mean, of a window of 128 the
    # 256 of two blocks, but for the first one. Once 6% of a whole layer of 4,096.
    window, whole, short = _forward_s(128), _forward_s(None), _forward_s(None, 1024)
    assert window > 0.12 * whole
    visited = (4096 - 128) * 256 + 128 * 128
    assert window == pytest.approx(4 * short * visited / 4096 / 576, rel=0.35)  # short ones fill a chip less


def test_wider_windows_take_longer_up_to_the_whole() -> None:
    whole = _forward_s(None)
    times = [_forward_s(window) for window in (128, 256, 512, 1024, 2048, 3072, 4095)]
    assert times == sorted(times) and times[-1] <= whole
    assert times[-1] == pytest.approx(whole, rel=0.05)
    assert _forward_s(4096) == whole


def test_layers_with_and_without_windows_are_averaged() -> None:
    mean = (_forward_s(128) + _forward_s(None)) / 2
    assert _forward_s(128, every=2) == pytest.approx(mean)
