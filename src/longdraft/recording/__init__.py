"""Recordings of decoding, and records of measurements with their origin."""
