"""The operations of a reduction."""

from __future__ import annotations

import enum

__all__ = [
    "Average",
    "BitAnd",
    "BitOr",
    "BitXor",
    "LogicalAnd",
    "LogicalOr",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
]


class ReduceOp(enum.IntEnum):
    """How two elements become one.

    Integers wrap on overflow, and their average is rounded towards zero. `Min` and `Max` give NaN when either side is
    NaN. Bitwise operations are for integers and bool.
    """

    Sum = 0
    Average = 1
    Product = 2
    Min = 3
    Max = 4
    BitAnd = 5
    BitOr = 6
    BitXor = 7
    LogicalAnd = 8
    LogicalOr = 9


Sum = ReduceOp.Sum
Average = ReduceOp.Average
Product = ReduceOp.Product
Min = ReduceOp.Min
Max = ReduceOp.Max
BitAnd = ReduceOp.BitAnd
BitOr = ReduceOp.BitOr
BitXor = ReduceOp.BitXor
LogicalAnd = ReduceOp.LogicalAnd
LogicalOr = ReduceOp.LogicalOr
