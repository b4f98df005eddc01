"""Perplexity of a checkpoint, twin comparison, group statistics, causality check, report."""
