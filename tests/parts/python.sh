# The Python package in an environment of its own: linters, types, tests with 1 to 4 ranks, examples.
venv=$root/target/venv
python_ready() {
    [ -n "${venv_ready:-}" ] && return 0
    if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        skip 'python' 'needs Python 3.10 or later'
        return 1
    fi
    if [ ! -x "$venv/bin/pip" ]; then
        python3 -c 'import ensurepip' 2>/dev/null || packages python3-venv || { skip 'python' "$reason"; return 1; }
        step 'python: environment' python3 -m venv "$venv" || return 1
    fi
    step 'python: tools' "$venv/bin/pip" install --quiet -r ffi/python/tests/requirements.txt || return 1
    rm -rf "$root/target/wheels"
    step 'python: wheel' "$venv/bin/pip" wheel --quiet --no-deps --wheel-dir "$root/target/wheels" ./ffi/python || return 1
    step 'python: package' "$venv/bin/pip" install --quiet --force-reinstall --no-deps "$root"/target/wheels/phalanx-*.whl ||
        return 1
    venv_ready=1
}

# PyTorch is large: it is installed once, and its tests are skipped with the reason when it cannot be.
torch_ready() {
    "$venv/bin/python" -c 'import torch' 2>/dev/null && return 0
    step 'python: PyTorch' "$venv/bin/python" ffi/python/tests/lean_torch.py
}

if python_ready; then
    step 'python: ruff' "$venv/bin/ruff" check ffi/python examples/python benches kernels
    step 'python: ruff format' "$venv/bin/ruff" format --check ffi/python examples/python benches kernels
    torch_ready || skip 'python: PyTorch' 'could not be installed; its tests are skipped'
    if "$venv/bin/python" -c 'import torch' 2>/dev/null; then
        step 'python: mypy' bash -c "cd ffi/python && '$venv/bin/mypy'"
    else
        skip 'python: mypy' 'the types of PyTorch are not there'
    fi
    # For the stand-in of the CUDA driver; without it the tests of device memory are skipped.
    command -v c++ >/dev/null || packages g++ || skip 'python: device memory' "$reason"
    step 'python: tests' env PATH="$venv/bin:$PATH" python ffi/python/tests/run.py
    step 'python: example hello_numpy' env PATH="$venv/bin:$PATH" \
        phalanx run -np 4 python examples/python/hello_numpy.py
    if "$venv/bin/python" -c 'import torch' 2>/dev/null; then
        step 'python: example train_digits_torch' env PATH="$venv/bin:$PATH" OMP_NUM_THREADS=1 \
            phalanx run -np 4 python examples/python/train_digits_torch.py
        step 'python: example elastic_loop_torch' env PATH="$venv/bin:$PATH" OMP_NUM_THREADS=1 bash -c '
            phalanx run -np 3 --min-np 2 python examples/python/elastic_loop_torch.py | tee /dev/stderr |
                grep -cF "weights [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]" | grep -qx 3'
    fi
fi
