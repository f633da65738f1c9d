"""Fewer bytes on the way: what is done to a tensor before it travels, and undone after."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class Compressor:
    """Compresses a tensor, and decompresses the result of the collective.

    `compress` returns the tensor that travels and a context, which `decompress` gets back with the result. Compressed
    tensors must have the same type and length on every rank.
    """

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor that travels, and what is needed to undo it."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor as it was before `compress`."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor itself."""
        return tensor


class FP16Compressor(Compressor):
    """Sends floating-point tensors in half precision. Others are left as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor in half precision, and its own type."""
        if not tensor.dtype.is_floating_point:
            return tensor, tensor.dtype
        return tensor.to(torch.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor in its own type."""
        return tensor.to(ctx)


class Compression:
    """The compressors that can be chosen."""

    none = NoneCompressor
    fp16 = FP16Compressor
