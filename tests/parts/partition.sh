#!/bin/bash
# An elastic job over four hosts whose cables are pulled. Run by tests/parts/hosts.sh, with four hosts up.
#
#   tests/parts/partition.sh lost SECONDS | replaced | halves | few
#
# The registry is on the first host, a rank on each. What everyone says is kept, and shown when something is missing.
set -euo pipefail
phalanx=$root/target/release/phalanx
rejoins=$root/target/release/examples/elastic_rejoin
ends=$root/target/release/examples/elastic_sum
said=$(mktemp -d)
address=10.78.0.1:29500
(umask 077; od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$said/key")
export PHALANX_KEY_FILE=$said/key
pids=()

finish() {
    local status=$?
    tests/hosts.sh heal 1 2 3 4 || true
    [ ${#pids[@]} -eq 0 ] || kill -KILL "${pids[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    [ "$status" -eq 0 ] || (cd "$said" && tail -n 40 -- *.err && tail -n 3 -- *.out)
    rm -rf "$said"
    exit "$status"
}
trap finish EXIT

# In the background on a host, with a name for what it says: on HOST NAME COMMAND...
on() {
    ip netns exec "phx$1" "${@:3}" >"$said/$2.out" 2>"$said/$2.err" </dev/null &
    pids+=($!)
}

# Waits until a line is there: sees FILE PATTERN [SECONDS]
sees() {
    local ends=$((SECONDS + ${3:-60}))
    until grep -qE "$2" "$said/$1" 2>/dev/null; do
        [ "$SECONDS" -lt "$ends" ] || { echo "$1 does not say: $2"; return 1; }
        read -rt 0.02 <> <(:) || true
    done
}

registry() { # options...
    on 1 registry "$phalanx" registry --listen "$address" -np 4 --max-np 4 "$@"
    sees registry.err 'listens at'
}

# All four work: there is a step of all.
work() { # program...
    local rank
    for rank in 0 1 2 3; do on $((rank + 1)) "rank$rank" env PHALANX_REGISTRY=$address PHALANX_SLOT=$rank "$@"; done
    for rank in 0 1 2 3; do sees "rank$rank.out" 'slots \[0, 1, 2, 3\]'; done
}

milliseconds() { echo $((${EPOCHREALTIME/./} / 1000)); }

status() { ip netns exec phx1 "$phalanx" status --registry "$address"; }

# Whoever counted a step counted the same one, and nobody counted one twice: there was one job.
one_job() {
    local doubly
    doubly=$(cat "$said"/rank*.out | grep -a '^step' | sort -u | awk '{print $2}' | uniq -d | head -n 3)
    [ -z "$doubly" ] || { grep -ahE "^step ($(paste -sd'|' <<<"$doubly")) " "$said"/rank*.out; return 1; }
    echo "$(cat "$said"/rank*.out | grep -a '^step' | awk '{print $2}' | sort -un | wc -l) steps, each counted in one view"
}

# One host is cut off: the others go on within the heartbeat limit, and it comes back as somebody new.
lost() { # heartbeat limit
    registry --min-np 2 --heartbeat "$1"
    work "$rejoins"
    local before
    before=$(milliseconds)
    tests/hosts.sh cut 3
    sees registry.err '^phalanx: view 2: 3 ranks, slots 0, 1, 3'
    echo "cable pulled to view: $(($(milliseconds) - before)) ms, with a heartbeat limit of $1 s"
    grep -E "slot 2 is unreachable: no answer from it" "$said/registry.err"
    for rank in 0 1 3; do sees "rank$rank.out" 'slots \[0, 1, 3\]'; done
    # Without the registry's word it waits, and says so.
    sees rank2.err 'cut off from the registry.*operations do not advance'
    tests/hosts.sh heal 3
    sees rank2.err 'slot 2 is out: the others went on without this rank \(unreachable'
    sees rank2.err 'back as slot 4'
    for rank in 0 1 2 3; do sees "rank$rank.out" 'slots \[0, 1, 3, 4\]'; done
    one_job
}

# The same with a program that ends when it is out, and a launcher on each host that starts it again.
replaced() {
    registry --min-np 2 --heartbeat 1 --verbose
    local rank
    for rank in 0 1 2 3; do on $((rank + 1)) "rank$rank" "$phalanx" run -np 1 --registry "$address" "$ends"; done
    sees registry.err '^phalanx: view 1: 4 ranks'
    tests/hosts.sh cut 3
    sees registry.err '^phalanx: view 2: 3 ranks'
    tests/hosts.sh heal 3
    sees rank2.err 'Error: the others went on without this rank \(unreachable'
    sees rank2.err 'exited with code 1; another is started'
    sees registry.err '^phalanx: view 3: 4 ranks, .*: slot 4 joined'
}

# Two and two: the registry's side goes on; the other gives up in time, and comes back when it can.
halves() {
    registry --min-np 2 --heartbeat 1 --elastic-timeout 6
    work "$rejoins"
    tests/hosts.sh part 3 4
    sees registry.err '^phalanx: view [23]: 2 ranks, slots 0, 1'
    for rank in 0 1; do sees "rank$rank.out" 'slots \[0, 1\]'; done
    for rank in 2 3; do
        sees "rank$rank.err" "slot $rank is out: .*cut off from the registry for [0-9.]+ s"
        if grep -aE 'slots \[2, 3\]|slots \[2\]|slots \[3\]' "$said/rank$rank.out"; then return 1; fi
    done
    tests/hosts.sh heal 3 4
    for rank in 2 3; do sees "rank$rank.err" 'back as slot [4-9]'; done
    for rank in 0 1 2 3; do sees "rank$rank.out" 'slots \[0, 1, [4-9], [4-9]\]'; done
    one_job
}

# Fewer are left than the job needs: they wait, say for what, and all end alike.
few() {
    registry --min-np 3 --heartbeat 1 --elastic-timeout 5
    work "$rejoins"
    tests/hosts.sh part 3 4
    sees registry.err '^phalanx: 2 ranks are there, the job needs 3: waiting for more'
    status | tee "$said/status.out"
    grep -q '^waits for at least 3 members' "$said/status.out"
    for rank in 0 1; do sees "rank$rank.err" 'the job waits for members'; done
    local code
    for rank in 0 1; do
        code=0
        wait "${pids[$((rank + 1))]}" || code=$?
        [ "$code" -eq 1 ] || { echo "rank $rank ended with code $code"; return 1; }
        grep -E 'the job is over: 2 members are left, the job needs 3, and no more came within 5 s' "$said/rank$rank.err"
    done
    code=0
    wait "${pids[0]}" || code=$?
    [ "$code" -eq 1 ] || { echo "the registry ended with code $code"; return 1; }
    # The other side ends as well, and has counted nothing.
    for rank in 2 3; do sees "rank$rank.err" "slot $rank is out: .*cut off from the registry for"; done
    one_job
}

"$@"
