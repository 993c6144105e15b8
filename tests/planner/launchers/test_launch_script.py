"""The start scripts themselves: which rank a host gets, what stops them, what they start."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from planner.launchers.directory import export_plan
from planner.launchers.forms.environments import environment_text
from planner.launchers.megatron.arguments import words as argument_words
from planner.launchers.megatron.plan_arguments import recompute_arguments, recompute_modules, refusals
from tests.planner.launchers import plans

H100 = "NVIDIA H100 80GB HBM3"
A100 = "NVIDIA A100-SXM4-80GB"


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for 8 nodes of H100 and 8 of A100."""
    return export_plan(*plans.mixed_128(), "megatron-lm", tmp_path_factory.mktemp("mixed") / "launch")


@pytest.fixture
def on_host(tmp_path: Path) -> Path:
    """A folder of programs for PATH, with a torchrun that only says how it was started."""
    programs = tmp_path / "programs"
    programs.mkdir()
    put(programs, "torchrun", 'printf "%s\\n" "$@"')
    return programs


def put(programs: Path, name: str, body: str) -> None:
    """Put a shell program in the folder."""
    (programs / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
    (programs / name).chmod(0o755)


def devices(programs: Path, *names: str) -> None:
    """Let nvidia-smi list devices."""
    put(programs, "nvidia-smi", "\n".join(f'echo "{name}"' for name in names))


def start(directory: Path, programs: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run launch.sh with the programs first in PATH."""
    clean = {k: v for k, v in os.environ.items() if k not in ("NODE_RANK", "SLURMD_NODENAME", "HETPLAN_HOST")}
    return subprocess.run(
        ["bash", str(directory / "launch.sh")],
        env=clean | {"PATH": f"{programs}:{os.environ['PATH']}"} | environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def value(words: str, flag: str) -> str:
    """Word after a flag, one word a line."""
    lines = words.splitlines()
    return lines[lines.index(flag) + 1]


@pytest.mark.parametrize(("host", "rank", "name"), [("node000", "0", H100), ("node011", "11", A100)])
def test_node_rank_is_the_line_of_the_host(
    host: str, rank: str, name: str, mixed: Path, on_host: Path
) -> None:
    devices(on_host, *[name] * 8)
    put(on_host, "hostname", f"echo {host}")
    done = start(mixed, on_host)
    assert done.returncode == 0, done.stderr
    assert value(done.stdout, "--node-rank") == rank
    assert value(done.stdout, "--master-addr") == "node000"


def test_full_name_serves_where_the_short_one_is_not_listed(
    mixed: Path, on_host: Path, tmp_path: Path
) -> None:
    directory = shutil.copytree(mixed, tmp_path / "launch")
    hosts = directory / "hosts.txt"
    hosts.write_text(hosts.read_text().replace("node003 ", "gpu3.example.org "))
    devices(on_host, *[H100] * 8)
    put(on_host, "hostname", "[[ ${1:-} == -s ]] && echo gpu3 || echo gpu3.example.org")
    assert value(start(directory, on_host).stdout, "--node-rank") == "3"


@pytest.mark.parametrize("told", ["GPU3", "gpu3.example.org", "10.0.0.3"])
def test_a_list_of_hosts_as_people_write_it_serves(
    told: str, mixed: Path, on_host: Path, tmp_path: Path
) -> None:
    """An empty line gave every host below it the rank of the next, so that rank 0 was missed for ever."""
    directory = shutil.copytree(mixed, tmp_path / "launch")
    hosts = directory / "hosts.txt"
    lines = hosts.read_text().replace("node003 ", f"{told} ").splitlines()
    names = [line.split()[0] for line in lines]
    hosts.write_text("\r\n".join(["# ours", "", *names[:2], "", *names[2:], ""]))
    devices(on_host, *[H100] * 8)
    put(
        on_host,
        "hostname",
        'case ${1:-} in -s) echo gpu3 ;; -I) echo "10.0.0.3 fe80::3" ;; *) echo gpu3.example.org ;; esac',
    )
    done = start(directory, on_host)
    assert done.returncode == 0, done.stderr
    assert value(done.stdout, "--node-rank") == "3"
    assert value(done.stdout, "--master-addr") == "node000"


def test_a_host_that_is_listed_twice_stops(mixed: Path, on_host: Path, tmp_path: Path) -> None:
    """It took the first of its lines, and the others waited for the second."""
    directory = shutil.copytree(mixed, tmp_path / "launch")
    hosts = directory / "hosts.txt"
    hosts.write_text(hosts.read_text().replace("node003 ", "node001 "))
    devices(on_host, *[H100] * 8)
    done = start(directory, on_host, HETPLAN_HOST="node001")
    assert done.returncode == 1 and not done.stdout
    assert "several times" in done.stderr and "1 3" in done.stderr


def test_unknown_host_stops_with_its_names_and_the_way_out(mixed: Path, on_host: Path) -> None:
    put(on_host, "hostname", "echo stranger")
    done = start(mixed, on_host)
    assert done.returncode == 1
    assert not done.stdout
    assert "stranger" in done.stderr
    assert "hosts.txt" in done.stderr


def test_slurm_name_of_the_node_serves_where_the_host_has_another(mixed: Path, on_host: Path) -> None:
    devices(on_host, *[H100] * 8)
    put(on_host, "hostname", "echo machine")
    assert value(start(mixed, on_host, SLURMD_NODENAME="node005").stdout, "--node-rank") == "5"


def test_preset_node_rank_needs_neither_host_name_nor_device_tool(mixed: Path, on_host: Path) -> None:
    put(on_host, "hostname", "exit 1")
    done = start(mixed, on_host, NODE_RANK="9")
    assert done.returncode == 0, done.stderr
    assert value(done.stdout, "--node-rank") == "9"
    assert "nvidia-smi is missing" in done.stderr


def test_missing_device_tool_stops_a_host_that_was_looked_up(mixed: Path, on_host: Path) -> None:
    done = start(mixed, on_host, HETPLAN_HOST="node000")
    assert done.returncode == 1
    assert "nvidia-smi is missing" in done.stderr


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        ([A100] * 8, "has a NVIDIA A100-SXM4-80GB"),
        ([H100] * 7 + [A100], "has a NVIDIA A100-SXM4-80GB"),
        ([H100] * 4, "has 4 devices"),
        (["NVIDIA H100 PCIe"] * 8, "has a NVIDIA H100 PCIe"),
    ],
)
def test_other_chips_than_the_plan_thinks_stop_the_start(
    names: list[str], complaint: str, mixed: Path, on_host: Path
) -> None:
    devices(on_host, *names)
    for environment in ({"HETPLAN_HOST": "node000"}, {"NODE_RANK": "0"}):
        done = start(mixed, on_host, **environment)
        assert done.returncode == 1
        assert not done.stdout
        assert complaint in done.stderr
        assert "8 x h100-sxm-80gb" in done.stderr


@pytest.mark.parametrize("rank", ["16", "-1", "two", "08"])
def test_node_rank_outside_the_plan_stops(rank: str, mixed: Path, on_host: Path) -> None:
    done = start(mixed, on_host, NODE_RANK=rank)
    assert done.returncode == 1
    assert "0 to 15" in done.stderr


@pytest.mark.parametrize(
    ("file", "old", "new", "complaint"),
    [
        ("launch.sh", "|t*13L", "|t*12L", "places 79 layers, the model has 80"),
        ("launch.sh", "'Et*26|", "'Et*20|t*6|", "has 5 stages, the plan has 4 x 1"),
        (
            "launch.sh",
            "--global-batch-size 16",
            "--global-batch-size 18",
            "the global batch is 18",
        ),
        ("launch.sh", "--tensor-model-parallel-size 8", "--tensor-model-parallel-size 4", "is 64 ranks"),
        ("launch.sh", "PROCESSES=8", "PROCESSES=4", "start 64 processes, the plan has 128"),
        ("hosts.txt", "node015 a100-sxm-80gb 3\n", "", "lists 15 hosts"),
    ],
)
def test_numbers_that_no_longer_add_up_stop_the_start(
    file: str, old: str, new: str, complaint: str, mixed: Path, on_host: Path, tmp_path: Path
) -> None:
    directory = shutil.copytree(mixed, tmp_path / "launch")
    text = (directory / file).read_text()
    assert old in text
    (directory / file).write_text(text.replace(old, new))
    done = start(directory, on_host, NODE_RANK="0")
    assert done.returncode == 1
    assert not done.stdout
    assert complaint in done.stderr


def test_nodes_differ_in_what_they_recompute_only(mixed: Path, on_host: Path) -> None:
    def words(rank: int) -> list[str]:
        done = start(mixed, on_host, NODE_RANK=str(rank), LOG_DIR="")
        lines = done.stdout.splitlines()
        at = lines.index("--node-rank")
        return lines[:at] + lines[at + 2 :]

    common = words(4)  # stage 1 recomputes nothing
    full = ["--recompute-granularity", "full", "--recompute-method", "block", "--recompute-num-layers"]
    assert words(0) == [*common, *full, "4"]
    assert words(11) == [*common, "--recompute-granularity", "selective", "--recompute-modules", "core_attn"]
    assert words(15) == [*common, *full, "13"]


def test_pieces_and_modules_are_told_as_megatron_names_them() -> None:
    _, plan = plans.uniform()
    whole = plan.stages[0].model_copy(
        update={"recompute": "full", "recompute_layers": 16, "recompute_piece": 4}
    )
    full = ("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "4")
    assert argument_words(recompute_arguments(whole, ())) == full
    problem, plan = plans.latent_attention_and_prediction()
    fp8 = problem.model_copy(update={"workload": problem.workload.model_copy(update={"precision": "fp8"})})
    assert recompute_modules(problem, plan) == ("core_attn", "moe")
    norms = plan.model_copy(update={"recompute_modules": ("layernorm", "mlp")})
    assert refusals(problem, norms) == ()
    assert any("layernorm: not with fp8" in sentence for sentence in refusals(fp8, norms))
    dense, selective = plans.mixed_128()
    experts = selective.model_copy(update={"recompute_modules": ("moe",)})
    assert any("has none of the modules" in sentence for sentence in refusals(dense, experts))


def test_ranks_of_one_host_get_the_arguments_of_their_stage(on_host: Path, tmp_path: Path) -> None:
    directory = export_plan(*plans.stages_share_a_host(), "megatron-lm", tmp_path / "launch")
    done = start(directory, on_host, NODE_RANK="0")
    lines = done.stdout.splitlines()
    entry = next(i for i, line in enumerate(lines) if line.endswith(".py"))
    assert lines[entry].endswith("lib/run_stage.py")
    assert value(done.stdout, "--nproc-per-node") == "8"
    assert "--recompute-granularity" not in lines
    (tmp_path / "pretrain_gpt.py").write_text("import json, sys\nprint(json.dumps(sys.argv[1:]))")
    added = []
    for rank in (0, 3, 4, 7, 8):
        ran = subprocess.run(
            [sys.executable, lines[entry], *lines[entry + 1 :]],
            env=os.environ | {"RANK": str(rank), "MEGATRON_PATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        arguments = json.loads(ran.stdout)
        assert arguments[: len(lines) - entry - 1] == lines[entry + 1 :]
        added.append(arguments[len(lines) - entry - 1 :])
    full = ["--recompute-granularity", "full", "--recompute-method", "block", "--recompute-num-layers", "5"]
    selective = ["--recompute-granularity", "selective", "--recompute-modules", "core_attn"]
    assert added == [full, full, [], [], selective]


def test_extra_words_that_no_longer_add_up_stop_the_start(mixed: Path, on_host: Path) -> None:
    """A batch behind an equals sign passed the check, and Megatron took it."""
    for words in ("--global-batch-size 18", "--global-batch-size=18"):
        done = start(mixed, on_host, NODE_RANK="0", EXTRA_MEGATRON_ARGS=words)
        assert done.returncode == 1
        assert "the global batch is 18" in done.stderr


def test_users_data_checkpoints_and_extra_words_reach_megatron(mixed: Path, on_host: Path) -> None:
    done = start(
        mixed,
        on_host,
        NODE_RANK="0",
        DATA_PATH="0.3 /data/a 0.7 /data/b",
        TOKENIZER_MODEL="/models/llama",
        PADDED_VOCAB_SIZE="129024",
        CHECKPOINT_PATH="/ckpt/a run",
        EXTRA_MEGATRON_ARGS="--log-memory-to-tensorboard --seed 7",
    )
    lines = done.stdout.splitlines()
    at = lines.index("--data-path")
    assert lines[at + 1 : at + 5] == ["0.3", "/data/a", "0.7", "/data/b"]
    assert value(done.stdout, "--save") == "/ckpt/a run"
    assert "--mock-data" not in lines
    assert value(done.stdout, "--padded-vocab-size") == "129024"
    # The plan's own number, which a published network may have beyond its tokenizer's entries.
    assert "the plan counts 129024 |" in (mixed / "README.md").read_text()
    assert "--log-memory-to-tensorboard" in lines


def test_data_without_a_tokenizer_stops_with_the_name_of_the_variable(mixed: Path, on_host: Path) -> None:
    done = start(mixed, on_host, NODE_RANK="0", DATA_PATH="/data/a")
    assert done.returncode != 0
    assert "TOKENIZER_MODEL" in done.stderr


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize(
    "name",
    ["mixed_128", *(pytest.param(one, marks=pytest.mark.slow) for one in ("stages_share_a_host", "experts"))],
)
def test_scripts_pass_shellcheck(name: str, tmp_path: Path) -> None:
    out = export_plan(*plans.CASES[name](), "megatron-lm", tmp_path / "launch")
    scripts = [out / "launch.sh", out / "submit.sbatch", *(out / "lib").glob("*.sh")]
    done = subprocess.run(
        ["shellcheck", "-x", "-P", "SCRIPTDIR", *map(str, scripts)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_under_slurm_each_node_finds_its_place_whatever_the_order(
    mixed: Path, on_host: Path, tmp_path: Path
) -> None:
    devices(on_host, *[A100] * 8)
    put(on_host, "hostname", "echo machine")
    # Stands for Slurm, which would run the command on every node, in an order of its own.
    put(
        on_host,
        "srun",
        "while [[ $1 == --* ]]; do shift; done\n"
        'for node in node015 node008; do SLURM_NODEID=0 SLURMD_NODENAME=$node "$@"; done',
    )
    copy = shutil.copy(mixed / "submit.sbatch", tmp_path / "spooled")
    environment = os.environ | {"PATH": f"{on_host}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(mixed)}
    done = subprocess.run(
        ["bash", copy], env=environment | {"NODE_RANK": "3"}, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert [lines[i + 1] for i, line in enumerate(lines) if line == "--node-rank"] == ["15", "8"]


def test_slurm_job_has_a_component_for_each_class_of_nodes(mixed: Path) -> None:
    text = (mixed / "submit.sbatch").read_text()
    assert text.count("#SBATCH hetjob") == 1
    assert text.count("#SBATCH --nodes=8") == 2
    assert "srun --het-group=0,1 " in text


def test_each_platform_gets_its_own_environment_and_mixed_ones_a_warning(
    tmp_path: Path, on_host: Path
) -> None:
    put(on_host, "torchrun", 'echo "${HCCL_CONNECT_TIMEOUT:-none} ${GPU_MAX_HW_QUEUES:-none}"')
    sketch = plans.Sketch([[16], [16]], [0, 1], data_parallel=8, num_microbatches=2)
    directories = {}
    for name in ("ascend-910b-64gb", "mi300x-192gb", "h100-sxm-80gb"):
        case = plans.case("llama2-7b", f"1x8 a100-sxm-80gb, 1x8 {name}", 16, 2048, sketch)
        directories[name] = export_plan(*case, "megatron-lm", tmp_path / name)
    said = {name: start(out, on_host, NODE_RANK="1") for name, out in directories.items()}
    assert said["ascend-910b-64gb"].stdout.strip() == "1800 none"
    assert said["mi300x-192gb"].stdout.strip() == "none 2"
    assert start(directories["ascend-910b-64gb"], on_host, NODE_RANK="0").stdout.strip() == "none none"
    assert (
        start(directories["mi300x-192gb"], on_host, NODE_RANK="1", GPU_MAX_HW_QUEUES="4").stdout.strip()
        == "none 4"
    )
    assert "collectives form no common groups: HCCL (ascend), NCCL (cuda)" in said["ascend-910b-64gb"].stderr
    assert "Mixed platforms" in (directories["ascend-910b-64gb"] / "README.md").read_text()
    assert "common groups" not in said["h100-sxm-80gb"].stderr


def test_the_allocator_grows_its_segments_unless_the_user_says_otherwise(mixed: Path, on_host: Path) -> None:
    put(on_host, "torchrun", 'echo "$PYTORCH_CUDA_ALLOC_CONF $TORCH_NCCL_AVOID_RECORD_STREAMS"')

    def settings(**environment: str) -> str:
        return start(mixed, on_host, NODE_RANK="0", **environment).stdout.strip()

    assert settings() == "expandable_segments:True 1"
    own = "expandable_segments:False"
    assert settings(PYTORCH_CUDA_ALLOC_CONF=own, TORCH_NCCL_AVOID_RECORD_STREAMS="0") == f"{own} 0"
    assert settings(PYTORCH_ALLOC_CONF=own) == f"{own} 1"


TOOLS = {
    "nvidia-smi": 'case $1 in *name) v="NAME" ;; *) v=MIB ;; esac\nfor _ in {1..8}; do echo "$v"; done',
    "rocm-smi": 'if [[ $1 == --showproductname ]]; then echo "device,Card Series,Card Model"\n'
    'for i in {0..7}; do echo "card$i,NAME,0x74a1"; done\n'
    'else echo "WARNING: low power"; echo; echo "device,VRAM Total Memory (B),VRAM Total Used Memory (B)"\n'
    'for i in {0..7}; do echo "card$i,$((MIB * 1048576)),297771008"; done; fi',
    "amd-smi": 'if [[ $2 == --asic ]]; then echo "gpu,market_name,vendor_id"\n'
    'for i in {0..7}; do echo "$i,NAME,0x1002"; done\n'
    'else echo "gpu,type,vendor,size,bit_width"; for i in {0..7}; do echo "$i,HBM3,SK,MIB,8192"; done; fi',
    "npu-smi": 'if [[ $2 == -m ]]; then echo "NPU ID  Chip ID  Chip Logic ID  Chip Name"\n'
    'for i in {0..7}; do echo "  $i  0  $i  NAME"; echo "  $i  1  -  Mcu"; done\n'
    'else echo "  DDR Capacity(MB)   : 0"; echo "  HBM Capacity(MB)   : MIB"; fi',
    "hl-smi": 'case $1 in *name) v="NAME" ;; *) v="MIB" ;; esac\nfor _ in {1..8}; do echo "$v"; done',
}
"""Tools of the platforms as they print eight devices; NAME and MIB are filled in."""


@pytest.mark.parametrize(
    ("chip", "tool", "name", "memory_mib", "other"),
    [
        ("h100-sxm-80gb", "nvidia-smi", H100, 81559, A100),
        ("mi300x-192gb", "rocm-smi", "AMD Instinct MI300X OAM", 196592, "AMD Instinct MI250X"),
        ("mi300x-192gb", "amd-smi", "AMD Instinct MI300X", 196592, "AMD Instinct MI325X"),
        ("ascend-910b3-64gb", "npu-smi", "Ascend 910B3", 65536, "Ascend 910B4"),
        ("gaudi2-96gb", "hl-smi", "HL-225", 98304, "HL-325L"),
    ],
)
def test_every_platform_has_its_devices_counted_named_and_measured(
    chip: str, tool: str, name: str, memory_mib: int, other: str, tmp_path: Path, on_host: Path
) -> None:
    sketch = plans.Sketch([[32]], [0], data_parallel=8, num_microbatches=2)
    case = plans.case("llama2-7b", f"1x8 {chip}", 16, 2048, sketch)
    out = export_plan(*case, "megatron-lm", tmp_path / "launch")

    def started(name: str, memory_mib: int, devices: str = "8", **environment: str) -> tuple[int, str]:
        body = TOOLS[tool].replace("NAME", name).replace("MIB", str(memory_mib))
        put(on_host, tool, body.replace("{1..8}", f"{{1..{devices}}}").replace("{0..7}", f"{{1..{devices}}}"))
        done = start(out, on_host, **(environment or {"HETPLAN_HOST": "node000"}))
        return done.returncode, done.stderr

    code, said = started(name, memory_mib)
    assert code == 0 and "not checked" not in said, said
    assert f"has a {other}" in started(other, memory_mib)[1]
    assert "has 4 devices" in started(name, memory_mib, "4")[1]
    code, said = started(name, memory_mib // 2, NODE_RANK="0")
    assert code == 1 and f"a device of this host has {memory_mib // 2} MiB" in said
    (on_host / tool).unlink()
    assert "is missing; the plan wants" in start(out, on_host, HETPLAN_HOST="node000").stderr
    lenient = start(out, on_host, NODE_RANK="0")
    assert lenient.returncode == 0 and "is missing; not checked" in lenient.stderr


def test_a_start_without_torchrun_or_a_known_meeting_place_says_so(mixed: Path, on_host: Path) -> None:
    (on_host / "torchrun").unlink()
    put(on_host, "getent", "exit 2")
    devices(on_host, *[H100] * 8)
    done = start(mixed, on_host, HETPLAN_HOST="node000", PATH=f"{on_host}:/usr/bin:/bin")
    assert done.returncode == 1
    assert "torchrun is missing; activate the environment" in done.stderr
    assert "the network knows no host node000" in done.stderr


def test_words_on_several_lines_all_reach_megatron(mixed: Path, on_host: Path) -> None:
    done = start(mixed, on_host, NODE_RANK="0", EXTRA_MEGATRON_ARGS="--seed 7\n  --exit-interval 5")
    assert value(done.stdout, "--exit-interval") == "5"


def test_each_node_has_a_folder_of_logs_of_its_own(mixed: Path, on_host: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    said = start(mixed, on_host, NODE_RANK="11", LOG_DIR=str(logs)).stdout
    assert value(said, "--log-dir") == str(logs / "node-11") and value(said, "--tee") == "3"
    assert (logs / "node-11").is_dir()
    assert "--log-dir" not in start(mixed, on_host, NODE_RANK="11", LOG_DIR="").stdout
    taken = tmp_path / "taken"
    taken.touch()
    done = start(mixed, on_host, NODE_RANK="11", LOG_DIR=str(taken))
    assert "--log-dir" not in done.stdout and "no logs can be written" in done.stderr


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"SLURM_JOB_END_TIME": "3600", "CHECKPOINT_PATH": "/c"}, " --exit-duration-in-mins 45"),
        ({"SLURM_JOB_END_TIME": "3600", "CHECKPOINT_PATH": "/c", "SAVE_MINUTES": "70"}, ""),
        ({"SLURM_JOB_END_TIME": "3600"}, ""),
        ({"CHECKPOINT_PATH": "/c"}, ""),
    ],
)
def test_a_batch_job_saves_before_its_time_limit(
    settings: dict[str, str], told: str, mixed: Path, on_host: Path
) -> None:
    put(on_host, "date", "echo 0")
    put(on_host, "srun", 'echo "<${EXTRA_MEGATRON_ARGS:-}>"')
    done = subprocess.run(
        ["bash", str(mixed / "submit.sbatch")],
        env={"PATH": f"{on_host}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(mixed)} | settings,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"<{told}>\n"


@pytest.mark.parametrize(
    ("dp_mode", "ordered"), [("ddp", True), ("distopt", True), ("zero2", False), ("fsdp", False)]
)
def test_kernels_are_ordered_unless_gathers_would_wait_behind_them(dp_mode: str, ordered: bool) -> None:
    problem, plan = plans.sharded_parameters()
    text = environment_text(problem, plan.model_copy(update={"dp_mode": dp_mode}))
    assert ("export CUDA_DEVICE_MAX_CONNECTIONS=1" in text) == ordered
    assert ("unset CUDA_DEVICE_MAX_CONNECTIONS" in text) != ordered
