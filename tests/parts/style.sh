# Formatting, lints, documentation: every warning is an error.
step 'style: rustfmt' cargo fmt --all --check
step 'style: clippy' cargo clippy --workspace --locked --all-targets -- -D warnings
step 'style: clippy, no features' cargo clippy --locked --no-default-features --all-targets -- -D warnings
for feature in rdma cuda nccl; do
    step "style: clippy, $feature alone" cargo clippy --locked --no-default-features --features $feature --lib --bins -- -D warnings
done
step 'style: clippy, Python, no features' cargo clippy --locked -p phalanx-python --no-default-features -- -D warnings
step 'style: rustdoc' env RUSTDOCFLAGS='-D warnings' cargo doc --workspace --locked --no-deps --document-private-items
