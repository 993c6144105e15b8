"""As how few nodes a launch script is run: few where that tells all, each where its rank decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.launchers.directory import export_plan
from planner.launchers.forms.rank_arguments import arguments_of_ranks
from planner.launchers.read import run_script
from planner.launchers.read.alike_nodes import nodes_to_run
from planner.launchers.read.run_script import run_as_nodes
from tests.planner.launchers import plans

NODES = 12
HEAD = "#!/bin/bash\nARGS='--num-layers 4'\n"
START = "torchrun --nnodes $NNODES --nproc_per_node 8 --node_rank $NODE_RANK pretrain_gpt.py $ARGS\n"

FEW = {
    "handed on": HEAD + START,
    "copied": HEAD + "NODE_RANK=${SLURM_NODEID:-0}\nexport NODE_RANK\n" + START,
    "copied twice": HEAD + "R=${RANK:-${SLURM_PROCID:-0}}\nN=$R\n" + START.replace("$NODE_RANK", '"$N"'),
    "in quotes": HEAD + 'srun bash -c "' + START.strip().replace("$NODE_RANK", "\\$SLURM_NODEID") + '"\n',
    "logged": HEAD + 'echo "node $NODE_RANK"\n' + START.strip() + " 2>&1 | tee log_$NODE_RANK.txt\n",
    "on lines": HEAD + START.replace(" --node_rank", " \\\n  --node_rank"),
}
ALL = {
    "tested": HEAD + '[ "$NODE_RANK" = 5 ] && ARGS="$ARGS --recompute-granularity full"\n' + START,
    "copied and tested": HEAD + "N=$NODE_RANK\nif ((N == 5)); then ARGS=; fi\n" + START,
    "an index": HEAD + "A=(a b a)\nARGS=${A[$((NODE_RANK % 3))]}\n" + START,
    "computed": HEAD + "S=$((NODE_RANK / 4))\n" + START.replace("$ARGS", "--seed $S"),
    "a word": HEAD + START.replace("$ARGS", "--recompute-num-layers $NODE_RANK"),
    "in Python": HEAD + "ARGS=$(python3 -c 'import os; print(os.environ[\"RANK\"])')\n" + START,
    "beside": HEAD + 'source "$(dirname "$0")/settings.sh"\n' + START,
    "elsewhere": HEAD + "source $SETTINGS_OF_THE_SITE/all.sh\n" + START,
}


def script(folder: Path, text: str) -> Path:
    (folder / "settings.sh").write_text('case "$NODE_RANK" in 3) ARGS=other ;; esac\n')
    path = folder / "train.sh"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", FEW)
def test_a_rank_that_is_only_handed_on_needs_two_runs(name: str, tmp_path: Path) -> None:
    path = script(tmp_path, FEW[name])
    (tmp_path / "settings.sh").unlink()
    assert nodes_to_run(path, [8] * NODES) == [0, NODES - 1]
    assert nodes_to_run(path, [8] * 4 + [4] * 8) == [0, 4, NODES - 1]


@pytest.mark.parametrize("name", ALL)
def test_any_other_use_of_a_rank_runs_every_node(name: str, tmp_path: Path) -> None:
    assert nodes_to_run(script(tmp_path, ALL[name]), [8] * NODES) == list(range(NODES))


def started(path: Path, chips: list[int]) -> list[tuple[tuple[str, ...], int]]:
    """Words of every rank's process, node by node, without folders."""
    found, first = [], 0
    for start, count in run_as_nodes(path, len(chips), chips, (), []):
        for words in arguments_of_ranks(start, first, count, ""):
            found.append((tuple(word.replace(start.home, "~") for word in words), count))
        first += count
    return found


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("uniform", 2),
        pytest.param("mixed_128", 5, marks=pytest.mark.slow),
        ("stages_share_a_host", 2),
        pytest.param("virtual_stages", 2, marks=pytest.mark.slow),
    ],
)
def test_few_runs_of_a_launch_directory_tell_the_same_as_all(
    name: str, runs: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One run a node took 13 s where 128 nodes start alike."""
    problem, plan = plans.CASES[name]()
    out = export_plan(problem, plan, "megatron-lm", tmp_path / "launch")
    chips = [c.chips_per_node for c in problem.cluster.classes for _ in range(c.num_nodes)]
    assert len(nodes_to_run(out / "launch.sh", chips)) == runs
    few = started(out / "launch.sh", chips)
    monkeypatch.setattr(run_script, "nodes_to_run", lambda _script, chips: list(range(len(chips))))
    assert few == started(out / "launch.sh", chips)


def test_a_node_table_of_ones_own_runs_every_node(tmp_path: Path) -> None:
    out = export_plan(*plans.mixed_128(), "megatron-lm", tmp_path / "launch")
    text = (out / "launch.sh").read_text()
    (out / "launch.sh").write_text(
        text.replace("        PROCESSES=8", "        PROCESSES=$((8 - $1 % 2))", 1)
    )
    assert nodes_to_run(out / "launch.sh", [8] * 16) == list(range(16))
    added = text.replace(
        "command_of_node\nMASTER", "command_of_node\n[[ $NODE_RANK = 3 ]] && COMMAND+=(x)\nMASTER"
    )
    assert added != text
    (out / "launch.sh").write_text(added)
    assert nodes_to_run(out / "launch.sh", [8] * 16) == list(range(16))
