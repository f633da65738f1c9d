# Collectives on device memory, against a stand-in of the CUDA driver; NCCL as it comes from PyPI, loaded. No GPU is needed.
nccl=$root/target/nccl
if [ ! -e "$nccl/nvidia/nccl/lib/libnccl.so.2" ]; then
    step 'device: NCCL of PyPI' python3 -m pip install --quiet --no-deps --target "$nccl" nvidia-nccl-cu13
fi
[ -e "$nccl/nvidia/nccl/lib/libnccl.so.2" ] && export PHALANX_TEST_NCCL=$nccl/nvidia/nccl
if command -v c++ >/dev/null || packages g++; then
    step 'device: collectives and NCCL' cargo test --test device --locked
else
    skip 'device: collectives and NCCL' "$reason"
fi
step 'device: units' cargo test --lib --locked -- device:: devices:: pieces::
unset PHALANX_TEST_NCCL
