"""The errors a caller can meet. A problem without a plan is none: the Result says it."""

from __future__ import annotations


class PlannerError(Exception):
    """Whatever Hetplan raises on purpose."""


class InstanceError(PlannerError):
    """The input is wrong: what, where in the file, the limit and the way out, in one line.

    Parameters
    ----------
    message
        What is wrong and the way out.
    where
        File or instance, and the path of the field in it, such as `p.yaml: cluster.classes[0].chip`.
    """

    def __init__(self, message: str, where: str = "") -> None:
        self.where = where
        super().__init__(f"{where}: {message}" if where else message)


class PlanRefusedError(PlannerError):
    """A target cannot express a plan, or the referee found violations in it."""


class SolverError(PlannerError):
    """A solver's fault, or one of ours: the answer cannot be trusted and is not given."""
