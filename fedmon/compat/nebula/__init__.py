"""NEBULA's reporter over our sampler and publisher: its names, its asyncio surface, none of its waits."""

from __future__ import annotations

from fedmon.compat.nebula.reporter import Reporter

__all__ = ["Reporter"]
