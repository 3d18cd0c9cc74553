"""The fused pieces, each beside its plain-torch twin."""

import os

# Triton 3.9 warns that 3.10 will no longer fuse multiplications and additions unless it is told to.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
