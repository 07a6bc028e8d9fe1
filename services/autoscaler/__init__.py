"""Carries out scale requests without fighting anybody: a bounded lease on an HPA's floor, else `scale`."""
