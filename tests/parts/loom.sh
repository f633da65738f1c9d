# Every interleaving of the lock-free pieces.
step 'loom: lock-free pieces' env RUSTFLAGS='--cfg loom' LOOM_MAX_PREEMPTIONS=3 \
    CARGO_TARGET_DIR="$root/target/loom" cargo test --locked --release --no-default-features --lib loom_
