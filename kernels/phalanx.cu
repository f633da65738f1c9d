// All kernels: the one file that is compiled.
#include "reduce.cuh"
#include "scale.cuh"
#include "cast.cuh"
#include "pack.cuh"
#include "adasum.cuh"
#include "quantize.cuh"
#include "check.cuh"
#include "peer.cuh"
