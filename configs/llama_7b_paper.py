"""Llama 7B with Focus as published (arXiv 2604.03260): soft gates, K = 4, Sinkhorn over the sequence. NOT causal.

Question   Is the paper's 13.82 against 13.89 (perplexity, 2B tokens) there again?
Expected   Near equal; the figures are labelled, since Sinkhorn reads later tokens. Every pair is computed: no speedup.
Data       as configs/llama_7b.py
Memory     About 50 GiB on each of eight H200s, by shapes (python -m focus_jax.plan compiles it).
Cost       About 116 H200 hours for both twins at 40 % utilisation, evaluation apart.
Command    python train.py --config configs/llama_7b_paper.py
"""

import dataclasses

from focus_jax.config import Config
from focus_jax.recipes import PUBLISHED, llama_7b_run


def get_config() -> Config:
    run = llama_7b_run("llama_7b_paper")
    evaluation = dataclasses.replace(run.evaluation, allow_noncausal=True)
    return dataclasses.replace(run, attention=PUBLISHED, evaluation=evaluation)
