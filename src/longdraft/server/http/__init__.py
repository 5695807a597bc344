"""The parts of a server that every request passes: connections, keys, sizes, errors, the log."""
