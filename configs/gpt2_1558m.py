"""GPT-2 1.5B with the recommended Focus beside its dense twin, at 31B tokens of C4.

Question   Does the difference between the twins move with size? 20 tokens per parameter (arXiv 2203.15556).
Expected   Open; compare with 774M.
Data       C4, 185 files of it (README, "C4"); python -m focus_jax.data.prepare --config configs/gpt2_1558m.py
Memory     74 GiB on each of eight H200s (python -m focus_jax.plan).
Cost       About 420 H200 hours for both twins at 40 % utilisation, evaluation apart.
Command    python train.py --config configs/gpt2_1558m.py
           That is for the eight H200s of a host; on one add --training.microbatches 16. The mesh takes what is there.
"""

from focus_jax.config import Config
from focus_jax.recipes import gpt2_run


def get_config() -> Config:
    return gpt2_run(
        "gpt2_1558m",
        width=1600,
        layers=48,
        heads=25,
        peak_lr=2e-4,
        batch_size=1024,
        tokens=31e9,
        microbatches=2,
        remat="attention",
    )
