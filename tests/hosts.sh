#!/bin/bash
# Several hosts on one machine: network namespaces on a bridge, each with a shaped link of its own.
#
#   tests/hosts.sh up N [RATE]    hosts phx1 .. phxN at 10.78.0.1 .., each link limited to RATE (1gbit) both ways
#   tests/hosts.sh cut I          pulls the cable of host I
#   tests/hosts.sh part I...      these hosts reach each other, and no others
#   tests/hosts.sh heal I...      plugs them in again
#   tests/hosts.sh down           takes everything away
#
# Needs root and iproute2. Run something on a host with: ip netns exec phx1 COMMAND
# Another prefix than phx, of at most 6 letters, in HOSTS_PREFIX makes another network beside.
set -euo pipefail
prefix=${HOSTS_PREFIX:-phx}
bridge=${prefix}bridge
island=${prefix}island

down() {
    local name
    for name in $(ip netns list | awk -v name="^$prefix[0-9]+$" '$1 ~ name {print $1}'); do
        # A namespace lives on, with its cable, as long as a process is in it.
        ip netns pids "$name" | xargs -r kill -KILL
        ip link delete "${prefix}port${name#"$prefix"}" 2>/dev/null || true
        ip netns delete "$name"
    done
    ip link delete "$bridge" 2>/dev/null || true
    ip link delete "$island" 2>/dev/null || true
}

up() { # count, rate
    down
    ip link add "$bridge" type bridge
    ip link set "$bridge" up
    local host
    for host in $(seq 1 "$1"); do
        ip netns add "$prefix$host"
        ip link add "${prefix}port$host" type veth peer name eth0 netns "$prefix$host"
        ip link set "${prefix}port$host" master "$bridge" up
        ip -netns "$prefix$host" address add "10.78.0.$host/24" dev eth0
        ip -netns "$prefix$host" link set eth0 up
        ip -netns "$prefix$host" link set lo up
        # Both directions: what the host sends, and what the switch sends to it.
        ip netns exec "$prefix$host" tc qdisc add dev eth0 root tbf rate "$2" burst 256kb latency 50ms
        tc qdisc add dev "${prefix}port$host" root tbf rate "$2" burst 256kb latency 50ms
    done
}

case ${1:-} in
    up) up "${2:?how many hosts?}" "${3:-1gbit}" ;;
    cut) ip link set "${prefix}port${2:?which host?}" down ;;
    part)
        : "${2:?which hosts?}"
        ip link show "$island" >/dev/null 2>&1 || ip link add "$island" type bridge
        ip link set "$island" up
        for host in "${@:2}"; do ip link set "${prefix}port$host" master "$island"; done
        ;;
    heal)
        : "${2:?which hosts?}"
        for host in "${@:2}"; do ip link set "${prefix}port$host" master "$bridge" up; done
        ;;
    down) down ;;
    *) sed -n '2,11p' "$0" | sed 's/^# \{0,1\}//'; exit 2 ;;
esac
