"""The fused pieces, each beside its plain-torch twin."""
