"""Demo: is Focus, trained and read by its hard pattern, as good as its dense twin on real text?

Question   Perplexity of both models at every checkpoint on unseen files of the Python standard library.
Expected   Both fall together; one run of this size says little about either (README, "How to read the comparison").
Cost       About five minutes of training for both twins on two CPU cores, 1M tokens, 3.2M parameters.
Command    make demo, or: python train.py --config configs/demo.py
"""

from focus_jax.config import Checkpoint, Config, Data, Evaluation, Focus, Optimizer, Training, llama


def get_config() -> Config:
    return Config(
        run="runs/demo",
        model=llama(vocab_size=4096, width=192, layers=4, heads=6, kv_heads=3, mlp_width=512),
        attention=Focus(groups=4, top_k=2, window=64),
        data=Data(source="stdlib", tokenizer="trained", store="stores/stdlib-4096"),
        training=Training(steps=240, batch_size=8, sequence_length=512),
        optimizer=Optimizer(peak_lr=3e-3, warmup_steps=24),
        evaluation=Evaluation(sequences=64, top_k=(1, 2)),
        checkpoint=Checkpoint(every=48),
    )
