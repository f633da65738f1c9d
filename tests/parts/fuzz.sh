# Every parser of bytes from outside, fed by a coverage-guided fuzzer for a bounded time. Needs no nightly toolchain: the
# instrumentation is a compiler pass that stable has. For longer runs: FUZZ_SECONDS=3600 bash tests/run.sh fuzz
host=$(rustc -vV | sed -n 's/^host: //p')
if ! command -v c++ >/dev/null && ! packages g++; then
    skip 'fuzz: parsers' "libFuzzer is built with a C++ compiler: $reason"
else
    coverage='--cfg fuzzing -Cpasses=sancov-module -Cdebug-assertions'
    for option in level=4 inline-8bit-counters pc-table trace-compares; do
        coverage+=" -Cllvm-args=-sanitizer-coverage-$option"
    done
    if step 'fuzz: build' env RUSTFLAGS="$coverage" cargo build --release --locked --target "$host" \
        --manifest-path tests/fuzz/Cargo.toml --target-dir "$root/target/fuzz"; then
        for file in tests/fuzz/fuzz_targets/*.rs; do
            name=$(basename "$file" .rs)
            mkdir -p "$root/target/fuzz/corpus/$name"
            step "fuzz: $name" "$root/target/fuzz/$host/release/$name" "$root/target/fuzz/corpus/$name" \
                -max_total_time="${FUZZ_SECONDS:-15}" -max_len=8192 -rss_limit_mb=2048 -artifact_prefix="$logs/"
        done
    fi
fi
