"""Lists of layers as Megatron-LM reads them: Python expressions such as `([1]*3+[0])*12`.

Source: megatron-core 0.19.2, `megatron/training/arguments.py`, `_eval_pattern`.
"""

from __future__ import annotations

import ast
from itertools import groupby

from planner.data.checks import MAX_LAYERS


def layer_list(text: str) -> list[int]:
    """The zeros and ones that an expression of lists, sums and multiples says.

    Raises
    ------
    ValueError
        Where it is anything else, or says more than models have layers.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(text) from None
    found = _value(tree.body)
    if not isinstance(found, list) or not {0, 1}.issuperset(found):
        raise ValueError(text)
    return found


def _value(node: ast.expr) -> list[int] | int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.List):
        return _short([number for number in map(_value, node.elts) if isinstance(number, int)], node.elts)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return _short(left + right)
        if isinstance(node.op, ast.Mult) and isinstance(left, list) and isinstance(right, int):
            return _short(left * min(right, MAX_LAYERS + 1)) if left else left
    raise ValueError(ast.dump(node)[:60])


def _short(numbers: list[int], elements: list[ast.expr] | None = None) -> list[int]:
    if len(numbers) > MAX_LAYERS or (elements is not None and len(elements) != len(numbers)):
        raise ValueError("too many layers, or no numbers")
    return numbers


def list_expression(numbers: list[int]) -> str:
    """An expression for a list, runs of one number together."""
    runs = ((number, len(list(run))) for number, run in groupby(numbers))
    return "(" + "+".join(f"[{number}]*{count}" for number, count in runs) + ")"
