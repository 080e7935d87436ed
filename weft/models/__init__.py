"""Adapters to vendor SDKs, each behind its extra and imported on first use; and what wraps a model."""

from weft.models.wrappers import TRANSIENT, fallback, retry

__all__ = ["TRANSIENT", "fallback", "retry"]
