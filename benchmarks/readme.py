"""Put real output into the README: one plan from start to end, and the errors of the predictions.

    python benchmarks/readme.py                    the plan
    python benchmarks/readme.py --runs RUNS.jsonl  the plan and the table of errors

Each block stands between `<!-- begin NAME: ... -->` and `<!-- end NAME -->`; nothing else is touched.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
COLUMNS = 100
"""Width that a README shows without scrolling."""


def hetplan(*arguments: str, cwd: Path = ROOT) -> str:
    """Standard output of a command."""
    environment = {**os.environ, "COLUMNS": str(COLUMNS)}
    command = [sys.executable, "-m", "planner.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=True)
    return done.stdout


def plan_block() -> str:
    """The output of the README's own command."""
    with tempfile.TemporaryDirectory() as folder:
        text = hetplan("plan", "llama3-70b-h100-a100-128", "--out", "launch", "--quiet", cwd=Path(folder))
    lines = [line.rstrip() for line in text.splitlines()]
    return "```\n" + "\n".join(lines).strip("\n") + "\n```"


def accuracy_block(runs: str) -> str:
    """Errors by suite, as they come and anchored on other runs of the same chip and software."""
    plain = json.loads(hetplan("accuracy", runs, "--json"))["suites"]
    anchored = json.loads(hetplan("accuracy", runs, "--anchor", "leave-one-out", "--json"))["suites"]
    lines = ["| runs of | scored | left out | step error | anchored | memory scored | memory error |"]
    lines.append("|---" * 7 + "|")
    scored = left_out = 0
    for name, suite in plain.items():
        step, memory, skipped = suite["step"], suite["memory"], sum(suite["skipped"].values())
        scored, left_out = scored + step["n"], left_out + skipped
        if not step["n"] and not memory["n"]:
            continue
        cells = (
            name,
            str(step["n"]),
            str(skipped or "-"),
            percent(step["mape"]),
            percent(anchored[name]["step"]["mape"]),
            str(memory["n"] or "-"),
            percent(memory["mape"]),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", NOTE.format(scored=scored, left_out=left_out)])


NOTE = """\
Error: mean of |predicted / measured - 1|. *Anchored*: each prediction scaled by a factor from **other** runs
of the same chip and software in the same file, never of the same model and layout; where such runs have
little in common this makes it worse. {scored} runs are scored, {left_out} are left out (low
quality, fields that the source does not state), whole suites among them.

These runs were at hand while the cost model was written: read the figures as errors on known runs, not as a
promise for new ones. The `onechip` runs were measured on chips whose operators also fed the tables; a suite
of few runs says little."""


def percent(fraction: Any) -> str:
    """A fraction in percent; a dash where absent."""
    return "-" if fraction is None else f"{100 * fraction:.1f}%"


def put(text: str, name: str, block: str) -> str:
    """The text with one block replaced."""
    pattern = re.compile(rf"(<!-- begin {name}: [^\n]*-->\n).*?(\n<!-- end {name} -->)", re.DOTALL)
    replaced, count = pattern.subn(lambda m: m.group(1) + block + m.group(2), text)
    if count != 1:
        raise SystemExit(f"{README} has {count} blocks named {name}")
    return replaced


def main() -> int:
    """Replace the blocks."""
    parser = argparse.ArgumentParser(description="Put real output into the README.")
    parser.add_argument("--runs", help="measured runs, for the table of errors")
    flags = parser.parse_args()
    text = put(README.read_text(), "plan", plan_block())
    if flags.runs:
        text = put(text, "accuracy", accuracy_block(flags.runs))
    README.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
