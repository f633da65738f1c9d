"""Installs PyTorch for tests that only use the processor: `python lean_torch.py [VERSION]`.

PyPI's Linux wheel of PyTorch links CUDA's libraries, about 4 GB that a test on the processor never calls. This script
installs the wheel without them, then the CUDA runtime (small, and called when PyTorch is imported), and puts one
shared library with empty functions under the names of all others. Needs `cc` and `nm`. Only for tests: a PyTorch
installed like this must not see a GPU.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

DEFAULT_VERSION = "2.15.0"
PURE_REQUIREMENTS = ["filelock", "fsspec", "jinja2", "networkx", "sympy", "typing_extensions"]
FOREIGN = re.compile(r"^(cublas|cudnn|cufft|cusparse|cusolver|cupti|cuFile|nccl|nvshmem|nvrtc|nvJitLink|pnccl)")


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *arguments], check=True)


def undefined_symbols(library: Path) -> list[tuple[str, str]]:
    """The foreign functions a library calls: (name, version node or nothing)."""
    listing = subprocess.run(
        ["nm", "-D", "--undefined-only", str(library)], check=True, capture_output=True, text=True
    ).stdout
    names = [line.split()[-1].partition("@") for line in listing.splitlines() if line.strip()]
    return [(name, node.lstrip("@")) for name, _, node in names if FOREIGN.match(name)]


def needed_libraries(library: Path) -> list[str]:
    listing = subprocess.run(["readelf", "-d", str(library)], check=True, capture_output=True, text=True).stdout
    return re.findall(r"\(NEEDED\).*\[(lib(?:cu|nccl|nv)[^\]]*)\]", listing)


def build_stand_in(symbols: set[tuple[str, str]], target: Path) -> None:
    """One library that defines every symbol under the version its callers ask for."""
    nodes: dict[str, list[str]] = {}
    for name, node in sorted(symbols):
        nodes.setdefault(node or "UNVERSIONED", []).append(name)
    with tempfile.TemporaryDirectory() as folder:
        source, versions = Path(folder, "stand_in.c"), Path(folder, "versions.map")
        functions = [f"int {name}(void) {{ return 1; }}" for name in sorted({name for name, _ in symbols})]
        source.write_text("\n".join(functions) + "\n")
        versions.write_text("".join(f"{node} {{ global: {'; '.join(names)}; }};\n" for node, names in nodes.items()))
        options = [f"-Wl,--version-script={versions}", f"-Wl,-soname,{target.name}"]
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-fno-builtin", "-o", str(target), str(source), *options],
            check=True,
        )


def main() -> None:
    version = sys.argv[1] if len(sys.argv) > 1 else DEFAULT_VERSION
    pip("--no-deps", f"torch=={version}")
    requirements = importlib.metadata.requires("torch") or []
    toolkit = next(re.search(r"==([0-9.]+)", item) for item in requirements if item.startswith("cuda-toolkit"))
    assert toolkit is not None
    major_minor = ".".join(toolkit[1].split(".")[:2])
    pip(*PURE_REQUIREMENTS)
    pip("--no-deps", f"nvidia-cuda-runtime=={major_minor}.*")

    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent / "lib"
    libraries = sorted(folder.glob("lib*.so"))
    symbols = {symbol for library in libraries for symbol in undefined_symbols(library)}
    wanted = {name for library in libraries for name in needed_libraries(library)}
    missing = sorted(name for name in wanted if not name.startswith("libcudart") and not (folder / name).exists())
    stand_in = folder / "libphalanx_stand_in.so"
    build_stand_in(symbols, stand_in)
    for name in missing:
        os.symlink(stand_in.name, folder / name)
    subprocess.run([sys.executable, "-c", "import torch; print('torch', torch.__version__)"], check=True)


if __name__ == "__main__":
    main()
