"""Takes a checked request to its answer: decoding, and replies as they come."""
