"""Which limits lengths of pipelines are held against."""

from __future__ import annotations

from planner.search.meshes.bounding import WORTH_A_LIMIT, Learned


def test_a_length_is_asked_again_while_its_bound_and_what_it_kept_are_apart() -> None:
    """Two limits in vain left it to its single pipelines, though lower limits closed it soon."""
    learned, near = Learned(kept_ms={21: 110.0}), WORTH_A_LIMIT * 112.0
    assert learned.is_unsettled(21, 100.0, 112.0)
    assert learned.is_unsettled(21, 110.0 - 2.1 * near, 112.0)
    assert not learned.is_unsettled(21, 110.0 - 1.9 * near, 112.0)
    assert not learned.is_unsettled(22, 100.0, 112.0)
