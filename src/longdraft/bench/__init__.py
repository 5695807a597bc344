"""Measurements: every number is a record that says where it comes from, and every table is rebuilt from records."""
