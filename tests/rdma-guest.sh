#!/bin/bash
# Runs a command where there is a real RoCE device: in a virtual machine with Debian's kernel and its Soft-RoCE (rdma_rxe),
# emulated by QEMU. Kernels of containers rarely have RDMA, and load no modules.
#
#   bash tests/rdma-guest.sh COMMAND FILE...   COMMAND finds each FILE in /bin, and the devices rxe0 on 10.9.0.1 and
#                                              rxe1 on 10.9.1.1, which have no way between them
#
# Ends with the command's exit status, 124 if the machine took longer than RDMA_GUEST_SECONDS (300), 125 if it did not come
# up. It boots in about 15 s and is ten to fifty times slower than its host: for correctness, not for speed. Needs root,
# and the packages that tests/parts/rdma.sh names.
set -euo pipefail
command=$1
shift
work=${RDMA_GUEST_DIR:-${TMPDIR:-/tmp}/phalanx-rdma-guest}
libraries=/usr/lib/$(uname -m)-linux-gnu
mkdir -p "$work"

# The kernel is only unpacked: it is not installed here.
if ! compgen -G "$work/kernel/boot/vmlinuz-*" >/dev/null; then
    image=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image/ {print $2; exit}')
    rm -rf "$work/kernel" "$work"/*.deb
    (cd "$work" && apt-get download -qq "$image" && dpkg -x "$image"_*.deb kernel && rm -f ./*.deb)
fi
vmlinuz=$(compgen -G "$work/kernel/boot/vmlinuz-*" | head -n 1)
release=${vmlinuz##*/vmlinuz-}
[ -e "$work/kernel/lib/modules/$release/modules.dep" ] || depmod -b "$work/kernel" "$release"

root=$(mktemp -d "$work/root.XXXXXX")
trap 'rm -rf "$root" "$root.cpio" "$root.log"' EXIT
mkdir -p "$root"/{bin,proc,sys,dev,tmp,modules,etc/libibverbs.d}
cp "$(command -v busybox)" "$root/bin/busybox"

# A program or library, with the libraries it is linked to.
put() { # file, where
    mkdir -p "$root$(dirname "$2")"
    cp -L "$1" "$root$2"
    { ldd "$1" 2>/dev/null || true; } | awk '/=> \// {print $3} /^\t\// {print $1}' | while read -r library; do
        mkdir -p "$root$(dirname "$library")"
        [ -e "$root$library" ] || cp -L "$library" "$root$library"
    done
}
put "$(command -v rdma)" /bin/rdma
for file in "$@"; do put "$file" "/bin/$(basename "$file")"; done
put "$libraries/libibverbs.so.1" "$libraries/libibverbs.so.1"
for provider in "$libraries"/libibverbs/librxe*.so; do put "$provider" "$provider"; done
cp /etc/libibverbs.d/rxe.driver "$root/etc/libibverbs.d/"
for module in crc32_generic dummy rdma_ucm rdma_rxe; do
    modprobe -d "$work/kernel" -S "$release" --show-depends "$module" | awk '$1 == "insmod" {print $2}'
done | awk '!seen[$0]++' | while read -r object; do
    cp "$object" "$root/modules/"
    basename "$object"
done >"$root/modules.order"

cat >"$root/init" <<INIT
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm /dev/pts; mount -t tmpfs tmpfs /dev/shm; mount -t tmpfs tmpfs /tmp; mount -t devpts devpts /dev/pts
for module in \$(cat /modules.order); do insmod /modules/\$module; done
hostname guest
ip link set lo up
for n in 0 1; do
    ip link add d\$n type dummy; ip addr add 10.9.\$n.1/24 dev d\$n; ip link set d\$n up
    rdma link add rxe\$n type rxe netdev d\$n
done
cd /tmp
( $command )
code=\$?
echo; echo "GUEST-EXIT \$code"
poweroff -f
INIT
chmod +x "$root/init"
(cd "$root" && find . | cpio --quiet -o -H newc) >"$root.cpio"

status=0
timeout "${RDMA_GUEST_SECONDS:-300}" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -m 2048 -smp 2 -nographic -no-reboot \
    -nic none -kernel "$vmlinuz" -initrd "$root.cpio" -append 'console=ttyS0 panic=-1 quiet' </dev/null |
    tr -d '\r' | tee "$root.log" || status=$?
code=$(awk '/^GUEST-EXIT/ {code = $2} END {print code}' "$root.log")
[ "$status" -eq 124 ] || [ -n "$code" ] || status=125
exit "${code:-$status}"
