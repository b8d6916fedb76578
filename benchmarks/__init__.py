"""Timings that the README and the changelog may quote; ``python -m benchmarks`` runs them."""
