"""Most layers that stages hold together, with so many of them of each class."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats

UNFIT = -1e6
"""Layers of a stage that not even the fewest fit: no sum with it reaches the model's layers."""
WALK_SHRINKS = 0.9
"""By how much each step of all prices together is shorter than the last."""
SWEEPS = 3
"""Times that every price is set where there are more than two classes."""

Ints = NDArray[np.int64]


def most_layers(
    layers: Floats, fewest: Ints, most: Ints, walks: int = 0, enough: Floats | None = None
) -> Floats:
    """Most layers of all stages, [..., class, stage], between so many stages of each class; never too small.

    For two classes the stages that gain most by the first take it. Beyond, an assignment problem, bounded by
    its dual: for any prices on the classes every stage takes its best class at those prices, and the prices
    are paid back for the stages that each class may have. Each price in turn is set so that its class is
    chosen as often as it may be; then all walk together `walks` times, up where a class is chosen too often,
    or until one of the values lies below what is `enough`.
    """
    num_classes, num_stages = layers.shape[-2:]
    if num_classes == 2:
        return _most_of_two(layers, fewest, most)
    price = np.zeros((*layers.shape[:-2], num_classes))

    def value() -> Floats:
        paid_back = np.where(price > 0, price * most, price * fewest).sum(axis=-1)
        total: Floats = (layers - price[..., None]).max(axis=-2).sum(axis=-1) + paid_back
        return total

    best = value()
    for _ in range(SWEEPS if num_classes > 1 else 0):
        for c in range(num_classes):
            others = np.delete(layers - price[..., None], c, axis=-2).max(axis=-2)
            gain = -np.sort(others - layers[..., c, :], axis=-1)
            wanted = (gain > 0).sum(axis=-1)
            first_too_many = gain[..., min(int(most[c]), num_stages - 1)]
            last_needed = gain[..., min(int(fewest[c]), num_stages) - 1]
            price[..., c] = np.where(
                wanted > most[c], first_too_many, np.where(wanted < fewest[c], last_needed, 0.0)
            )
            best = np.minimum(best, value())
    if walks and num_classes > 1 and (enough is None or not (best < enough).any()):
        best = np.minimum(best, _walked(layers, price, fewest, most, walks, enough))
    return best


def _walked(
    layers: Floats, price: Floats, fewest: Ints, most: Ints, walks: int, enough: Floats | None
) -> Floats:
    """Least value met on a walk of the prices against the stages that are too many or too few [...]."""
    reach = np.where(layers > UNFIT / 2, layers, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        step = np.nan_to_num(np.nanmax(reach, axis=(-2, -1)) - np.nanmin(reach, axis=(-2, -1)))[..., None] / 4
    best = np.full(layers.shape[:-2], np.inf)
    for _ in range(walks):
        worth = layers - price[..., None]
        paid_back = np.where(price > 0, price * most, price * fewest).sum(axis=-1)
        best = np.minimum(best, worth.max(axis=-2).sum(axis=-1) + paid_back)
        if enough is not None and (best < enough).any():
            break
        chosen = worth.argmax(axis=-2)
        counts = (chosen[..., None, :] == np.arange(len(most))[:, None]).sum(axis=-1)
        excess = np.maximum(counts - most, 0) + np.minimum(counts - fewest, 0)
        price = price + step * excess / np.maximum(np.abs(excess).sum(axis=-1, keepdims=True), 1)
        step = step * WALK_SHRINKS
    return best


def _most_of_two(layers: Floats, fewest: Ints, most: Ints) -> Floats:
    """Most layers for two classes, exactly; minus infinity where no numbers of stages add up."""
    num_stages = layers.shape[-1]
    least = max(int(fewest[0]), num_stages - int(most[1]))
    highest = min(int(most[0]), num_stages - int(fewest[1]))
    gain = -np.sort(layers[..., 1, :] - layers[..., 0, :], axis=-1)
    gained = np.cumsum(np.concatenate([np.zeros_like(gain[..., :1]), gain], axis=-1), axis=-1)
    of_second = layers[..., 1, :].sum(axis=-1)
    total: Floats = of_second + gained[..., least : highest + 1].max(axis=-1, initial=-np.inf)
    return total
