"""GPT-2 124M with the recommended Focus beside its dense twin, at 10B tokens of C4.

Question   Does hard Focus reach its dense twin's loss, on the published recipe (nanoGPT, llm.c)?
Expected   Dense near llm.c's 3.28 nats on its own text; the difference is open, and needs seeds and the controls.
Data       C4, 60 files of it (README, "C4"); python -m focus_jax.data.prepare --config configs/gpt2_124m.py
Memory     44 GiB on each of eight H200s, 42 GiB on one (python -m focus_jax.plan).
Cost       About 11 H200 hours for both twins at 40 % utilisation, evaluation apart.
Command    python train.py --config configs/gpt2_124m.py
           That is for the eight H200s of a host; on one add --training.microbatches 8. The mesh takes what is there.
"""

from focus_jax.config import Config
from focus_jax.recipes import gpt2_run


def get_config() -> Config:
    return gpt2_run(
        "gpt2_124m",
        width=768,
        layers=12,
        heads=12,
        peak_lr=6e-4,
        batch_size=512,
        tokens=10e9,
        microbatches=1,
    )
