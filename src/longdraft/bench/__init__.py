"""Benchmarks: every number is stored in a record with its origin, and every table is made from
records alone.
"""
