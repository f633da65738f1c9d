#!/bin/bash
# The wheel by itself: built, installed in an empty environment without NumPy and PyTorch, imported and used by two
# ranks. Give a finished wheel to skip the build: wheel.sh [WHEEL]. PYTHON chooses the interpreter.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

wheel=${1:-}
[ -e "$wheel" ] || wheel=
if [ -z "$wheel" ]; then
    "$python" -m pip wheel --quiet --no-deps --wheel-dir "$work" "$here/.."
    wheel=$(ls "$work"/phalanx-*.whl)
fi
case $wheel in
    *-cp310-abi3-*) ;;
    *) echo "not a wheel for every CPython from 3.10 on: $wheel" >&2; exit 1 ;;
esac

"$python" -m venv "$work/venv"
bin=$work/venv/bin
"$bin/pip" install --quiet --no-index "$wheel"
cat > "$work/use.py" <<'PYTHON'
import importlib.util
import phalanx
assert importlib.util.find_spec("numpy") is None and importlib.util.find_spec("torch") is None
phalanx.init()
data = bytearray([phalanx.rank() + 1, 7])
phalanx.allreduce_(data, phalanx.Sum)
assert data == bytearray([3, 14]), data
# What a machine may lack is built in, looked for when asked, and missed by nothing above.
assert phalanx.cuda_built() and phalanx.nccl_built() and phalanx.rdma_built()
assert phalanx.cuda_available() in (False, True) and phalanx.rdma_available() in (False, True)
print(f"rank {phalanx.rank()} of {phalanx.size()}: {list(data)}")
PYTHON
cd "$work"
"$bin/phalanx" --version
"$bin/phalanx" run -np 2 "$bin/python" use.py
"$bin/python" -m phalanx run -np 2 "$bin/python" use.py > /dev/null
echo "the wheel works: $(basename "$wheel"), $(stat -c %s "$wheel") bytes"
