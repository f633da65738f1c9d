// Many tensors into one fusion buffer and back, in one launch: phx_gather_pieces, phx_scatter_pieces.
//
// A piece is a run of bytes at any address. The pieces lie in the fusion buffer one after the other, at offsets that
// the caller chose; each is best a multiple of sixteen. The whole grid goes through one piece after the other, so that
// a long tensor does not hold up the launch.
#pragma once
#include "base.cuh"

struct Piece {
    void *tensor;
    u64 offset;
    u64 bytes;
};

struct PackParameters {
    void *buffer;
    // In device memory.
    const Piece *pieces;
    u32 count;
};

PHX_FN void copy_bytes(u8 *target, const u8 *source, u64 bytes) {
    const u64 number = thread_number(), threads = thread_count();
    const Way way = way_through(target, address_of(target) ^ address_of(source), bytes, 1);
    for (u64 at = number; at < way.vectors; at += threads) {
        ((Vector *)(target + way.head))[at] = ((const Vector *)(source + way.head))[at];
    }
    for (u64 at = number; at < way.head; at += threads) target[at] = source[at];
    for (u64 at = way.head + 16 * way.vectors + number; at < bytes; at += threads) target[at] = source[at];
}

PHX_KERNEL(phx_gather_pieces, PackParameters) {
    for (u32 at = 0; at < p.count; ++at) {
        const Piece piece = p.pieces[at];
        copy_bytes((u8 *)p.buffer + piece.offset, (const u8 *)piece.tensor, piece.bytes);
    }
}

PHX_KERNEL(phx_scatter_pieces, PackParameters) {
    for (u32 at = 0; at < p.count; ++at) {
        const Piece piece = p.pieces[at];
        copy_bytes((u8 *)piece.tensor, (const u8 *)p.buffer + piece.offset, piece.bytes);
    }
}
