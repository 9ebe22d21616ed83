"""Mesa's teflon delegate for aarch64, with TensorFlow Lite to load it."""

from tests.foreign.debian import PYTHON_PACKAGES, Root

ROOT = Root(
    "teflon",
    packages=("mesa-teflon-delegate=26.1.6-1~bpo13+1", "libdrm2", *PYTHON_PACKAGES),
    wheels=("ai-edge-litert==2.3.0", "numpy==2.4.6"),
)
DELEGATE = ROOT.path("lib/teflon/libteflon.so")
