# Ranks on several hosts, which are network namespaces with cables of their own.
phalanx=$root/target/release/phalanx
hello=$root/target/release/examples/hello_allreduce

# One process on each host, told where to meet and nothing else. Prints every rank's output.
across_hosts() { # seconds, command...
    local seconds=$1 key rank pids=() status=0
    shift
    key=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
    for rank in 0 1 2 3; do
        PHALANX_KEY=$key PHALANX_RANK=$rank PHALANX_SIZE=4 PHALANX_RENDEZVOUS=10.78.0.1:29400 \
            ip netns exec "phx$((rank + 1))" timeout "$seconds" "$@" 2>&1 | sed "s/^/[$rank] /" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || status=1; done
    return $status
}

# Every host gets the sum, given one address.
meet() {
    across_hosts 60 "$hello" | tee /dev/stderr | grep -c '4: the sum is \[10.0' | grep -qx 4
}

# The cable of the third host is pulled in the middle: the others end by themselves, and name rank 2.
pull_a_cable() {
    local output
    output=$(mktemp)
    PHALANX_TIMEOUT=3 across_hosts 60 "$phalanx" bench allreduce --bytes 64K --iters 2000000 >"$output" 2>&1 &
    local ranks=$!
    # Traffic on the cable says that all are connected and busy.
    local port=/sys/class/net/phxport3/statistics/rx_bytes before
    before=$(cat $port)
    for _ in $(seq 300); do
        [ "$(($(cat $port) - before))" -gt 5000000 ] && break
        read -rt 0.1 <> <(:) || true
    done
    tests/hosts.sh cut 3
    wait $ranks || true
    tests/hosts.sh heal 3
    cat "$output"
    for rank in 0 1 3; do
        grep -E "^\[$rank\] .*(waiting for rank 2|rank 2 failed)" "$output" || { echo "rank $rank does not name rank 2"; return 1; }
    done
}

# Two hosts of two ranks: the bench takes the hierarchical algorithm by itself.
hierarchy() {
    "$phalanx" bench allreduce -np 4 --hosts phx1,phx2 --bytes 8,4K,1M,16M --iters 5 --json | tee /dev/stderr |
        tail -n 1 | grep -q '"algorithm":"hierarchical"'
}

if [ "$(id -u)" -ne 0 ]; then
    skip 'hosts' 'network namespaces need root'
elif ! packages iproute2 iputils-ping; then
    skip 'hosts' "$reason"
elif ! { ip netns add phxprobe && ip netns delete phxprobe; } 2>/dev/null; then
    skip 'hosts' 'this kernel or container gives no network namespaces'
elif binary; then
    export root phalanx hello
    export -f across_hosts meet pull_a_cable hierarchy
    if step 'hosts: four, 1 Gbit/s each' tests/hosts.sh up 4 1gbit; then
        step 'hosts: one address for all' bash -c meet
        step 'hosts: bench, one rank each' "$phalanx" bench allreduce -np 4 --hosts phx1,phx2,phx3,phx4 \
            --bytes 8,64K,4M --iters 5
        step 'hosts: hierarchical, two ranks each' bash -c hierarchy
        step 'hosts: a cable is pulled' bash -c pull_a_cable
        step 'hosts: elastic, a host is cut off' bash tests/parts/partition.sh lost 1
        step 'hosts: elastic, at the shortest limit' bash tests/parts/partition.sh lost 0.2
        step 'hosts: elastic, a lost rank is replaced' bash tests/parts/partition.sh replaced
        step 'hosts: elastic, two and two' bash tests/parts/partition.sh halves
        step 'hosts: elastic, too few are left' bash tests/parts/partition.sh few
        tests/hosts.sh down
    fi
fi
