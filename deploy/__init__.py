"""Manifests for Kubernetes (kustomize), and what generates parts of them."""
