"""A small Kubernetes API server in a process, with the controllers that make its objects live.

`server` speaks HTTP, `store` keeps the objects and their revisions, the other modules are one rule of the
real API server each: patches, selectors, admission, eviction. `controllers` turns Deployments and Jobs into
pods, places them and counts disruption budgets.
"""
