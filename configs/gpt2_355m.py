"""GPT-2 355M with the recommended Focus beside its dense twin, at 7.1B tokens of C4.

Question   Does the difference between the twins move with size? 20 tokens per parameter (arXiv 2203.15556).
Expected   Open; compare with 124M and 774M.
Data       C4, 45 files of it (README, "C4"); python -m focus_jax.data.prepare --config configs/gpt2_355m.py
Memory     45 GiB on each of eight H200s (python -m focus_jax.plan).
Cost       About 22 H200 hours for both twins at 40 % utilisation, evaluation apart.
Command    python train.py --config configs/gpt2_355m.py
           That is for the eight H200s of a host; on one add --training.microbatches 8. The mesh takes what is there.
"""

from focus_jax.config import Config
from focus_jax.recipes import gpt2_run


def get_config() -> Config:
    return gpt2_run(
        "gpt2_355m",
        width=1024,
        layers=24,
        heads=16,
        peak_lr=3e-4,
        batch_size=512,
        tokens=7.1e9,
        microbatches=1,
        remat="dots",
    )
