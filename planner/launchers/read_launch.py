"""The way back from whatever starts a training run: which reader a file or launch directory asks for."""

from __future__ import annotations

from pathlib import Path

from planner.data.cluster import Cluster
from planner.launchers.read_flagscale import read_flagscale
from planner.launchers.read_megatron import ReadBack, read_script


def read_launch(
    path: str | Path, cluster: str | Cluster, *, num_nodes: int | None = None, stack: str = "megatron-core"
) -> ReadBack:
    """Read a launch script of Megatron-LM or Megatron-Bridge, a FlagScale YAML, or a directory with either.

    Parameters
    ----------
    cluster
        The chips that it runs on.
    num_nodes
        Nodes to run a script as; what it says itself where absent.

    Raises
    ------
    InstanceError
        Where something is missing or cannot be read back.
    """
    path = Path(path)
    if path.suffix in (".yaml", ".yml"):
        return read_flagscale(path, cluster, stack=stack)
    folder = path if path.is_dir() else path.parent
    if (folder / "config.yaml").is_file() and (folder / "hostfile").is_file():
        return read_flagscale(folder, cluster, stack=stack)
    return read_script(
        path / "launch.sh" if path.is_dir() else path, cluster, num_nodes=num_nodes, stack=stack
    )
