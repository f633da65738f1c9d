# The CUDA kernels: compiled for every architecture, with a clean report of the assembler, by the compiler that PyPI has;
# and run on the CPU, against the arithmetic of the host.
step 'kernels: on the CPU, sanitized' env PHALANX_TEST_CXXFLAGS='-fsanitize=undefined -fno-sanitize-recover=all' \
    cargo test --locked --test kernels

# The check for machines with a GPU, here against a stand-in of the driver: that it runs to its end, and finds what is spoilt.
if command -v "${CXX:-g++}" >/dev/null || packages g++; then
    step 'kernels: check of a device' bash kernels/check_device.sh --stand-in
else
    skip 'kernels: check of a device' "$reason"
fi

cuda=$root/target/cuda
nvcc=$(command -v nvcc || true)
if [ -z "$nvcc" ]; then
    nvcc=$cuda/nvidia/cu13/bin/nvcc
    if [ ! -x "$nvcc" ]; then
        step 'kernels: compiler' python3 -m pip install --quiet --no-deps --target "$cuda" \
            'nvidia-cuda-nvcc==13.0.*' 'nvidia-nvvm==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-cuda-runtime==13.0.*' \
            'nvidia-cuda-cccl==13.0.*' || nvcc=
    fi
fi
if [ -x "$nvcc" ] && [ "$(uname -m)" = x86_64 ]; then
    step 'kernels: a spill is found out' python3 kernels/build.py --nvcc "$nvcc" --self-test
    step 'kernels: every architecture' python3 kernels/build.py --nvcc "$nvcc"
    step 'kernels: the fatbin is read as it was written' env PHALANX_TEST_FATBIN="$root/target/kernels/phalanx.fatbin" \
        cargo test --lib --locked -- device::image::
else
    skip 'kernels: every architecture' 'no nvcc, and none could be installed'
fi
