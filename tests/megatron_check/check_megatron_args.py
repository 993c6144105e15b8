"""Shows a launch script to the real Megatron-LM, without a GPU, and reports what it makes of it.

    python -m tests.megatron_check.check_megatron_args --script DIR/launch.sh --nodes 16 \
        [--simulate stages] [--expect expected.json] [--json report.json]

The four may be repeated together, to check several scripts in one go. The script is run as every
node, with recorders in place of torchrun and pretrain_gpt.py; nothing is trained. Then the code of the
megatron-core wheel reads what each node would have started: parser, `validate_args`,
`TransformerConfig`, process groups at the full world size, layer layout, rank order, and the model
itself on the meta device. `--simulate` runs one iteration of the named ranks (`stages`: the first rank
of every stage), each with its own arguments.

`--expect` compares with a file that holds any of: `layers_per_stage` (a list by virtual stage for
every stage), `layers` (the same with their numbers), `rank_coords` (rank: {axis: place}),
`num_microbatches`, `params_per_stage`.

Exit status: 0 accepted; 1 refused, by Megatron-LM, by the script itself or because the nodes do not
fit together; 2 accepted, but not what was expected.

With PYTHONPATH at an unpacked wheel of core 0.17 or 0.18, that one reads the script, without `--simulate`.

What this cannot show: whether memory suffices, speed, kernels of Transformer Engine, NCCL itself.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import sys
import warnings
from itertools import zip_longest
from pathlib import Path
from typing import Any

from . import simulate, standins, validate
from .collectives import Recorder
from .local_modules import prepare_local_modules
from .nodes import Launch, disagreements, start_all
from .refusal import Refused

TRANSFORMER_ENGINE = "2.9.0"
"""Version that is pretended to be installed: Megatron refuses its own defaults without one."""

_recorder = Recorder()


def main() -> int:
    """Check as the command line says; return the exit status."""
    options = _parser().parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    settings = dict(item.split("=", 1) for item in options.set)
    standins.install(options.compute_capability)
    _recorder.install()
    status = 0
    for script, nodes, expect, report_file in zip_longest(
        options.script, options.nodes, options.expect, options.json
    ):
        expected = json.loads(Path(expect).read_text()) if expect else {}
        try:
            report = check(start_all(script, nodes, settings, few=options.few), options.simulate)
        except Refused as refusal:
            print(f"{script}: REFUSED {refusal}")
            status = max(status, 1)
            continue
        if report_file:
            Path(report_file).write_text(json.dumps(report, indent=1))
        _print(script, report)
        for sentence in differences(report, expected):
            print(f"{script}: DIFFERS {sentence}")
            status = 2
    return status


def check(launch: Launch, ranks: str | None) -> dict[str, Any]:
    """Everything that Megatron-LM says of a launch.

    Raises
    ------
    Refused
        At the first thing that it does not accept.
    """
    # What the launch before has left: Megatron-LM sets the latter itself, by `--attention-backend`.
    for name in ("CUDA_DEVICE_MAX_CONNECTIONS", *(name for name in os.environ if name.startswith("NVTE_"))):
        os.environ.pop(name, None)
    connections = launch.nodes[0].environment.get("CUDA_DEVICE_MAX_CONNECTIONS")
    if connections is not None:
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = connections
    standins.pretend_transformer_engine(TRANSFORMER_ENGINE)
    world_size = launch.world_size
    with validate.refusals_of_megatron():
        recomputed = dict[tuple[str, ...], list[Any]]()
        for arguments in dict.fromkeys(launch.arguments):
            args = validate.read_arguments(arguments, world_size)
            recomputed[arguments] = _recomputation(args)
            validate.transformer_config(args)
        args = validate.read_arguments(launch.arguments[0], world_size)
        config = validate.transformer_config(args)
        coordinates = validate.rank_coordinates(args)
        validate.make_process_groups(args, 0)
        layers = validate.layers_of_stages(args, config)
        validate.destroy_process_groups()
        report: dict[str, Any] = {
            "world_size": world_size,
            "processes_per_node": [node.num_processes for node in launch.nodes],
            "num_microbatches": validate.num_microbatches(args),
            "layers_per_stage": [[len(chunk) for chunk in stage] for stage in layers],
            "layers": layers,
            "rank_coords": coordinates,
            "settings": validate.settings(args, config),
            "recomputation": [recomputed[launch.arguments[rank]] for rank in _first_ranks(coordinates)],
        }
    wrong = disagreements(launch, [place["pp"] for place in coordinates])
    if wrong:
        raise Refused("; ".join(wrong[:5]))
    if ranks:
        report["simulated"] = _simulate(launch, _ranks_to_simulate(ranks, coordinates))
    with validate.refusals_of_megatron():
        if args.vocab_size:
            prepare_local_modules()
            report["params_per_stage"] = validate.parameters_per_stage(args, config)
            if args.hybrid_layer_pattern is None:
                report["weight_and_optimizer_bytes"] = validate.weight_and_optimizer_bytes(args)
        validate.destroy_process_groups()
    return report


def differences(report: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Where a report is not what was expected, each in a sentence."""
    wrong = [
        f"{name}: Megatron-LM says {report[name]}, expected {expected[name]}"
        for name in ("layers_per_stage", "layers", "num_microbatches", "params_per_stage", "recomputation")
        if name in expected and report[name] != expected[name]
    ]
    wrong += [
        f"{name}: Megatron-LM has {report['settings'].get(name)}, expected {value}"
        for name, value in expected.get("settings", {}).items()
        if report["settings"].get(name) != value
    ]
    for rank, place in expected.get("rank_coords", {}).items():
        found = report["rank_coords"][int(rank)]
        if any(found.get(axis) != value for axis, value in place.items()):
            wrong.append(f"rank {rank}: Megatron-LM puts it at {found}, expected {place}")
    return wrong


def _recomputation(args: argparse.Namespace) -> list[Any]:
    """What a rank recomputes: granularity, method, number of layers."""
    return [args.recompute_granularity, args.recompute_method, args.recompute_num_layers]


def _ranks_to_simulate(text: str, coordinates: list[dict[str, int]]) -> list[int]:
    return _first_ranks(coordinates) if text == "stages" else [int(rank) for rank in text.split(",")]


def _first_ranks(coordinates: list[dict[str, int]]) -> list[int]:
    """The first rank of every stage."""
    first: dict[int, int] = {}
    for rank, place in enumerate(coordinates):
        first.setdefault(place["pp"], rank)
    return [first[stage] for stage in sorted(first)]


def _simulate(launch: Launch, ranks: list[int]) -> list[dict[str, Any]]:
    """Run each rank in a child of its own, which inherits the imports and spoils nothing here."""
    tasks = [(launch.arguments[rank], launch.world_size, rank) for rank in ranks]
    context = multiprocessing.get_context("fork")
    with context.Pool(min(len(tasks), os.cpu_count() or 1), maxtasksperchild=1) as pool:
        results = pool.starmap(_simulate_rank, tasks, chunksize=1)
    for rank, result in zip(ranks, results, strict=True):
        if isinstance(result, str):
            raise Refused(f"rank {rank}, in the simulated iteration: {result}")
    return results


def _simulate_rank(arguments: tuple[str, ...], world_size: int, rank: int) -> dict[str, Any] | str:
    standins.take_cuda_for_cpu()  # the child was forked from a thread of the pool
    try:
        return simulate.run_iteration(arguments, world_size, rank, _recorder)
    except Refused as refusal:
        return str(refusal)


def _print(script: str, report: dict[str, Any]) -> None:
    print(f"{script}: ACCEPTED {report['world_size']} ranks, {report['num_microbatches']} micro-batches")
    parameters = report.get("params_per_stage")
    for stage, layers in enumerate(report["layers_per_stage"]):
        count = f", {parameters[stage]:,} parameters a rank" if parameters else ""
        print(f"  stage {stage}: {' + '.join(map(str, layers))} layers{count}")
    for result in report.get("simulated", []):
        count = sum(row["count"] for row in result["collectives"])
        print(f"  rank {result['rank']} at {result['coordinates']}: one iteration, {count} collectives")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--script", required=True, action="append", help="launch script")
    parser.add_argument("--nodes", type=int, required=True, action="append", help="nodes to run it as")
    parser.add_argument(
        "--few", action="store_true", help="run it as the ends of each run of alike lines of hosts.txt only"
    )
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="environment for it")
    parser.add_argument("--simulate", metavar="RANKS", help="ranks to run one iteration of, or `stages`")
    parser.add_argument("--expect", action="append", default=[], metavar="FILE", help="what should come out")
    parser.add_argument(
        "--json", action="append", default=[], metavar="FILE", help="where to write the report"
    )
    parser.add_argument(
        "--compute-capability", type=int, default=9, help="major number that the device pretends to have"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
