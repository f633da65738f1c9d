# 64-bit ARM, on any machine: everything is built for it with warnings denied; what of the library's tests is arithmetic,
# formats, plans and memory runs under qemu, and so does a bench of two ranks. An emulator on another processor keeps that
# one's order of loads and stores: what ARM may do beyond it is the business of the part "loom".
arm=aarch64-unknown-linux-gnu
arm_qemu='qemu-aarch64 -L /usr/aarch64-linux-gnu'
# The others have nothing of the processor in them, take minutes under an emulator, or compare times.
arm_tests=(reduce:: wire:: types:: schedule::plan transport::board transport::heap transport::ring
    transport::inproc executor::in_host)

# Two ranks in one host, with every element of every result checked. The launcher could not start them: they are no
# programs of this machine.
arm_ranks() {
    local key port rank pids=() status=0
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    key=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
    for rank in 0 1; do
        PHALANX_KEY=$key PHALANX_RANK=$rank PHALANX_SIZE=2 PHALANX_RENDEZVOUS=127.0.0.1:$port PHALANX_TRANSPORT=shm \
            timeout 120 $arm_qemu "$root/target/aarch64/$arm/debug/phalanx" bench "$@" --bytes 8,4K,1M --iters 2 &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || status=1; done
    return $status
}

if ! rustup target list --installed 2>/dev/null | grep -qx "$arm" &&
    ! rustup target add "$arm" >"$logs/aarch64-target.log" 2>&1; then
    skip 'aarch64' "its standard library cannot be had: rustup target add $arm"
elif ! packages gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user; then
    skip 'aarch64' "$reason"
else
    # Tests are built as the program is, so that they share what both need.
    arm_cargo=(env CARGO_INCREMENTAL=0 CARGO_PROFILE_TEST_OPT_LEVEL=1 CARGO_TARGET_DIR="$root/target/aarch64"
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$arm_qemu" cargo)
    step 'aarch64: clippy' "${arm_cargo[@]}" clippy --workspace --locked --target "$arm" --all-targets -- -D warnings
    if step 'aarch64: build' "${arm_cargo[@]}" test --locked --target "$arm" --lib --no-run; then
        step 'aarch64: library' "${arm_cargo[@]}" test --locked --target "$arm" --lib -- "${arm_tests[@]}"
        # On a processor without the conversion of bfloat16, which the one before has.
        step 'aarch64: halves on the oldest' env QEMU_CPU=cortex-a57 \
            "${arm_cargo[@]}" test --locked --target "$arm" --lib -- reduce::tests::special
    fi
    if step 'aarch64: program' "${arm_cargo[@]}" build --locked --target "$arm" --bins; then
        export arm arm_qemu root
        export -f arm_ranks
        for collective in allreduce alltoall; do
            step "aarch64: $collective of 2 ranks" bash -c "arm_ranks $collective"
        done
    fi
fi
