"""Vectors of many sentences: batches, exact windows, a cache of layers, the choice of engine."""
