"""GPT-2 774M with the recommended Focus beside its dense twin, at 15.5B tokens of C4.

Question   Does the difference between the twins move with size? 20 tokens per parameter (arXiv 2203.15556).
Expected   Open; compare with 355M and 1.5B.
Data       C4, 95 files of it (README, "C4"); python -m focus_jax.data.prepare --config configs/gpt2_774m.py
Memory     38 GiB on each of eight H200s (python -m focus_jax.plan).
Cost       About 105 H200 hours for both twins at 40 % utilisation, evaluation apart.
Command    python train.py --config configs/gpt2_774m.py
           That is for the eight H200s of a host; on one add --training.microbatches 8. The mesh takes what is there.
"""

from focus_jax.config import Config
from focus_jax.recipes import gpt2_run


def get_config() -> Config:
    return gpt2_run(
        "gpt2_774m",
        width=1280,
        layers=36,
        heads=20,
        peak_lr=2.5e-4,
        batch_size=512,
        tokens=15.5e9,
        microbatches=1,
        remat="attention",
    )
