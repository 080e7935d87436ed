"""Adapters to vendor SDKs, each behind its extra and imported on first use; and what wraps a model."""

from weft.models.wrappers import FALLBACK, TRANSIENT, fallback, retry

__all__ = ["FALLBACK", "TRANSIENT", "fallback", "retry"]
