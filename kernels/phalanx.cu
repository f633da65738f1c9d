// All kernels: the one file that is compiled.
//
// The reductions take nine tenths of the time. PHX_PART of 1 is they alone, 2 all the rest; by themselves for whoever
// compiles when the program runs, and may need but one of the two.
#ifndef PHX_PART
#define PHX_PART 0
#endif
#include "reduce.cuh"
#if PHX_PART != 1
#include "scale.cuh"
#include "cast.cuh"
#include "pack.cuh"
#include "adasum.cuh"
#include "quantize.cuh"
#include "check.cuh"
#include "peer.cuh"
#endif
