# Worlds over MPI, under Debian's Open MPI and MPICH: the contract in one process, then each check of tests/mpi on four
# ranks, and mpi4py in the same process. Both builds share the folder of the others but for the few crates that know the MPI.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
mpi_python=$root/target/mpi/python

# The crates that were built for another MPI, the tests, and the extension module, next to a copy of the package.
mpi_build() { # openmpi or mpich
    local out=$root/target/mpi/$1
    export MPICC=mpicc.$1
    # Quick to build: what is built here runs for seconds.
    export CARGO_PROFILE_TEST_OPT_LEVEL=0 CARGO_PROFILE_TEST_DEBUG=0
    export CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=0
    rm -rf "$out" && mkdir -p "$out/phalanx"
    cargo clean --quiet -p mpi-sys -p mpi &&
        cargo test --locked --features mpi --lib --test mpi --no-run 2>&1 | tee "$out/build.log"
    [ "${PIPESTATUS[0]}" -eq 0 ] || return 1
    cp "$(grep -oE 'target/debug/deps/phalanx-[0-9a-f]+' "$out/build.log" | tail -n 1)" "$out/library" &&
        cp "$(grep -oE 'target/debug/deps/mpi-[0-9a-f]+' "$out/build.log" | tail -n 1)" "$out/checks" &&
        cp target/debug/phalanx "$out/program" || return 1
    cargo build --locked -p phalanx-python --features mpi &&
        cp -r ffi/python/python/phalanx/. "$out/phalanx/" && cp target/debug/lib_native.so "$out/phalanx/_native.abi3.so"
}

export root
export -f mpi_build

mpi_checks() { # openmpi or mpich, launcher
    local mpi=$1 run=$2 out=$root/target/mpi/$1 check
    step "mpi: $mpi, build" bash -c "mpi_build $mpi" || return
    step "mpi: $mpi, the contract" timeout 120 "$out/library" transport::mpi
    for check in matrix mismatch user again missing idle elastic funneled serialized; do
        step "mpi: $mpi, $check" bash -o pipefail -c '
            timeout 240 "$1" -np 4 "$2" "$3" | tee /dev/stderr | grep -o "check $3 held" | wc -l |
                grep -qx 4' \
            check "$run" "$out/checks" "$check"
    done
    step "mpi: $mpi, doctor" bash -c 'PHALANX_TRANSPORT=mpi timeout 60 "$1" doctor | tee /dev/stderr |
        grep -q "MPI .*MPI_THREAD_MULTIPLE"' doctor "$out/program"
    if [ ! -x "$venv/bin/pip" ] || ! [ -d "$mpi_python/mpi4py" ]; then
        skip "mpi: $mpi, mpi4py" 'mpi4py could not be installed'
        return
    fi
    for first in mpi4py phalanx; do
        step "mpi: $mpi, mpi4py, MPI started by $first" bash -o pipefail -c '
            timeout 120 "$1" -np 4 "$2" tests/mpi/beside_mpi4py.py "$3" | tee /dev/stderr | grep -o "beside mpi4py" |
                wc -l | grep -qx 4' check "$run" "$venv/bin/python" "$first"
    done
}

venv=${venv:-$root/target/venv}
if [ ! -x "$venv/bin/pip" ] && command -v python3 >/dev/null; then
    python3 -c 'import ensurepip' 2>/dev/null || packages python3-venv || echo "$reason"
    step 'mpi: Python environment' python3 -m venv "$venv" || true
fi
if [ -x "$venv/bin/pip" ] && [ ! -d "$mpi_python/mpi4py" ]; then
    step 'mpi: mpi4py' "$venv/bin/pip" install --quiet --no-deps --target "$mpi_python" mpi4py==4.1.2 || true
fi
if packages libopenmpi-dev openmpi-bin libclang-dev; then
    export PYTHONPATH=$root/target/mpi/openmpi:$mpi_python PHALANX_TRANSPORT=mpi MPI4PY_LIBMPI=libmpi.so.40
    mpi_checks openmpi mpirun.openmpi
    step 'mpi: clippy, all features' cargo clippy --locked --all-features --all-targets -- -D warnings
else
    skip 'mpi: Open MPI' "$reason"
fi
if packages libmpich-dev mpich libclang-dev; then
    export PYTHONPATH=$root/target/mpi/mpich:$mpi_python PHALANX_TRANSPORT=mpi MPI4PY_LIBMPI=libmpi.so.12
    # mpi4py looks for the library under the name that it has by the ABI that MPICH and its kin share.
    mkdir -p "$root/target/mpi/abi"
    ln -sf "$(ldconfig -p | awk '$1 == "libmpich.so.12" {print $NF; exit}')" "$root/target/mpi/abi/libmpi.so.12"
    mpi_path=${LD_LIBRARY_PATH-}
    export LD_LIBRARY_PATH=$root/target/mpi/abi${mpi_path:+:$mpi_path}
    mpi_checks mpich mpiexec.hydra
    if [ -n "$mpi_path" ]; then LD_LIBRARY_PATH=$mpi_path; else unset LD_LIBRARY_PATH; fi
else
    skip 'mpi: MPICH' "$reason"
fi
unset PYTHONPATH PHALANX_TRANSPORT MPI4PY_LIBMPI MPICC
