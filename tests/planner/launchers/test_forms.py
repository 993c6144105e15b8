"""Other ways to start a launch directory: MPI numbers ranks as planned or stops, Kubernetes takes objects."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.launchers.directory import export_plan
from planner.launchers.forms.kubernetes import CLASS_LABEL
from planner.launchers.placement import place_hosts
from tests.planner.launchers import plans


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for a node of 8 H100 that holds two stages, and one of 4 A100."""
    case = plans.stages_share_a_host()
    return export_plan(*case, "megatron-lm", tmp_path_factory.mktemp("forms") / "launch")


def start_rank(directory: Path, programs: Path, host: str, rank: int, local: int, size: int = 12) -> Any:
    """Run one rank as mpirun would, with a python that only says what it was told."""
    for name, body in {
        "python": 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR $2"',
        "nvidia-smi": f"for i in {{1..{8 if host == 'node000' else 4}}}; do echo NVIDIA "
        f"{'H100 80GB HBM3' if host == 'node000' else 'A100-SXM4-80GB'}; done",
    }.items():
        (programs / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (programs / name).chmod(0o755)
    return subprocess.run(
        ["bash", str(directory / "forms/mpi/start_rank.sh")],
        env=os.environ
        | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HETPLAN_HOST": host,
            "NODE_RANK": "1",
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": str(size),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_mpi_hosts_stand_in_rank_order_with_their_processes(mixed: Path) -> None:
    assert (mixed / "forms/mpi/hostfile").read_text() == "node000 slots=8\nnode001 slots=4\n"
    ranks = (mixed / "forms/mpi/rankfile").read_text().splitlines()
    assert (ranks[0], ranks[7], ranks[8], len(ranks)) == (
        "rank 0=node000 slot=0",
        "rank 7=node000 slot=7",
        "rank 8=node001 slot=0",
        12,
    )


def test_mpi_runs_on_the_hosts_that_were_written_into_hosts_txt(mixed: Path, tmp_path: Path) -> None:
    """It asked for the invented names that hostfile and rankfile kept, and met at the first of them."""
    directory = shutil.copytree(mixed, tmp_path / "launch")
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "mpirun").write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
    (programs / "mpirun").chmod(0o755)
    run = ["bash", str(directory / "forms/mpi/run.sh")]
    environment = {k: v for k, v in os.environ.items() if k != "MASTER_ADDR"}
    environment["PATH"] = f"{programs}:{os.environ['PATH']}"
    told = subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout
    assert "MASTER_ADDR=node000" in told.split()
    assert (directory / "forms/mpi/hostfile").read_text() == (mixed / "forms/mpi/hostfile").read_text()
    # A rank that was pinned to other cores stays on them.
    rankfile = directory / "forms/mpi/rankfile"
    rankfile.write_text(rankfile.read_text().replace("rank 9=node001 slot=1", "rank 9=node001 slot=16-31"))
    (directory / "hosts.txt").write_text("big.example.org h100\n\nsmall.example.org\n")
    told = subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout
    assert "MASTER_ADDR=big.example.org" in told.split()
    hostfile = directory / "forms/mpi/hostfile"
    assert hostfile.read_text() == "big.example.org slots=8\nsmall.example.org slots=4\n"
    ranks = rankfile.read_text().splitlines()
    assert (ranks[0], ranks[9]) == ("rank 0=big.example.org slot=0", "rank 9=small.example.org slot=16-31")
    (directory / "hosts.txt").write_text("big.example.org\n")
    stopped = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    assert stopped.returncode == 1 and "lists 1 hosts, the plan has 2" in stopped.stderr


def test_all_that_a_user_may_set_goes_through_mpi(mixed: Path) -> None:
    """mpirun hands on what it is told to; another variable would be lost on every other host."""
    settings = set(re.findall(r"\$\{([A-Z_0-9]+):[-?]", (mixed / "launch.sh").read_text()))
    text = (mixed / "forms/mpi/run.sh").read_text()
    own_to_a_rank = {"NODE_RANK", "HETPLAN_RANK_IS_STARTED"}
    assert settings - own_to_a_rank - set(re.findall(r"[A-Z_0-9]+", text)) == set()


def test_a_rank_of_mpi_becomes_the_rank_of_megatron(mixed: Path, tmp_path: Path) -> None:
    done = start_rank(mixed, tmp_path, "node001", 9, 1)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:4] == ["9", "1", "12", "node000"]
    assert done.stdout.split()[4].endswith("lib/run_stage.py")
    assert (mixed / "logs/node-1/rank-9.log").read_text() == done.stdout


@pytest.mark.parametrize(
    ("host", "rank", "local", "size", "complaint"),
    [
        ("node001", 1, 1, 12, "where the plan has ranks 8 to 11"),
        ("node000", 8, 8, 12, "where the plan has ranks 0 to 7"),
        ("node000", 0, 0, 16, "16 ranks were started, the plan has 12"),
    ],
)
def test_a_rank_that_mpi_put_elsewhere_stops(
    host: str, rank: int, local: int, size: int, complaint: str, mixed: Path, tmp_path: Path
) -> None:
    done = start_rank(mixed, tmp_path, host, rank, local, size)
    assert done.returncode == 1
    assert complaint in done.stderr


def objects(directory: Path, name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((directory / "forms/kubernetes" / name).read_text()))


def test_pods_of_a_jobset_get_the_node_ranks_of_their_class(tmp_path: Path) -> None:
    problem, plan = plans.mixed_128()
    out = export_plan(problem, plan, "megatron-lm", tmp_path / "launch")
    (jobset,) = objects(out, "jobset.yaml")
    ranks: list[int] = []
    classes: list[str] = []
    for group in jobset["spec"]["replicatedJobs"]:
        job = group["template"]["spec"]
        assert (job["completionMode"], job["parallelism"]) == ("Indexed", job["completions"])
        pod = job["template"]["spec"]
        command = pod["containers"][0]["command"][2]
        for index in (0, job["completions"] - 1):
            script = command.replace("exec bash /hetplan/launch.sh", "printenv NODE_RANK")
            ran = subprocess.run(
                ["bash", "-c", script],
                env=os.environ | {"JOB_COMPLETION_INDEX": str(index)},
                capture_output=True,
                text=True,
                check=True,
            )
            ranks.append(int(ran.stdout))
            classes.append(pod["nodeSelector"][CLASS_LABEL])
            assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert ranks == [0, 7, 8, 15]
    places = place_hosts(problem, plan)
    assert classes == [places[rank].chip for rank in ranks]
    name = jobset["metadata"]["name"]
    address = {e["name"]: e.get("value") for e in pod["containers"][0]["env"]}["MASTER_ADDR"]
    assert address == f"{name}-g0-0-0.{jobset['spec']['network']['subdomain']}"


def test_failed_pods_start_anew_with_memory_to_share(mixed: Path) -> None:
    (jobset,) = objects(mixed, "jobset.yaml")
    assert jobset["spec"]["failurePolicy"] == {"maxRestarts": 3}
    for group in jobset["spec"]["replicatedJobs"]:
        job = group["template"]["spec"]
        pod = job["template"]["spec"]
        # The set as a whole starts anew, not a pod of it alone.
        assert (job["backoffLimit"], pod["restartPolicy"]) == (0, "Never")
        (shared,) = (volume for volume in pod["volumes"] if volume["name"] == "shm")
        assert shared["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}
        names = [variable["name"] for variable in pod["containers"][0]["env"]]
        assert {"CHECKPOINT_PATH", "DATA_PATH", "LOG_DIR"} <= set(names)
    for job in objects(mixed, "pytorchjobs.yaml"):
        worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
        assert worker["restartPolicy"] == worker["template"]["spec"]["restartPolicy"] == "OnFailure"
        assert job["spec"]["runPolicy"]["backoffLimit"] == 3 * worker["replicas"]


def test_each_class_is_a_pytorchjob_with_its_offset(mixed: Path) -> None:
    first, second = objects(mixed, "pytorchjobs.yaml")
    workers = [job["spec"]["pytorchReplicaSpecs"]["Worker"] for job in (first, second)]
    commands = [w["template"]["spec"]["containers"][0]["command"][2] for w in workers]
    assert [c.split("((")[1].split(" ")[0] for c in commands] == ["0", "1"]
    assert [w["replicas"] for w in workers] == [1, 1]
    limits = [w["template"]["spec"]["containers"][0]["resources"]["limits"] for w in workers]
    assert limits == [{"nvidia.com/gpu": 8}, {"nvidia.com/gpu": 4}]


def test_a_stage_on_two_classes_lies_as_planned_in_every_form(tmp_path: Path) -> None:
    """Its slow rank first, on a host of its own class; the fast ones follow on another."""
    out = export_plan(*plans.ranks_of_a_stage_on_two_classes(), "megatron-lm", tmp_path / "launch")
    in_order = [("node000", 8), ("node002", 2), ("node001", 6)]
    assert (out / "forms/mpi/hostfile").read_text() == "".join(f"{h} slots={n}\n" for h, n in in_order)
    dealt = [line.split()[1].split("=")[1] for line in (out / "forms/mpi/rankfile").read_text().splitlines()]
    assert dealt == [host for host, count in in_order for _ in range(count)]
    (jobset,) = objects(out, "jobset.yaml")
    pods = [g["template"]["spec"]["template"]["spec"] for g in jobset["spec"]["replicatedJobs"]]
    jobs = objects(out, "pytorchjobs.yaml")
    pods += [job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"] for job in jobs]
    started = [
        (pod["nodeSelector"][CLASS_LABEL], pod["containers"][0]["command"][2].split("((")[1][0])
        for pod in pods
    ]
    fast, slow = "h100-sxm-80gb", "a100-sxm-80gb"
    assert started == [(fast, "0"), (slow, "1"), (fast, "2")] * 2
    directives = (out / "submit.sbatch").read_text().split("#SBATCH hetjob")
    assert ["node000,node001" in directives[0], "node002" in directives[1]] == [True, True]


def test_every_file_of_the_directory_that_pods_need_is_in_the_config_map(mixed: Path) -> None:
    (jobset,) = objects(mixed, "jobset.yaml")
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    items = {item["path"] for item in pod["volumes"][0]["configMap"]["items"]}
    files = {str(p.relative_to(mixed)) for p in (mixed / "lib").rglob("*") if p.is_file()}
    assert items == files | {"launch.sh", "hosts.txt"}
    heading = (mixed / "forms/kubernetes/jobset.yaml").read_text().splitlines()[1]
    assert all(f"--from-file={path}" in heading for path in items)


@pytest.mark.parametrize("name", ["jobset.yaml", "pytorchjobs.yaml"])
def test_pods_and_jobs_meet_the_published_schemas(name: str, mixed: Path) -> None:
    # JobSet and PyTorchJob are defined by their operators; what they wrap are Jobs and Pods of Kubernetes.
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for tree in objects(mixed, name):
        wrapped = []
        for group in tree["spec"].get("replicatedJobs", []):
            wrapped.append(("batch/v1", "Job", group["template"]["spec"]))
            wrapped.append(("v1", "Pod", group["template"]["spec"]["template"]["spec"]))
        for replica in tree["spec"].get("pytorchReplicaSpecs", {}).values():
            wrapped.append(("v1", "Pod", replica["template"]["spec"]))
        assert wrapped
        for version, kind, spec in wrapped:
            whole = {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}
            kubernetes_validate.validate(whole, "1.30", strict=True)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_scripts_for_mpi_pass_shellcheck(mixed: Path) -> None:
    scripts = [str(path) for path in (mixed / "forms/mpi").glob("*.sh")]
    command = ["shellcheck", "-x", "-P", "SCRIPTDIR", *scripts]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert len(scripts) == 2
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI is not installed")
def test_open_mpi_deals_the_ranks_in_the_order_of_the_hostfile(tmp_path: Path) -> None:
    if "(Open MPI) 4" not in subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout:
        pytest.skip("only Open MPI 4 shows its map without starting anything")
    problem, plan = plans.stages_share_a_host()
    old, new = problem.cluster.classes
    names = {"node000": "zeta", "node001": "alpha"}  # sorted, they would stand the other way round
    classes = (old.model_copy(update={"hosts": ("zeta",)}), new.model_copy(update={"hosts": ("alpha",)}))
    cluster = problem.cluster.model_copy(update={"classes": classes})
    stages = tuple(
        stage.model_copy(update={"hosts": tuple(names[host] for host in stage.hosts)})
        for stage in plan.stages
    )
    out = export_plan(
        problem.model_copy(update={"cluster": cluster}),
        plan.model_copy(update={"stages": stages}),
        "megatron-lm",
        tmp_path / "launch",
    )
    command = ["mpirun", "-np", "12", "--hostfile", str(out / "forms/mpi/hostfile"), "--map-by", "slot"]
    command += ["--bind-to", "none", "--display-map", "--do-not-launch", "true"]
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    shown = subprocess.run(
        command, env=os.environ | allowed, capture_output=True, text=True, timeout=60, check=False
    ).stdout
    host, found = "", []
    for line in shown.splitlines():
        if "Data for node:" in line:
            host = line.split()[3]
        if "Process rank:" in line:
            found.append((int(line.split("Process rank:")[1].split()[0]), host))
    assert found == [(rank, "zeta" if rank < 8 else "alpha") for rank in range(12)]
