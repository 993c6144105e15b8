"""A program that gains rows ends, whatever its solver does."""

from __future__ import annotations

import json
from pathlib import Path

from formulations.solvers import GrowingProgram

CIRCLING = Path(__file__).with_name("circling_program.json")
"""What a search for FlagScale once asked, step by step: costs, rows, bounds and solves."""


def test_a_program_that_goes_round_in_circles_ends_without_an_answer():
    (_, costs), *steps = json.loads(CIRCLING.read_text())
    program, answers = GrowingProgram(costs), []
    for kind, *step in steps:
        if kind == "row":
            program.add_row("row", {int(i): value for i, value in step[0].items()}, step[1])
        elif kind == "bounds":
            program.set_bounds(*step)
        else:
            answers.append(program.solve())
    assert [answer is None for answer in answers] == [False, False, False, True]
