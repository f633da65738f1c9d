# The wheel in an empty environment, without NumPy and PyTorch. The one that the Python part built, or a new one.
if python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null &&
    { python3 -c 'import ensurepip' 2>/dev/null || packages python3-venv; }; then
    step 'wheel: in an empty environment' bash ffi/python/tests/wheel.sh "$root"/target/wheels/phalanx-*.whl
else
    skip 'wheel' 'needs Python 3.10 or later with venv'
fi
