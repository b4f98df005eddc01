"""A 7B model with 8 key/value heads for its 32 query heads (Mistral 7B's shape), the recommended Focus and its twin.

Question   Does Focus differ from dense attention by as much when key/value heads are shared? 2B tokens.
Expected   Open; compare with configs/llama_7b.py.
Data       as configs/llama_7b.py
Memory     About 53 GiB on each of eight H200s, by shapes (python -m focus_jax.plan compiles it).
Cost       About 123 H200 hours for both twins at 40 % utilisation, evaluation apart.
Command    python train.py --config configs/llama_7b_gqa.py
           One H200 and 32,768 tokens as configs/llama_7b.py says.
"""

from focus_jax.config import Config
from focus_jax.recipes import llama_7b_run


def get_config() -> Config:
    return llama_7b_run("llama_7b_gqa", kv_heads=8, mlp_width=14336)
