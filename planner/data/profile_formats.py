"""Read layer profiles that other tools wrote: a table by layer, or one JSON file a point.

Two formats. The *table* has the columns model, chip, mbs, tp, layer_index, fwd_s, bwd_s, update_s (the
lists of eth-easl/sailor). The *folder* holds one file `mbs<M>_tmp<T>.json` a point, as the planner Metis
reads them: time of forward and backward together, time of the optimizer, memory, layer by layer.
Entry 0 is the embedding, then the layers, then final norm and head.
"""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planner.data.layer_profile import LayerProfile, PieceTimes, ProfilePoint
from planner.data.read import decode, read_file, read_raw
from planner.errors import InstanceError
from planner.units import MS

TABLE_COLUMNS = ("model", "chip", "mbs", "tp", "layer_index", "fwd_s", "bwd_s", "update_s")
"""Columns of the table; others are ignored."""

FORWARD_SHARE = 1 / 3
"""Share of forward in forward and backward together, where a profile does not part them: the backward of a
matrix product is two products of the same size (guess)."""

_POINT_NAME = re.compile(r"(?:mbs(?P<m1>\d+)_tmp(?P<t1>\d+)|tp(?P<t2>\d+)_bs(?P<m2>\d+))\.json$")
"""Names of a point's file: `mbs4_tmp2.json`, or `DeviceType.A100_tp2_bs4.json` as Metis itself writes."""

Entry = tuple[float, float, float, float | None]
"""Forward [ms], backward [ms], update [ms] and memory [MiB] of one entry."""


def read_profile_table(
    path: Path, where: str, num_layers: int, model: str | None = None, value_bytes: float = 4.0
) -> tuple[LayerProfile, ...]:
    """Profiles of every chip of one model in a table.

    Parameters
    ----------
    num_layers
        Layers of the model; entries behind them are final norm and head.
    model
        Its name in the table; None where the table holds one model only.
    value_bytes
        Bytes of an activation value; these tables were measured in fp32.

    Raises
    ------
    InstanceError
        Where the table has other columns, several models and none is named, or times that cannot be right.
    """
    rows = _rows(path, where)
    models = tuple(dict.fromkeys(row["model"] for row in rows))
    if model is None and len(models) > 1:
        raise InstanceError(f"holds several models; name one under `model`: {', '.join(models)}", where)
    model = models[0] if model is None else model
    if model not in models:
        raise InstanceError(f"holds no model {model!r}; it has {', '.join(models)}", where)
    points: dict[tuple[str, int, int], dict[int, Entry]] = defaultdict(dict)
    for number, row in enumerate(rows, start=2):
        if row["model"] == model:
            key, index, entry = _entry(row, f"{where}: line {number}")
            if index in points[key]:
                raise InstanceError(f"layer_index {index} is given twice for {key}; keep one", where)
            points[key][index] = entry
    by_chip: dict[str, list[ProfilePoint]] = defaultdict(list)
    for (chip, tp, mbs), entries in sorted(points.items()):
        at = f"{where}: {chip}, tp {tp}, mbs {mbs}"
        by_chip[chip].append(_point(tp, mbs, [entries[i] for i in sorted(entries)], num_layers, at))
    return tuple(
        LayerProfile(
            chip=chip,
            model=model,
            num_layers=num_layers,
            value_bytes=value_bytes,
            points=tuple(found),
            source=path.name,
        )
        for chip, found in by_chip.items()
    )


def _rows(path: Path, where: str) -> list[dict[str, str]]:
    """Rows of a table, each with all columns that are needed."""
    text = decode(read_raw(path, where, "table of layer times"), where)
    reader = csv.DictReader(io.StringIO(text))
    missing = [name for name in TABLE_COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise InstanceError(f"lacks the columns {', '.join(missing)} of a table of layer times", where)
    try:
        rows = list(reader)
    except csv.Error as error:
        raise InstanceError(f"line {reader.line_num}: {error}", where) from None
    if not rows:
        raise InstanceError("holds no layer times", where)
    for number, row in enumerate(rows, start=2):
        if any(row[name] is None for name in TABLE_COLUMNS):
            raise InstanceError("has fewer values than columns", f"{where}: line {number}")
    return rows


def _entry(row: dict[str, str], where: str) -> tuple[tuple[str, int, int], int, Entry]:
    """Chip, degree and micro-batch of a row, its place, and its times."""
    try:
        key = row["chip"], int(row["tp"]), int(row["mbs"])
        forward, backward, update = (float(row[name]) / MS for name in ("fwd_s", "bwd_s", "update_s"))
        index = int(row["layer_index"])
    except ValueError as error:
        raise InstanceError(f"holds no number where one is due: {error}", where) from None
    if min(key[1:]) < 1 or index < 0:
        raise InstanceError("tp and mbs must be 1 or more, layer_index 0 or more", where)
    if not all(0 <= value < float("inf") for value in (forward, backward, update)):
        raise InstanceError("times must be finite and >= 0", where)
    return key, index, (forward, backward, update, None)


def _point(tp: int, mbs: int, entries: Sequence[Entry], num_layers: int, where: str) -> ProfilePoint:
    """Fold the entries of a point: the first, the mean of the layers, the sum of what follows."""
    if len(entries) < num_layers + 2:
        raise InstanceError(
            f"lists {len(entries)} entries; a model of {num_layers} layers has {num_layers + 2} or more "
            "(embedding, layers, head)",
            where,
        )
    layers, ends = entries[1 : num_layers + 1], entries[num_layers + 1 :]
    if any(forward == 0 or backward == 0 for forward, backward, *_ in layers):
        raise InstanceError("a layer takes no time; leave out what was not measured", where)
    return ProfilePoint(
        tensor_parallel=tp,
        microbatch_size=mbs,
        embedding=_piece(entries[:1], 1),
        layer=_piece(layers, num_layers),
        head=_piece(ends, 1),
    )


def _piece(entries: Sequence[Entry], count: int) -> PieceTimes:
    """Sum of entries over a count."""
    forward, backward, update = (sum(entry[i] or 0.0 for entry in entries) / count for i in range(3))
    # A list that knows no optimizer holds zeros, which are no measurement.
    memory = [entry[3] for entry in entries if entry[3] is not None]
    return PieceTimes(
        forward_ms=forward,
        backward_ms=backward,
        update_ms=update or None,
        memory_mib=sum(memory) / count if len(memory) == len(entries) else None,
    )


def read_profile_folder(
    folder: Path, where: str, num_layers: int, chip: str | None = None, value_bytes: float = 4.0
) -> LayerProfile:
    """Profile of one chip in a folder of points.

    Parameters
    ----------
    chip
        Id or alias of the chip; None takes the folder's name.

    Raises
    ------
    InstanceError
        Where no file of the folder is a point, or one cannot be read.
    """
    points, model = [], ""
    for path in sorted(folder.iterdir()):
        match = _POINT_NAME.search(path.name)
        if match is None:
            continue
        tp, mbs = int(match["t1"] or match["t2"]), int(match["m1"] or match["m2"])
        at = f"{where}/{path.name}"
        values = read_file(path, at)
        points.append(_point(tp, mbs, _folder_entries(values, at), num_layers, at))
        model = str(values.get("model", {}).get("model_name", ""))
    if not points:
        raise InstanceError("holds no file named as a point, such as mbs4_tmp2.json", where)
    return LayerProfile(
        chip=chip or folder.name,
        model=model,
        num_layers=num_layers,
        value_bytes=value_bytes,
        points=tuple(points),
        source=folder.name,
        assumptions=("forward is a third of forward and backward together",),
    )


def _folder_entries(values: Any, where: str) -> list[Entry]:
    """Entries of one point's file."""
    try:
        together = [float(x) for x in values["execution_time"]["layer_compute_total_ms"]]
        update = float(values["execution_time"]["optimizer_time_ms"]) / len(together)
        memory = [float(x) for x in values.get("execution_memory", {}).get("layer_memory_total_mb", ())]
    except (KeyError, TypeError, ValueError, ZeroDivisionError, AttributeError) as error:
        raise InstanceError(
            f"is no profile of layers: {type(error).__name__} {error}; expected execution_time with "
            "layer_compute_total_ms and optimizer_time_ms",
            where,
        ) from None
    held: list[float | None] = list(memory) if len(memory) == len(together) else [None] * len(together)
    return [
        (FORWARD_SHARE * t, (1 - FORWARD_SHARE) * t, update, m) for t, m in zip(together, held, strict=True)
    ]
