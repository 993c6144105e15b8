"""The exported script really trains: eight processes, two nodes on the loopback, Megatron-LM over gloo."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from planner.data.problem import Problem
from planner.launchers.directory import export_plan
from tests.planner.launchers import plans, real_megatron
from tests.planner.launchers.conftest import ROOT

pytestmark = pytest.mark.slow

ITERATIONS = 2
DEADLINE_S = 400
"""Eight processes that import PyTorch on two cores, with others beside them [s]."""


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def tiny_plan(recompute: dict[int, Any]) -> plans.Case:
    """Two stages of five and three layers, a node of four chips each."""
    sketch = plans.Sketch(
        [[5], [3]],
        [0, 1],
        tensor_parallel=2,
        data_parallel=2,
        num_microbatches=3,
        sequence_parallel=True,
        recompute=recompute,
    )
    nodes = "1x4 h100-sxm-80gb, 1x4 a100-sxm-80gb"
    problem, plan = plans.case("llama3-8b", nodes, 6, 2048, sketch)
    short = problem.model.model_copy(update={"id": "short-llama", "num_layers": 8, "published_params": None})
    return Problem(**(dict(problem) | {"model": short})), plan


def train(python: str, out: Path, folder: Path) -> list[dict[str, Any]]:
    """Start every node as an operator would; what each process wrote, by rank."""
    checkout, table = folder / "checkout", folder / "table"
    checkout.mkdir()
    table.mkdir()
    # Megatron-LM's entry point lies in its checkout, not in the wheel. Every process of torchrun hands on
    # what it was given to a child of the process that has imported Megatron-LM, and waits for it.
    check = ROOT / "tests" / "megatron_check"
    command = [str(check / "client.py"), real_megatron.server(python), str(check / "train.py")]
    entry = f"import os, sys\nos.execv(sys.executable, [sys.executable, *{command!r}, *sys.argv[1:]])\n"
    (checkout / "pretrain_gpt.py").write_text(entry)
    environment = os.environ | {
        "PATH": f"{Path(python).parent}:{os.environ['PATH']}",
        "MEGATRON_PATH": str(checkout),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "TRAIN_ITERS": str(ITERATIONS),
        "RANK_TABLE": str(table),
    }
    nodes = [
        subprocess.Popen(
            ["bash", str(out / "launch.sh")],
            env=environment | {"NODE_RANK": str(node)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in range(2)
    ]
    try:
        said = [node.communicate(timeout=DEADLINE_S)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], "\n".join(text[-3000:] for text in said)
    return [json.loads((table / f"{rank}.json").read_text()) for rank in range(8)]


def test_the_exported_script_trains_what_the_plan_says(megatron_python: str, tmp_path: Path) -> None:
    problem, plan = tiny_plan({0: ("full", 2)})
    out = export_plan(problem, plan, "megatron-lm", tmp_path / "launch")
    ranks = train(megatron_python, out, tmp_path)
    for rank, seen in enumerate(ranks):
        stage = rank // 4
        assert seen["rank"] == rank
        assert seen["node"] == stage, "each node holds one stage"
        assert seen["place"] == {"tp": rank % 2, "cp": 0, "dp": rank // 2 % 2, "pp": stage}
        first, last = plan.stages[stage].layers
        assert seen["layers"] == list(range(first, last + 1))
    logs = [out / "logs" / f"node-{rank // 4}" for rank in range(8)]
    assert all(
        len(list(log.glob(f"*/attempt_0/{rank % 4}/stdout.log"))) == 1 for rank, log in enumerate(logs)
    )
    # Only the last stage has a loss: one a micro-batch and iteration, near that of a guess over the
    # shrunk vocabulary, and the same on both tensor-parallel ranks of a replica.
    assert all(seen["losses"] == [] for seen in ranks[:4])
    assert all(len(seen["losses"]) == plan.num_microbatches * ITERATIONS for seen in ranks[4:])
    guess = math.log(2 * 128)
    assert all(abs(loss - guess) < 0.1 * guess for seen in ranks[4:] for loss in seen["losses"])
    assert [ranks[4]["losses"], ranks[6]["losses"]] == [ranks[5]["losses"], ranks[7]["losses"]]
