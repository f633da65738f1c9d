# Collectives on device memory, against a stand-in of the CUDA driver; NCCL and NVRTC as they come from PyPI, loaded. No GPU
# is needed.
nccl=$root/target/nccl
if [ ! -e "$nccl/nvidia/nccl/lib/libnccl.so.2" ]; then
    step 'device: NCCL of PyPI' python3 -m pip install --quiet --no-deps --target "$nccl" nvidia-nccl-cu13
fi
[ -e "$nccl/nvidia/nccl/lib/libnccl.so.2" ] && export PHALANX_TEST_NCCL=$nccl/nvidia/nccl
nvrtc=$root/target/nvrtc/nvidia/cu13/lib
if [ ! -e "$nvrtc/libnvrtc.so.13" ]; then
    step 'device: NVRTC of PyPI' python3 -m pip install --quiet --no-deps --target "$root/target/nvrtc" 'nvidia-cuda-nvrtc==13.*'
fi
[ -e "$nvrtc/libnvrtc.so.13" ] && export PHALANX_TEST_NVRTC=$nvrtc
nvrtc=$root/target/nvrtc-12/nvidia/cuda_nvrtc/lib
if [ ! -e "$nvrtc/libnvrtc.so.12" ]; then
    step 'device: NVRTC 12 of PyPI' python3 -m pip install --quiet --no-deps --target "$root/target/nvrtc-12" nvidia-cuda-nvrtc-cu12
fi
[ -e "$nvrtc/libnvrtc.so.12" ] && export PHALANX_TEST_NVRTC_12=$nvrtc
if command -v c++ >/dev/null || packages g++; then
    step 'device: collectives, NCCL, and the kernels by NVRTC' cargo test --test device --locked
else
    skip 'device: collectives, NCCL, and the kernels by NVRTC' "$reason"
fi
step 'device: units' cargo test --lib --locked -- device:: devices:: pieces::
unset PHALANX_TEST_NCCL PHALANX_TEST_NVRTC PHALANX_TEST_NVRTC_12
