"""Plans that are too slow for what they would be taken for, told by paths through the schedules of others.

A path knows no times: a (path) row of `formulations.interleaved_paths` that was longest for one plan bounds
the step of every other plan of as many stages, chunks and micro-batches, whatever its classes and layers.
Rows of plans that turned out too slow are kept, and those seldom longest give way to new ones: most changes
of a plan that is good already then cost a product of small matrices instead of a schedule. Where steps are
read off two shorter ones the rows of both are added with the same weights; that is near the step, no bound.

The constants are guesses: they say how long it takes, never what is found.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from formulations.interleaved_paths import PathRow
from planner.cost.prices import Floats
from planner.search.heuristics.walkers import Bools
from planner.search.walks.cheapest import Ints

MOST_ROWS = 128
FIRST_ROWS = 16
"""Rows that are tried first, those most often longest."""
KEEPS = 0.97
"""Part that a look leaves of what counts how often a row was longest."""
NEW_ROW = 3.0
"""What that count begins with."""
MOST_PRODUCTS = 200_000
"""Products of one call of a matrix product; with more of them the library of numpy starts threads, and these
wait for each other where cores are shared."""
ROUNDING = 1e-9
"""Part of a limit by which a bound must exceed it."""


class PathScreen:
    """Rows (path) of plans of one number of stages, of chunks and of micro-batches."""

    def __init__(self) -> None:
        self._rows: Floats = np.zeros((0, 0))
        """[row, stage * piece]"""
        self._uses: Floats = np.zeros(0)

    def exceeding(self, pieces: Floats, after_ms: Floats, limit_ms: Floats) -> Bools:
        """Whether the step of a plan certainly exceeds its limit, [plan].

        Parameters
        ----------
        pieces
            [plan, stage, piece] of `planner.search.virtual.times`.
        after_ms
            [plan] what follows its reductions; infinite where it does not fit.
        """
        exceeding: Bools = after_ms > limit_ms
        if not len(self._rows):
            return exceeding
        rank = np.argsort(-self._uses, kind="stable")
        self._uses *= KEEPS
        for some in (rank[:FIRST_ROWS], rank[FIRST_ROWS:]):
            at = np.flatnonzero(~exceeding & np.isfinite(after_ms))
            if len(some) and len(at):
                longest, which = self._longest(pieces[at], some)
                exceeding[at] = longest + after_ms[at] > limit_ms[at] * (1 + ROUNDING)
                np.add.at(self._uses, some[which[exceeding[at]]], 1.0)
        return exceeding

    def _longest(self, pieces: Floats, some: Ints) -> tuple[Floats, Ints]:
        """Length of the longest of some rows for each plan, and which of them it is."""
        flat, rows = pieces.reshape(len(pieces), -1), self._rows[some].T
        size = max(1, MOST_PRODUCTS // rows.size)
        found = np.concatenate([flat[i : i + size] @ rows for i in range(0, len(flat), size)])
        which: Ints = found.argmax(axis=1)
        return found[np.arange(len(found)), which], which

    def learn(self, rows: Sequence[tuple[float, PathRow]]) -> None:
        """Keep a row, or what rows add up to with their weights."""
        new: Floats = np.sum([weight * _flat(row) for weight, row in rows], axis=0)
        if len(self._rows) < MOST_ROWS:
            self._rows = np.concatenate([self._rows.reshape(-1, len(new)), new[None]])
            self._uses = np.append(self._uses, NEW_ROW)
            return
        least = int(np.argmin(self._uses))
        self._rows[least], self._uses[least] = new, NEW_ROW


def _flat(row: PathRow) -> Floats:
    """How often each piece lies on a row, [stage * piece]."""
    forward, backward = np.array(row.forward), np.array(row.backward)
    last = np.zeros((len(forward), 3))
    last[:, 0], last[row.end_stage, 1] = row.sends, 1.0
    flat: Floats = np.concatenate([forward, backward, last], axis=1).ravel()
    return flat
