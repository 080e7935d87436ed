"""Adapters to vendor SDKs, each behind its extra and imported on first use."""
