"""The batch script before a real Slurm: a heterogeneous job whose hosts sort otherwise than the plan."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.data.cluster import Cluster, NodeClass
from planner.data.load import build_problem
from planner.launchers.directory import export_plan
from tests.planner.launchers import plans

TOOL = Path(__file__).parents[4] / "shared" / "tools" / "one_machine_slurm.sh"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("slurmctld") is None, reason="Slurm is not installed"),
    pytest.mark.skipif(not TOOL.exists(), reason=f"{TOOL.name} is not at hand"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a Slurm of one's own needs root"),
]

DEADLINE_S = 90
"""Time for the job to run: the backfill scheduler starts heterogeneous jobs after up to half a minute [s]."""


@pytest.fixture
def slurm() -> Iterator[dict[str, str]]:
    """Environment of a Slurm with two partitions of two nodes each."""
    # Its sockets lie in this folder, and a socket's path holds 107 characters at most.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    said = subprocess.run(
        ["bash", str(TOOL), "start", str(folder), "new:zeta1,zeta2", "old:alpha1,alpha2"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    try:
        yield os.environ | {"SLURM_CONF": said.stdout.strip().split("=", 1)[1]}
    finally:
        subprocess.run(["bash", str(TOOL), "stop", str(folder)], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def put(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
    (folder / name).chmod(0o755)


def exported(folder: Path) -> Path:
    """A plan whose first stage lies on hosts that Slurm sorts last."""
    nodes = {"chips_per_node": 4, "num_nodes": 2, "nics_per_node": 1, "nic_gbit_per_s": 100}
    cluster = Cluster(
        id="two-partitions",
        classes=(
            NodeClass(name="new", chip="h100-sxm-80gb", hosts=("zeta2", "zeta1"), **nodes),
            NodeClass(name="old", chip="a100-sxm-80gb", hosts=("alpha1", "alpha2"), **nodes),
        ),
    )
    problem = build_problem(cluster=cluster, model="llama3-8b", seq_length=2048, global_batch_size=8)
    sketch = plans.Sketch([[20], [12]], [0, 1], data_parallel=8, num_microbatches=1)
    out = export_plan(problem, sketch.plan(problem), "megatron-lm", folder / "launch")
    # What a user fills in: the partition of each component.
    text = (out / "submit.sbatch").read_text()
    for partition in ("new", "old"):
        text = text.replace("##SBATCH --partition=FILL_IN", f"#SBATCH --partition={partition}", 1)
    (out / "submit.sbatch").write_text(text)
    return out


def test_every_node_of_a_heterogeneous_job_gets_the_rank_of_its_stage(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    out = exported(tmp_path)
    programs = tmp_path / "programs"
    programs.mkdir()
    put(programs, "torchrun", f'echo "$SLURMD_NODENAME $*" >>{tmp_path}/started')
    put(
        programs,
        "nvidia-smi",
        '[[ $SLURMD_NODENAME == zeta* ]] && name="H100 80GB HBM3" || name=A100-SXM4-80GB\n'
        'for i in 1 2 3 4; do echo "NVIDIA $name"; done',
    )
    environment = slurm | {"PATH": f"{programs}:{os.environ['PATH']}"}
    job = subprocess.run(
        ["sbatch", "--parsable", "submit.sbatch"],
        cwd=out,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert job.returncode == 0, job.stderr
    started = tmp_path / "started"
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        if started.exists() and len(started.read_text().splitlines()) == 4:
            break
        time.sleep(0.5)
    subprocess.run(["scancel", job.stdout.split(";")[0].strip()], env=environment, check=False)
    while (
        time.monotonic() < until
        and subprocess.run(
            ["squeue", "-h"], env=environment, capture_output=True, text=True, check=False
        ).stdout
    ):
        time.sleep(0.2)  # its steps end before their daemons do
    logs = "".join(path.read_text() for path in out.glob("slurm-*.out"))
    assert started.exists(), logs
    found = {}
    for line in started.read_text().splitlines():
        words = line.split()
        found[words[0]] = words[words.index("--node-rank") + 1], words[words.index("--master-addr") + 1]
    hosts = [line.split()[0] for line in (out / "hosts.txt").read_text().splitlines()]
    assert hosts == ["zeta2", "zeta1", "alpha1", "alpha2"]
    assert found == {host: (str(rank), "zeta2") for rank, host in enumerate(hosts)}, logs


def test_a_node_that_fails_ends_the_nodes_of_the_other_component(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    out = exported(tmp_path)
    programs = tmp_path / "programs"
    programs.mkdir()
    put(
        programs, "torchrun", f"[[ $SLURMD_NODENAME != alpha1 ]] || exit 7\nsleep 300\ntouch {tmp_path}/lived"
    )
    environment = slurm | {"PATH": f"{programs}:{os.environ['PATH']}", "HETPLAN_SKIP_CHECKS": "1"}

    def said(*words: str) -> str:
        done = subprocess.run(words, cwd=out, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    job = said("sbatch", "--parsable", "submit.sbatch").split(";")[0].strip()
    until = time.monotonic() + DEADLINE_S
    while said("squeue", "-h") and time.monotonic() < until:
        time.sleep(0.5)
    left = said("squeue", "-h")
    if left:
        said("scancel", job)
    logs = "".join(path.read_text() for path in out.glob("slurm-*.out"))
    assert not left, logs
    assert "Exited with exit code 7" in logs
    assert not (tmp_path / "lived").exists()
