"""Tests of the benchmark's arithmetic and of the shape of what it prints."""
