"""A Llama-style model of 3.0B parameters (Llama 3.2 3B's blocks) with the recommended Focus beside its dense twin.

Question   Does the difference between the twins move with size? 60B tokens, 20 per parameter (arXiv 2203.15556).
Expected   Open; compare with GPT-2 1.5B and with 7B.
Data       C4, 400 files of it (README, "C4"); python -m focus_jax.data.prepare --config configs/llama_3b.py
Memory     28 GiB on each of eight H200s (python -m focus_jax.plan).
Cost       About 1,540 H200 hours for both twins at 40 % utilisation, evaluation apart.
Command    python train.py --config configs/llama_3b.py
           That is for the eight H200s of a host; on one add --training.microbatches 32. The mesh takes what is there.
"""

from focus_jax.config import Config
from focus_jax.recipes import llama_run


def get_config() -> Config:
    return llama_run(
        "llama_3b",
        width=3072,
        layers=28,
        heads=24,
        kv_heads=8,
        mlp_width=8192,
        peak_lr=3e-4,
        batch_size=256,
        tokens=60e9,
        warmup_steps=2000,
        microbatches=2,
    )
