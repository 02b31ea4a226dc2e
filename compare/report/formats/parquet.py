"""Write Parquet in long form: the table of `compare.report.formats.long_csv`. Needs the extra `parquet`."""

import importlib
import io
from collections.abc import Sequence
from typing import Any

from compare.base.interface import Refused
from compare.report.formats import Format
from compare.report.formats.long_csv import COLUMNS, make_rows
from compare.results.model import Result

_KINDS = {"batch_size": "int64", **dict.fromkeys(("value", "low", "high", "confidence", "prune"), "float64")}


def render(results: Sequence[Result]) -> bytes:
    """Return the table as a Parquet file.

    Raises:
        Refused: pyarrow is not installed.
    """
    try:
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise Refused("--parquet needs pyarrow; install it with: pip install 'samestep[parquet]'") from None
    rows = make_rows(results)
    schema: Any = arrow.schema([(name, getattr(arrow, _KINDS.get(name, "string"))()) for name in COLUMNS])
    table = arrow.table({name: [row[index] for row in rows] for index, name in enumerate(COLUMNS)}, schema=schema)
    stream = io.BytesIO()
    parquet.write_table(table, stream)
    return stream.getvalue()


FORMAT = Format("parquet", "Write --long-csv as Parquet.", lambda _, results, __: render(results))
