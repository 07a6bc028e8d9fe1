"""Stands between the kubelet and the devices of one node: one ledger, the kubelet's contracts, fencing."""
