"""Plays public request traces against a model of vLLM workers, with the product's own core choosing the worker."""
