#!/bin/bash
# Checks the kernels on this machine's GPU, and times them. Ends in one table, in less than four minutes.
#
#   bash kernels/check_device.sh                 compiles them with the nvcc in PATH, and checks them
#   bash kernels/check_device.sh FATBIN          takes kernels that kernels/build.py has compiled elsewhere
#   bash kernels/check_device.sh --stand-in      without a GPU: shows that the check itself runs, and that it can fail
#
# Needs g++ and the driver; beyond nvcc for the first, no toolkit. What it builds goes to target/kernels. Where
# target/release/phalanx or phalanx in PATH is there, a rank by itself measures collectives on device memory first, over
# NCCL if that is there too: the program's own way, from the making of a communicator to its end.
set -euo pipefail
cd "$(dirname "$0")/.."
built=target/kernels
mkdir -p "$built"
compiler=${CXX:-g++}
command -v "$compiler" >/dev/null || { echo "check_device: needs a C++ compiler, $compiler is not there" >&2; exit 2; }
# The dynamic table of symbols is how the program finds the kernels of the stand-in by name.
"$compiler" -std=c++17 -O2 -ffp-contract=off -Wall -Wextra -Wno-unknown-pragmas -rdynamic -o "$built/check" kernels/check/device.cpp -ldl -pthread

if [ "${1:-}" = --stand-in ]; then
    "$compiler" -std=c++17 -O2 -Wall -Wextra -Werror -shared -fPIC -o "$built/libstand_in.so" \
        kernels/check/stand_in.cpp -ldl -pthread
    export PHALANX_CUDA_LIBRARY=$PWD/$built/libstand_in.so PHALANX_CHECK_SCALE=64
    "$built/check" /dev/null bits
    # The first kernel of each kind of launch, spoilt, has to be found out.
    for kernel in phx_reduce_max_f16 phx_scale_i32 phx_quantize_f32 phx_peer_two_shot_f32; do
        status=0
        PHALANX_STAND_IN_SPOILS=$kernel "$built/check" /dev/null bits >"$built/spoilt.log" 2>&1 || status=$?
        if [ "$status" -ne 1 ]; then
            echo "a spoilt $kernel was not found out (exit status $status); see $built/spoilt.log" >&2
            exit 1
        fi
        echo "a spoilt $kernel is found out"
    done
    exit 0
fi

image=${1:-}
if [ -z "$image" ]; then
    command -v nvcc >/dev/null || { echo 'check_device: needs nvcc in PATH, or a fatbin as its argument' >&2; exit 2; }
    # For this machine's device alone, which takes a seventh of the time.
    image=$built/native.fatbin
    nvcc -std=c++17 -O3 -fmad=false -arch=native -fatbin -o "$image" kernels/phalanx.cu
fi

program=target/release/phalanx
[ -x "$program" ] || program=$(command -v phalanx || true)
status=0
if [ -n "$program" ]; then
    carrier=nccl
    if "$program" doctor | grep -q 'NCCL was not found'; then carrier=staged; fi
    echo "one rank on device memory, by $carrier:"
    PHALANX_DEVICE_COLLECTIVES=$carrier timeout 60 "$program" \
        bench allreduce --np 1 --memory device --bytes 8:64M || status=1
else
    echo 'one rank on device memory: not measured, there is no phalanx program (cargo build --release)'
fi
"$built/check" "$image" || status=1
exit "$status"
