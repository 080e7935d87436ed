"""Pools: agents as children of a session."""

from weft.pool.pool import Pool
from weft.thread._receipts import Receipt

__all__ = ["Pool", "Receipt"]
