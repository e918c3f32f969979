"""Records on disk: a parquet file a record, its targets with it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prelax.errors import PrelaxError
from prelax.record import Record, Target
from prelax.whole import replacing, writing

_KEY = b"prelax.record"


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise PrelaxError("records on disk need pyarrow: pip install 'prelax[tables]'") from None
    return pyarrow


def save_record(record: Record, path: str | Path) -> None:
    """Write a record as a parquet file: a row per image, a column per parameter; opens in pandas and polars."""
    arrow = _pyarrow()
    columns, dtypes = {}, {}
    for name, column in record.columns.items():
        dtypes[name] = str(column.dtype).removeprefix("torch.")
        columns[name] = _to_arrow(arrow, column.detach().cpu())
    about = {"dtypes": dtypes, "targets": [asdict(target) for target in record.specs]}
    table = arrow.table(columns).replace_schema_metadata({_KEY: json.dumps(about).encode()})
    with writing(Path(path)), replacing(Path(path)) as temporary:
        arrow.parquet.write_table(table, str(temporary))


def load_record(path: str | Path, device: torch.device | str = "cpu") -> Record:
    """The record that ``save_record`` wrote, bit for bit, with its targets."""
    arrow = _pyarrow()
    if not Path(path).is_file():
        raise PrelaxError(f"no record at {path}")
    try:
        table = arrow.parquet.read_table(str(path))
    except arrow.ArrowInvalid as error:
        raise PrelaxError(f"{path} is not a parquet file: {str(error).splitlines()[0]}") from None
    about = (table.schema.metadata or {}).get(_KEY)
    if about is None:
        raise PrelaxError(f"{path} was not written by prelax's save_record: it does not say what its columns are")
    known = json.loads(about)
    columns = {}
    for name, dtype in known["dtypes"].items():
        columns[name] = _from_arrow(arrow, table.column(name), getattr(torch, dtype)).to(device)
    return Record(columns, tuple(Target(**target) for target in known["targets"]))


def _to_arrow(arrow: Any, column: Tensor) -> Any:
    if column.dtype == torch.bfloat16:
        column = column.to(torch.float32)  # parquet has no bfloat16; float32 holds it exactly
    flat = arrow.array(column.reshape(-1).numpy())
    for size in reversed(column.shape[1:]):
        flat = arrow.FixedSizeListArray.from_arrays(flat, int(size))
    return flat


def _from_arrow(arrow: Any, column: Any, dtype: torch.dtype) -> Tensor:
    array, shape = column.combine_chunks(), [len(column)]
    while arrow.types.is_fixed_size_list(array.type):
        shape.append(array.type.list_size)
        array = array.flatten()
    return torch.tensor(array.to_numpy(zero_copy_only=False)).to(dtype).reshape(shape)
