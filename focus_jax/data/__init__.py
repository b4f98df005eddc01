"""Corpus → tokenizer → token store → batches."""
