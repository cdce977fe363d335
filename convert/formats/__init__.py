"""The formats of old checkpoints, and what several of them share.

A format is a module with a `FORMAT`: `allennlp`, `bilm_hdf5`, `hf_folder`, `many_langs`, `nlpl`,
`tensorflow`.
"""
