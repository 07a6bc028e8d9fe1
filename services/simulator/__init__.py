"""A cluster in a process: API server, kubelets, device trees, load. For the demo, tests and scale."""
