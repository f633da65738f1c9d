"""The first dimension, which may differ from rank to rank.

Nothing negotiates shapes between ranks, so a collective over rows first tells every rank how many rows the others
have, and what their rows look like. This is a small collective of its own; every rank must make it at the same place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from phalanx import _native
from phalanx.errors import InvalidArgumentError, MismatchError

__all__ = ["describe", "divide", "exchange_rows", "exchange_splits"]

# Rows, element type, dimensions, then the lengths of the dimensions after the first, the last of them multiplied up.
_FIELDS = 8
_LENGTHS = _FIELDS - 3
_ROWS = 0

_NAMES = ["f16", "bf16", "f32", "f64", "i8", "u8", "i16", "i32", "u32", "i64", "u64", "bool"]


def describe(rows: int, dtype: int, shape: Sequence[int]) -> list[int]:
    """What the other ranks must know about this rank's rows."""
    lengths = list(shape[1:])
    kept, rest = lengths[: _LENGTHS - 1], lengths[_LENGTHS - 1 :]
    kept += [1] * (_LENGTHS - 1 - len(kept))
    return [rows, dtype, len(shape), *kept, math.prod(rest)]


def _in_words(fields: Sequence[int]) -> str:
    dimensions = fields[2]
    lengths = fields[3 : 3 + min(dimensions - 1, _LENGTHS)]
    return f"{fields[_ROWS]} rows of shape ({', '.join(map(str, lengths))}) of {_NAMES[fields[1]]}"


def _check_alike(what: str, rank: int, all_fields: Sequence[Sequence[int]]) -> None:
    mine = all_fields[rank]
    for other, theirs in enumerate(all_fields):
        if theirs[1:] != mine[1:]:
            error = MismatchError(
                f"{what}: rank {rank} has {_in_words(mine)}, rank {other} has {_in_words(theirs)}; "
                "only the number of rows may differ"
            )
            error.ours, error.theirs = (rank, _in_words(mine)), (other, _in_words(theirs))
            raise error


def exchange_rows(what: str, native: _native.Communicator, dtype: int, shape: Sequence[int]) -> list[int]:
    """Every rank's number of rows. Raises on every rank when rows differ in more than their number."""
    if not shape:
        raise InvalidArgumentError(f"{what}: a scalar given, at least one dimension expected")
    flat = native.exchange(describe(shape[0], dtype, shape))
    all_fields = [flat[start : start + _FIELDS] for start in range(0, len(flat), _FIELDS)]
    _check_alike(what, native.rank, all_fields)
    return [fields[_ROWS] for fields in all_fields]


def exchange_splits(
    what: str, native: _native.Communicator, dtype: int, shape: Sequence[int], splits: Sequence[int] | None
) -> tuple[list[int], list[int]]:
    """The rows to send to each rank and to get from each. Without `splits` the rows are divided evenly."""
    size = native.size
    if not shape:
        raise InvalidArgumentError(f"{what}: a scalar given, at least one dimension expected")
    if splits is None:
        if shape[0] % size != 0:
            raise InvalidArgumentError(
                f"{what}: {shape[0]} rows cannot be divided evenly among {size} ranks; give splits"
            )
        sent = [shape[0] // size] * size
    else:
        sent = [int(rows) for rows in splits]
        if len(sent) != size or min(sent, default=0) < 0:
            raise InvalidArgumentError(
                f"{what}: splits {sent} given, one number of rows for each of {size} ranks expected"
            )
        if sum(sent) > shape[0]:
            raise InvalidArgumentError(f"{what}: splits of {sum(sent)} rows in all given, but there are {shape[0]}")
    parts: list[int] = []
    for rows in sent:
        parts += describe(rows, dtype, shape)
    flat = native.exchange_parts(parts)
    all_fields = [flat[start : start + _FIELDS] for start in range(0, len(flat), _FIELDS)]
    _check_alike(what, native.rank, all_fields)
    return sent, [fields[_ROWS] for fields in all_fields]


def divide(rows: int, size: int) -> list[int]:
    """Rows divided over ranks as evenly as can be: the first ranks get one more where it does not come out."""
    share, more = divmod(rows, size)
    return [share + (rank < more) for rank in range(size)]
