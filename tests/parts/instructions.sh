# Instructions of hot paths, counted under valgrind and held against those recorded in benches/instructions.json. A
# count is the same on a busy machine, which a time is not.
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    skip 'instructions' 'needs Python 3.10 or later'
elif ! command -v valgrind >/dev/null && ! packages valgrind libc6-dbg; then
    skip 'instructions' "$reason"
else
    # Exit status 3 says that this machine cannot count, and its words why.
    counted() { # name, options...
        local name=$1 status=0
        shift
        python3 benches/instructions.py "$@" >"$logs/instructions.out" 2>&1 || status=$?
        if [ "$status" -eq 3 ]; then
            skip "$name" "$(tail -n 1 "$logs/instructions.out")"
        else
            step "$name" bash -c 'cat "$0"; exit "$1"' "$logs/instructions.out" "$status"
        fi
    }
    step 'instructions: build' cargo build --release --locked --bench instructions &&
        counted 'instructions: hot paths' &&
        counted 'instructions: a slower path is noticed' --self-test
fi
