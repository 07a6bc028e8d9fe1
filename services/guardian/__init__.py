"""Keeps online workloads inside their latency targets: breach, cause, the least eviction, proof."""
