"""Which nodes a launch script has to be run as, so that what all of them start is known.

A script that only hands its node rank on to a launcher starts the same on every node; our own branch over
ranks at stated borders. Any other use of the rank makes every node one to be run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from planner.launchers.template_text import template

RANKS = ("NODE_RANK", "RANK", "SLURM_NODEID", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
"""Variables in which a node's rank is handed to a script."""

_NODE_TABLE = re.compile(r"(?ms)^describe_node\(\) \{\n(.*?)^\}\n")
"""The function of our launch directories that says what each node runs."""
_BRANCH = re.compile(r"\s*(?:if|elif) \(\(\$1 <= (\d+)\)\); then(?: #.*)?")
_SETTING = re.compile(r"\s*(?:[A-Z_]+=(?:\([^()$`]*\)|'[^']*'|[^\s$`'\"()]*)\s*)+")
"""Variables that are set to what does not depend on anything."""
_READS = re.compile(r"(?m)(?:^|[;&|]|\bthen|\bdo)\s*(?:source|\.|bash|sh|exec)\s+(?:-\w+\s+)*(\S+)")
"""Another script that a line reads or starts."""
_OUTPUT = re.compile(
    r"""(?:\d|&)?>>?\s*&?("[^"\n]*"|'[^'\n]*'|[^\s;|&]+)|\|&?\s*tee(?:\s+-a)?\s+("[^"\n]*"|\S+)"""
)
"""Where a command's output goes."""
_ASSIGNMENT = re.compile(r"\s*(?:export\s+|local\s+|readonly\s+|declare\s+(?:-\w+\s+)?)?(\w+)=(.*?)\s*;?\s*")
_SETTINGS_FILES = frozenset({".sh", ".env", ".conf", ".cfg"})
_LARGEST_BYTES = 1 << 20


def nodes_to_run(script: Path, chips_of_nodes: Sequence[int]) -> list[int]:
    """Nodes that stand for themselves and all that follow up to the next one, in order.

    Where they can be told, the last node is among them as well, to be compared with the one before it.

    Parameters
    ----------
    chips_of_nodes
        Chips of every node, which a script may ask for.
    """
    count = len(chips_of_nodes)
    text = script.read_text(encoding="utf-8", errors="replace")
    table = _NODE_TABLE.search(text)
    borders = _borders(table[1]) if table is not None else []
    if borders is None:
        return list(range(count))
    rest = text if table is None else text.replace(table[0], "")
    known = set(template("launch.sh").splitlines()) if table is not None else set()
    files = _files_beside(script) if table is None else {}
    if any(uses_rank(part, known) for part in (rest, *files.values())):
        return list(range(count))
    if table is None and any(_reads_elsewhere(part, script, files) for part in (text, *files.values())):
        return list(range(count))
    starts = {0, count - 1, *(border + 1 for border in borders)}
    starts |= {node for node in range(1, count) if chips_of_nodes[node] != chips_of_nodes[node - 1]}
    return sorted(node for node in starts if node < count)


def uses_rank(text: str, known: set[str]) -> bool:
    """Whether a script does more with its node rank than to hand it on.

    Parameters
    ----------
    known
        Lines that are known to do no more.
    """
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line not in known]
    names, found = set(RANKS), True
    while found:
        copies = {name for line in lines if (name := _copy_of(line, names)) is not None}
        found = not copies <= names
        names |= copies
    return any(_mentions(line, names) for line in lines)


def _borders(body: str) -> list[int] | None:
    """Last node of every branch of our node table; None where it is no longer as we write it."""
    borders = []
    for line in body.splitlines():
        branch = _BRANCH.fullmatch(line)
        if branch is not None:
            borders.append(int(branch[1]))
        elif line.strip() != "fi" and _SETTING.fullmatch(line) is None:
            return None
    return borders


def _copy_of(line: str, names: set[str]) -> str | None:
    """The variable that a line sets to a rank as it is, if it does only that; None else."""
    parts = _ASSIGNMENT.fullmatch(line)
    if parts is None:
        return None
    value = parts[2].strip("\"'")
    while nested := re.fullmatch(r"\$\{(\w+)(?::?-(.*))?\}", value):
        if nested[1] in names:
            return parts[1] if _plain(nested[2] or "", names) else None
        value = nested[2] or ""
    simple = re.fullmatch(r"\$(\w+)", value)
    return parts[1] if simple is not None and simple[1] in names else None


def _plain(value: str, names: set[str]) -> bool:
    """Whether a value computes nothing: a constant, or a rank itself."""
    told = set(re.findall(r"\w*[A-Za-z]\w*", value))
    return re.fullmatch(r"[\w${}:.-]*", value) is not None and ("$" not in value or told <= names)


def _mentions(line: str, names: set[str]) -> bool:
    """Whether a line uses a rank otherwise than to hand it on or to copy it."""
    line = re.sub(r"(^|\s)#.*", "", line)
    if _copy_of(line, names) is not None or re.fullmatch(r"\s*export(?:\s+\w+)*\s*", line):
        return False
    line = _OUTPUT.sub("", line)
    if re.fullmatch(r"\s*echo\s[^|;&`]*", line) and "$(" not in line:
        return False
    any_name = "|".join(sorted(names))
    handed_on = rf"--(?:node|machine)[-_]rank[\s=]+\\?\"?\\?\$\{{?(?:{any_name})(?::?-\w*)?\}}?\\?\"?"
    line = re.sub(handed_on, "", line)
    return re.search(rf"\b(?:{any_name})\b", line) is not None


def _files_beside(script: Path) -> dict[str, str]:
    """Settings and scripts in the same folder, which the script may read, by name."""
    return {
        path.name: path.read_text(encoding="utf-8", errors="replace")
        for path in sorted(script.resolve().parent.iterdir())
        if path.suffix in _SETTINGS_FILES
        and path.is_file()
        and path.resolve() != script.resolve()
        and path.stat().st_size <= _LARGEST_BYTES
    }


def _reads_elsewhere(text: str, script: Path, files: dict[str, str]) -> bool:
    """Whether a script reads one that is there, and neither beside it nor itself."""
    for word in _READS.findall(text):
        path = word.strip("\"';)")
        name = path.rpartition("/")[2]
        if name in files or name == script.name or not path.endswith(tuple(_SETTINGS_FILES)):
            continue
        if "$" in path or Path(path).exists() or (script.resolve().parent / path).exists():
            return True
    return False
