"""Times of the products of all pieces on every node class, and which choices of degrees share them."""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.communication.networks import networks_of
from planner.cost.elementwise import Values
from planner.cost.identity import remembered
from planner.cost.kernels.compute import MatmulTimes, matmul_times
from planner.cost.kernels.products import Products
from planner.cost.kernels.work import Work
from planner.cost.sizes import Sizes
from planner.cost.stacks import stacks_of
from planner.data.chip import HALF_PRECISIONS
from planner.data.problem import Problem


def product_times(problem: Problem, products: Products) -> tuple[MatmulTimes, ...]:
    """Times of the products of all pieces, for every node class."""
    of_classes = zip(networks_of(problem), stacks_of(problem), strict=True)
    precision = problem.workload.precision
    return tuple(matmul_times(network.relative, products, precision, stack) for network, stack in of_classes)


@remembered
def work_of_one(problem: Problem, sizes: Sizes, vocab: float) -> tuple[Work, tuple[MatmulTimes, ...]]:
    """Work and times of a single choice of degrees; choices that part a micro-batch alike share them."""
    work = Work.of(problem, sizes, vocab)
    cast = problem.workload.precision not in HALF_PRECISIONS
    return work, _times_of_one(problem, _Products(work.products, work.products.sizes(cast=cast)))


@dataclass(frozen=True, eq=False)
class _Products:
    """Products of a single choice; the same where all their sizes agree."""

    products: Products
    sizes: tuple[Values | None, ...]

    def __hash__(self) -> int:
        return hash(self.sizes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Products) and self.sizes == other.sizes


@remembered
def _times_of_one(problem: Problem, of: _Products) -> tuple[MatmulTimes, ...]:
    """Times of the products of a single choice; choices that differ elsewhere share them."""
    return product_times(problem, of.products)
