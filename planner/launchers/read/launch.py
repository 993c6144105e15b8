"""The way back from whatever starts a training run: which reader a file or launch directory asks for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from planner.data.cluster import Cluster
from planner.launchers.read.back import ReadBack
from planner.launchers.read.flagscale import read_flagscale
from planner.launchers.read.megatron import read_script


def read_launch(
    path: str | Path,
    cluster: str | Cluster,
    *,
    num_nodes: int | None = None,
    stack: str = "megatron-core",
    words: Sequence[str] = (),
) -> ReadBack:
    """Read a launch script of Megatron-LM or Megatron-Bridge, a FlagScale YAML, or a directory with either.

    Any other start script of a launch directory that we wrote stands for the whole directory.

    Parameters
    ----------
    cluster
        The chips that it runs on.
    num_nodes
        Nodes to run a script as; what it says itself where absent.
    words
        What follows a script on its command line.

    Raises
    ------
    InstanceError
        Where something is missing or cannot be read back.
    """
    path = _directory_of(Path(path))
    if path.suffix in (".yaml", ".yml"):
        return read_flagscale(path, cluster, stack=stack)
    folder = path if path.is_dir() else path.parent
    if (folder / "config.yaml").is_file() and (folder / "hostfile").is_file():
        return read_flagscale(folder, cluster, stack=stack)
    script = path / "launch.sh" if path.is_dir() else path
    return read_script(script, cluster, num_nodes=num_nodes, stack=stack, words=words)


def _directory_of(path: Path) -> Path:
    """The launch directory of ours that a file for Slurm, MPI or Kubernetes belongs to; else the path."""
    if path.name in ("submit.sbatch", "run.sh", "jobset.yaml", "pytorchjobs.yaml"):
        for folder in path.resolve().parents[:3]:
            if (folder / "launch.sh").is_file() and (folder / "plan.yaml").is_file():
                return folder
    return path
