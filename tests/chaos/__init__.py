"""Real processes, broken on purpose; a package so that its cluster ends with its last test."""
