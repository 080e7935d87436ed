"""Measurements: `make bench` prints one JSON line for each."""
