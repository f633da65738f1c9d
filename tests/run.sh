#!/bin/bash
# Runs the tests of Phalanx, after installing what they need. Ends with a line "N passed, N failed".
#
#   bash tests/run.sh              everything
#   bash tests/run.sh PART...      some of: style rust kernels device rdma mpi elastic loom aarch64 fuzz seeded instructions c python wheel launchers hosts
#   bash tests/run.sh help         this text
#
# As root, missing Debian packages are installed; otherwise the tests that need them are skipped, with the reason.
# Python packages go to target/venv. Needs a Rust toolchain (https://rustup.rs) and, for its parts, Python 3.10 or later.
set -uo pipefail
cd "$(dirname "$0")/.."
root=$PWD
logs=$root/target/test-logs
mkdir -p "$logs"
export CARGO_TERM_COLOR=never
passed=0 failed=0 skipped=0 failures=()

if [ "${1:-}" = help ] || [ "${1:-}" = --help ]; then
    sed -n '2,10p' "$0" | sed 's/^# \{0,1\}//'
    exit 0
fi
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(style rust kernels device rdma mpi elastic loom aarch64 fuzz seeded instructions c python wheel launchers hosts)

# Adds up what a test runner printed; a step without a runner counts as one.
count() { # log, exit status
    local ok=0 bad=0
    ok=$(grep -aoE '^test result: .* [0-9]+ passed|[0-9]+ passed( |,|$).* in [0-9.]+s|^checks: [0-9]+ passed' "$1" |
        grep -aoE '[0-9]+ passed' | awk '{n += $1} END {print n + 0}')
    bad=$(grep -aoE '^test result: .* [0-9]+ failed|[0-9]+ failed(,| ).* in [0-9.]+s|^checks: .* [0-9]+ failed' "$1" |
        grep -aoE '[0-9]+ failed' | awk '{n += $1} END {print n + 0}')
    if [ "$2" -ne 0 ] && [ "$bad" -eq 0 ]; then bad=1; fi
    if [ "$2" -eq 0 ] && [ "$ok" -eq 0 ]; then ok=1; fi
    passed=$((passed + ok)) failed=$((failed + bad))
}

# Runs one named step with its output in a log, and shows the end of the log when it fails.
step() { # name, command...
    local name=$1 log started status=0
    shift
    log=$logs/$(tr -c 'a-zA-Z0-9\n' - <<<"$name").log
    started=$SECONDS
    printf '%-46s' "$name"
    timeout --kill-after=10 "${STEP_SECONDS:-1500}" "$@" >"$log" 2>&1 </dev/null || status=$?
    count "$log" "$status"
    if [ "$status" -eq 0 ]; then
        printf 'ok      %4ds\n' $((SECONDS - started))
    else
        printf 'FAILED  %4ds  (exit status %d)\n' $((SECONDS - started)) "$status"
        failures+=("$name")
        tail -n 60 "$log" | sed 's/^/    /'
    fi
    return "$status"
}

skip() { # name, reason
    printf '%-46sskipped: %s\n' "$1" "$2"
    skipped=$((skipped + 1))
}

# Debian packages, when this is root on a machine with apt.
packages() { # package...
    local missing=() package
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        reason="needs the packages ${missing[*]}"
        return 1
    fi
    [ -e "$logs/apt-updated" ] || { apt-get update -qq >"$logs/apt.log" 2>&1 && touch "$logs/apt-updated"; }
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >>"$logs/apt.log" 2>&1 ||
        { reason="could not install ${missing[*]}, see $logs/apt.log"; return 1; }
}

# The release binary, which many parts start.
binary() {
    [ -n "${built:-}" ] && return 0
    step 'build: release' cargo build --release --locked --bins --examples && built=1
}

for tool in cargo cc; do
    if ! command -v "$tool" >/dev/null; then
        [ "$tool" = cc ] && packages gcc libc6-dev && continue
        echo "$tool was not found; install Rust from https://rustup.rs and a C compiler"
        exit 2
    fi
done

for part in "${parts[@]}"; do
    script=$root/tests/parts/$part.sh
    if [ ! -e "$script" ]; then
        echo "there is no part $part; bash tests/run.sh help lists them"
        exit 2
    fi
    # shellcheck source=/dev/null
    . "$script"
done

echo
for name in "${failures[@]}"; do echo "failed: $name (log: target/test-logs)"; done
[ "$skipped" -eq 0 ] || echo "steps skipped: $skipped"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
