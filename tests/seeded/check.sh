#!/bin/bash
# Shows that the tests are not blind: seeds the bugs of bugs.sh into a copy of the sources, one at a time, and wants each
# caught by the test that is there for it. Ends with a line "checks: N passed, M failed".
#
#   bash tests/seeded/check.sh            all bugs
#   bash tests/seeded/check.sh NAME...    these
#
# The copies and their builds are kept in target/seeded, so that a bug costs a few seconds: the compiler does again only
# what the bug changes. There are two copies, one for unit tests and one for all others, and both are at work at a time,
# since most of it is a compiler that uses one processor. A bug is caught when its test ran and failed as a test. One that
# does not compile, or after which no test result comes, proves nothing and is an error.
set -uo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
seeded=$root/target/seeded
logs=$seeded/logs
mkdir -p "$logs"
exec 9>"$seeded/lock"
if ! flock --nonblock 9; then
    echo 'checks: 0 passed, 1 failed (another run is at it)'
    exit 1
fi
export CARGO_TERM_COLOR=never
# Quick to build. The tests that are run here are quick anyhow.
export CARGO_PROFILE_TEST_OPT_LEVEL=0 CARGO_PROFILE_TEST_DEBUG=0 CARGO_PROFILE_TEST_INCREMENTAL=true
# How long one bug's test may take, building included. The first build takes longer.
bug_seconds=300 first_seconds=1200

names=() whats=() files=() finds=() puts=() targets=() tests=()
waits=() wait_finds=() wait_puts=()

# The words that bugs.sh is written in.
patience() { # file, text that stands in it once, text to put there: in the copy, with and without a bug
    waits+=("$1") wait_finds+=("$2") wait_puts+=("$3")
}
bug() { # name, what is wrong
    names+=("$1") whats+=("$2")
}
change() { # file, text that stands in it once, text to put there
    files+=("$1") finds+=("$2") puts+=("$3")
}
caught_by() { # target ("loom" for those that the model checker runs), full name of the test
    targets+=("$1") tests+=("$2")
}
# shellcheck source=tests/seeded/bugs.sh
. tests/seeded/bugs.sh

pass() { printf 'ok      %4ds  %s\n' $((SECONDS - started)) "$1"; }
fail() { # name, why, log
    printf 'FAILED  %4ds  %s: %s\n' $((SECONDS - started)) "$1" "$2"
    [ -z "${3:-}" ] || tail -n 30 "$3" | sed 's/^/    /'
    is_sound=
}

# A file's text with its last newlines kept.
text_of() { text=$(cat "$1" && echo .) && text=${text%.}; }

# The text of a source file with a place changed that must be there exactly once, or a failure that says so.
changed() { # what it is for, file, text to find, text to put
    local rest
    if [ -e "$root/$2" ]; then text_of "$root/$2"; else text=; fi
    rest=${text//"$3"/}
    local times=$(((${#text} - ${#rest}) / ${#3}))
    if [ $times -ne 1 ]; then
        fail "$1" "the text to change stands $times times in $2 instead of once: update tests/seeded/bugs.sh"
        return 1
    fi
    text=${text/"$3"/"$4"}
}

# Makes the copy equal to the sources, but for patience. Only files that differ are written, with the present time, which
# is what tells cargo to build them again.
sources=(Cargo.toml Cargo.lock README.md src kernels tests benches examples ffi docs)
list() { # directory
    (cd "$1" && find "${sources[@]}" -type f ! -path '*/.*/*' ! -path '*/target/*' 2>/dev/null | sort)
}
refresh() {
    local file number text
    comm -13 <(list "$root") <(list "$copy") | while IFS= read -r file; do rm -f "$copy/$file"; done
    list "$root" | while IFS= read -r file; do
        [[ " ${waits[*]} " == *" $file "* ]] || cmp -s "$root/$file" "$copy/$file" ||
            { mkdir -p "$copy/$(dirname "$file")" && cat "$root/$file" >"$copy/$file"; }
    done
    for number in "${!waits[@]}"; do
        file=${waits[number]}
        changed patience "$file" "${wait_finds[number]}" "${wait_puts[number]}" || return
        printf '%s' "$text" | cmp -s - "$copy/$file" ||
            { mkdir -p "$copy/$(dirname "$file")" && printf '%s' "$text" >"$copy/$file"; }
    done
}

# Runs tests by their full names in the copy. Builds go side by side, tests one after the other.
run_tests() { # seconds, log, target, names...
    local seconds=$1 log=$2 target=$3 status left
    shift 3
    local settings=(CARGO_TARGET_DIR="$build")
    if [ "$target" = loom ]; then
        settings=(CARGO_TARGET_DIR="$seeded/loom" RUSTFLAGS='--cfg loom' LOOM_MAX_PREEMPTIONS=3) target=--lib
    fi
    # shellcheck disable=SC2086
    (cd "$copy" && timeout --kill-after=10 "$seconds" env "${settings[@]}" cargo test --locked $target --no-run) \
        >"$log" 2>&1 </dev/null 9>&- || return
    {
        flock 8
        # shellcheck disable=SC2086
        (cd "$copy" && SEEDED_RUN=$BASHPID timeout --kill-after=10 "$seconds" env "${settings[@]}" \
            cargo test --locked $target -- --exact "$@") >>"$log" 2>&1 </dev/null 8>&- 9>&- &
        wait $!
        status=$?
        # What a test left running because of its bug. Processes of this run have its mark in their environment.
        left=$(grep -lszx "SEEDED_RUN=$!" /proc/[0-9]*/environ | grep -oE '[0-9]+')
        # shellcheck disable=SC2086
        [ -z "$left" ] || kill -KILL $left 2>/dev/null
    } 8>"$seeded/at-a-test"
    return $status
}

# Whether the test is in a log with this result.
has() { # log, test, result
    grep -aqE "^test ${2//./\\.}( - should panic)? \.\.\. $3" "$1"
}

chosen=()
for number in "${!names[@]}"; do
    if [ $# -eq 0 ] || [[ " $* " == *" ${names[number]} "* ]]; then chosen+=("$number"); fi
done
started=$SECONDS
if [ ${#chosen[@]} -eq 0 ] || { [ $# -gt 0 ] && [ ${#chosen[@]} -ne $# ]; }; then
    fail "$*" "no such bugs; known are: ${names[*]}"
    echo 'checks: 0 passed, 1 failed'
    exit 1
fi

# Tries the chosen bugs of some targets in a copy of their own.
try_all() { # name of the copy, targets...
    local copy=$seeded/$1 build=$seeded/$1-build is_sound=1 number target test log status name missing wanted
    local -A is_mine=()
    shift
    mkdir -p "$copy"
    refresh || return
    # Without a bug every one of these tests passes.
    for target in "$@"; do
        wanted=()
        for number in "${chosen[@]}"; do [ "${targets[number]}" != "$target" ] || wanted+=("${tests[number]}"); done
        is_mine[$target]=1 started=$SECONDS
        log=$logs/sound$(tr ' ' '-' <<<"$target").log
        run_tests "$first_seconds" "$log" "$target" "${wanted[@]}"
        status=$?
        missing=()
        for test in "${wanted[@]}"; do has "$log" "$test" ok || missing+=("$test"); done
        if [ $status -eq 0 ] && [ ${#missing[@]} -eq 0 ]; then
            pass "cargo test $target passes without a bug"
        else
            fail "cargo test $target" "without any bug these did not pass, or do not exist any more: ${missing[*]}" "$log"
        fi
    done
    [ -n "$is_sound" ] || return
    for number in "${chosen[@]}"; do
        [ -n "${is_mine[${targets[number]}]:-}" ] || continue
        name=${names[number]} test=${tests[number]} log=$logs/${names[number]}.log
        started=$SECONDS
        changed "$name" "${files[number]}" "${finds[number]}" "${puts[number]}" || continue
        printf '%s' "$text" >"$copy/${files[number]}"
        run_tests "$bug_seconds" "$log" "${targets[number]}" "$test"
        status=$?
        refresh
        if has "$log" "$test" FAILED && grep -aq '^test result: FAILED' "$log"; then
            pass "$name: ${whats[number]}"
        elif has "$log" "$test" ok; then
            fail "$name" "nobody notices that ${whats[number]}: $test passes with the bug"
        elif ! grep -aqE '^running [1-9][0-9]* test' "$log"; then
            fail "$name" "the copy with the bug does not build: update tests/seeded/bugs.sh" "$log"
        else
            fail "$name" "no test result (exit status $status); a test should notice by itself that ${whats[number]}" "$log"
        fi
    done
}

# The targets of the chosen bugs.
needed=$(for number in "${chosen[@]}"; do echo "${targets[number]}"; done | sort -u)
mapfile -t units < <(grep -xe --lib <<<"$needed")
mapfile -t others < <(grep -vxe --lib <<<"$needed")
{
    [ ${#units[@]} -eq 0 ] || try_all units "${units[@]}" &
    [ ${#others[@]} -eq 0 ] || try_all others "${others[@]}" &
    wait
} | tee "$logs/all.log"
passed=$(grep -c '^ok ' "$logs/all.log") failed=$(grep -c '^FAILED ' "$logs/all.log")
echo "checks: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
