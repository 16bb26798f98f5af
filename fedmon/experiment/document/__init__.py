"""Experiments as documents: TOML that people write, and NEPI's XML; both give the same description."""
