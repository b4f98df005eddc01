"""Llama 7B with the recommended Focus beside its dense twin: the paper's run from scratch, 2B tokens, causal and hard.

Question   The paper reports 13.82 for Focus and 13.89 for dense attention (perplexity, one seed, in-sequence Sinkhorn).
           What is the difference where nothing sees the future and the pattern that is trained is the one that runs?
Expected   Open. 0.005 nats, as reported, is less than two seeds of one model differ by.
Data       C4, 15 files of it, for the paper's OpenWebText (README, "C4");
           python -m focus_jax.data.prepare --config configs/llama_7b.py
Memory     51 GiB on each of eight H200s (python -m focus_jax.plan).
Cost       About 114 H200 hours for both twins at 40 % utilisation, evaluation apart.
Command    python train.py --config configs/llama_7b.py
           That is for the eight H200s of a host, both twins in one process. On one H200 they have to be trained apart:
           --training.microbatches 32 --models focus, then --models dense with another --run, and eval.py --against.
           At 32,768 tokens: --training.sequence-length 32768 --training.batch-size 16 --evaluation.sequences 16
           --evaluation.batch-size 8, on books (focus_jax.recipes.pg19) where the length is to matter.
Beside it  configs/llama_7b_paper.py is Focus as published, on the same text, tokens and twin.
"""

from focus_jax.config import Config
from focus_jax.recipes import llama_7b_run


def get_config() -> Config:
    return llama_7b_run("llama_7b")
