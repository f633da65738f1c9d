# The same program under every launcher, and the examples.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
examples=$root/target/release/examples

# Four ranks that each print the sum of all: the output must have every rank once.
under() { # name, launcher...
    local name=$1
    shift
    step "launchers: $name" bash -c '
        set -o pipefail
        "$@" | tee /dev/stderr | grep -oE "rank [0-3] of 4: the sum is \[10.0, 10.0, 10.0, 10.0\]" | sort -u | wc -l |
            grep -qx 4' under "$@" "$examples/hello_allreduce"
}

if binary; then
    under 'phalanx run' "$root/target/release/phalanx" run -np 4
    if packages openmpi-bin; then
        under 'Open MPI' mpirun.openmpi --oversubscribe -np 4
        step 'launchers: bench inside mpirun' mpirun.openmpi --oversubscribe -np 2 \
            "$root/target/release/phalanx" bench allreduce --bytes 8:64K --iters 20
    else
        skip 'launchers: Open MPI' "$reason"
    fi
    if packages mpich; then
        under 'MPICH' mpiexec.hydra -np 4
    else
        skip 'launchers: MPICH' "$reason"
    fi
    if [ -x "$root/target/venv/bin/torchrun" ]; then
        step 'launchers: torchrun' env PATH="$root/target/venv/bin:$PATH" OMP_NUM_THREADS=1 \
            torchrun --nproc-per-node 4 examples/python/hello_numpy.py
    else
        skip 'launchers: torchrun' 'PyTorch is not installed; bash tests/run.sh python launchers installs it'
    fi
    for example in collectives overlap groups; do
        for ranks in 1 2 3 4; do
            step "launchers: example $example, $ranks ranks" \
                "$root/target/release/phalanx" run -np "$ranks" "$examples/$example"
        done
    done
    step 'launchers: 64 ranks' bash -c "'$root/target/release/phalanx' run -np 64 '$examples/hello_allreduce' |
        grep -c 'the sum is' | grep -qx 64"
fi
