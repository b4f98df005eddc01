"""Experiments that train many models and tabulate. Each finished run is one row of a results file; rows that are there
are not run again."""
