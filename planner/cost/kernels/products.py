"""Several matrix products as arrays, so that one numpy call serves them all."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from planner.cost.elementwise import Values
from planner.cost.kernels.operators import HALF, Matmul, Split
from planner.cost.lazy import lazy
from planner.cost.prices import Floats

_DIMENSIONS = np.array([[0, 0, 1], [1, 2, 2], [2, 1, 0]])
"""[dimension, pass] which of m, n and k are rows, columns and depth of forward, dgrad and wgrad."""


class Products:
    """Several products: arrays [product, choice]."""

    def __init__(self, matmuls: Sequence[Matmul]) -> None:
        self.matmuls = matmuls
        values = np.array([[x.m, x.n, x.k, x.count] for x in matmuls])
        self.single = values.ndim == 2
        self._shapes = values.reshape(len(matmuls), 4, -1).transpose(1, 0, 2)
        self.m, self.n, self.k, self.count = self._shapes
        self.weight = np.array([x.has_weight for x in matmuls])[:, None]
        self.grouped = [i for i, x in enumerate(matmuls) if x.grouped]
        self._found: dict[Hashable, Floats] = {}
        self.wide = [i for i, x in enumerate(matmuls) if not x.narrow]
        self.narrow = [i for i, x in enumerate(matmuls) if x.narrow]

    def sizes(self, *, cast: bool) -> tuple[Values | None, ...]:
        """What sets the time of these products of one choice: of a problem they are alike in all else.

        Parameters
        ----------
        cast
            Whether they run in fewer bits, so that operands are cast.
        """
        shapes = (size for x in self.matmuls for size in (x.m, x.n, x.k, x.count))
        return (*shapes, *(x.own_rows for x in self.matmuls)) if cast else tuple(shapes)

    @lazy
    def after_norm(self) -> NDArray[np.bool_]:
        """Whether a norm makes a product's input, array [product, 1]."""
        return np.array([x.after_norm for x in self.matmuls])[:, None]

    @lazy
    def input_again(self) -> NDArray[np.bool_]:
        """Whether its input is cast already, array [product, 1]."""
        return np.array([x.input_again for x in self.matmuls])[:, None]

    @lazy
    def own_inputs(self) -> Floats:
        """Rows of its input that a rank casts, the rest being gathered, array [product, choice]."""
        return self._own_rows("column")

    @lazy
    def own_gradients(self) -> Floats:
        """The same of its output's gradient."""
        return self._own_rows("row")

    def _own_rows(self, split: Split) -> Floats:
        own: Floats = self.m.copy()
        for i, x in enumerate(self.matmuls):
            if x.own_rows is not None and (x.split == "column") == (split == "column"):
                own[i] = x.own_rows
        return own

    @lazy
    def log_shapes(self) -> Floats:
        """Logarithms of rows, columns and depth of forward, dgrad and wgrad, array [dimension, pass, product,
        choice]."""
        shapes: Floats = np.log(self._shapes[:3])[_DIMENSIONS]
        return shapes

    @lazy
    def flop(self) -> Floats:
        """FLOP of one product of each, array [product, choice]."""
        flop: Floats = 2.0 * self.m * self.n * self.k
        return flop

    def once(self, key: Hashable, find: Callable[[], Floats]) -> Floats:
        """What is found of these products, read-only: node classes that ask for the same share it."""
        if key not in self._found:
            self._found[key] = find()
        return self._found[key]

    def moved_bytes(self, element: float, gradient_bytes: float) -> Floats:
        """Bytes that the three passes must move at least, array [pass, product, choice].

        wgrad reads and writes the sum of a weight's gradient.

        Parameters
        ----------
        element
            Bytes of a value that a product reads.
        """

        def moved() -> Floats:
            a, b, c = self.m * self.k, self.k * self.n, self.m * self.n
            summed = np.where(self.weight, 2 * gradient_bytes, HALF)
            return np.array(
                [element * (a + b) + HALF * c, element * (c + b) + HALF * a, element * (a + c) + summed * b]
            )

        return self.once(("moved", element, gradient_bytes), moved)

    @lazy
    def in_16_bits(self) -> Products:
        """Products that stay in 16 bits."""
        return Products([self.matmuls[i] for i in self.wide])

    @lazy
    def in_few_bits(self) -> Products:
        """Products that run in the workload's format."""
        return Products([self.matmuls[i] for i in self.narrow])
