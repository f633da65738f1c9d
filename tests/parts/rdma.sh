# The carrier over RDMA, against real RoCE devices in a virtual machine.

# In the machine: the contract, the collectives, a mismatch, a member that falls; then what the devices counted.
rdma_checks=$(mktemp)
cat >"$rdma_checks" <<'CHECKS'
status=0
for program in unit collectives elastic; do
    /bin/$program --ignored --test-threads=1 rdma || status=1
done
# The bytes went over the devices, and no receiver was ever overrun.
for device in rxe0 rxe1; do
    counters=/sys/class/infiniband/$device/ports/1/hw_counters
    grep . $counters/*
    packets=$(cat $counters/sent_pkts) overruns=$(($(cat $counters/send_rnr_err) + $(cat $counters/rcvd_rnr_err)))
    echo "$device: $packets packets sent, $overruns receivers not ready"
    least=10000
    [ $device = rxe0 ] || least=100
    [ "$packets" -gt $least ] && [ "$overruns" -eq 0 ] || status=1
done
exit $status
CHECKS

# Builds what is to be run; copies of it without the symbols that would fill the machine's memory.
rdma_build() { # folder
    local name file
    cargo test --locked --features rdma --lib --test collectives --test elastic --no-run 2>&1 | tee "$1/build.log" || return 1
    while read -r name file; do
        objcopy --strip-debug "$file" "$1/$name" || return 1
    done < <(sed -nE -e 's/.*unittests src\/lib.rs \((.*)\)/unit \1/p' \
        -e 's/.*tests\/(collectives|elastic)\/main.rs \((.*)\)/\1 \2/p' "$1/build.log")
    [ -e "$1/unit" ] && [ -e "$1/collectives" ] && [ -e "$1/elastic" ]
}

# With the header at hand, the layouts of our bindings are held against it.
packages libibverbs-dev binutils || echo "$reason"
rdma_files=$(mktemp -d)
export -f rdma_build
if step 'rdma: build' bash -c "set -o pipefail; rdma_build $rdma_files"; then
    step 'rdma: without a device' "$rdma_files/unit" rdma verbs
    if [ "$(id -u)" -ne 0 ]; then
        skip 'rdma: over a device' 'unpacking a kernel for the virtual machine needs root'
    elif [ "$(uname -m)" != x86_64 ]; then
        skip 'rdma: over a device' 'the virtual machine is made for x86_64'
    elif ! packages qemu-system-x86 busybox-static kmod cpio rdma-core ibverbs-providers iproute2; then
        skip 'rdma: over a device' "$reason"
    else
        cp "$rdma_checks" "$rdma_files/checks"
        RDMA_GUEST_SECONDS=600 step 'rdma: over a device' bash tests/rdma-guest.sh 'sh /bin/checks' "$rdma_files"/{unit,collectives,elastic,checks}
    fi
fi
rm -rf "$rdma_files" "$rdma_checks"
