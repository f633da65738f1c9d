# The Rust tests: unit, documentation and integration tests of the root package.
# The launchers and hosts that some tests start; where they cannot be had, those tests say so.
packages openmpi-bin mpich iproute2 || echo "$reason"
step 'rust: build' cargo test --locked --no-run
step 'rust: library' cargo test --locked --lib
step 'rust: documentation' cargo test --locked --doc
for file in tests/*.rs tests/*/main.rs; do
    name=${file#tests/} name=${name%/main.rs} name=${name%.rs}
    # The part "elastic" runs those, for longer.
    [ "$name" = faults ] && [[ " ${parts[*]} " = *' elastic '* ]] && continue
    # So does "kernels", with a sanitizer, and "device", with NCCL.
    [ "$name" = kernels ] && [[ " ${parts[*]} " = *' kernels '* ]] && continue
    [ "$name" = device ] && [[ " ${parts[*]} " = *' device '* ]] && continue
    step "rust: $name" cargo test --locked --test "$name"
done
