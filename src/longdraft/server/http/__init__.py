"""What every request passes: connections, keys, sizes, errors, the log."""
