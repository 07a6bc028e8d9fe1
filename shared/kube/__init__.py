"""The Kubernetes API as mediafleet uses it: read, watch, patch, evict, taint, record an Event.

`port` says what can be asked, `models` what comes back, `client` does it over kubernetes_asyncio.
"""
