"""What the size configs in configs/ share: corpora, the two kinds of Focus, and one recipe for each family.

A config names its size and what the size decides (learning rate, tokens, microbatches); everything else is here.
"""

import dataclasses
import math

from focus_jax.config import (
    Checkpoint,
    Config,
    Data,
    Evaluation,
    Focus,
    Mesh,
    Model,
    Optimizer,
    Training,
    gpt2,
    llama,
)

RECOMMENDED = Focus(groups=8, top_k=2, window=128)
"""This project's: the pattern that is trained is the pattern that runs, a query reads two of eight groups, so a quarter
of the distant pairs, and the router learns from probe rows."""

PUBLISHED = Focus(
    groups=4,
    top_k=2,
    window=128,
    training="soft",
    scores="dot",
    score_std=1.0,
    balance="sinkhorn",
    gate="sigmoid",
    membership="shared",
)
"""As arXiv 2604.03260 trains from scratch, K = 4; NOT causal, so evaluation.allow_noncausal has to be set. The slope of
the gate and the initial centroids are not published."""


def c4(*, tokenizer: str, store: str) -> Data:
    """English C4, from files that are ready to download (README, "C4")."""
    return _prepared(dataset="c4_files", text_field="text", tokenizer=tokenizer, store=store)


def pg19(*, tokenizer: str, store: str) -> Data:
    """Whole books (README, "PG-19"): for long sequences."""
    return _prepared(dataset="pg19", text_field="book_text", tokenizer=tokenizer, store=store)


def _prepared(*, dataset: str, text_field: str, tokenizer: str, store: str) -> Data:
    """A data set of tensorflow-datasets that has a validation split."""
    return Data(
        source="tfds",
        dataset=dataset,
        dataset_folder="DATASETS",
        text_field=text_field,
        validation_split="validation",
        tokenizer=tokenizer,
        store=store,
    )


def gpt2_run(
    name: str,
    *,
    width: int,
    layers: int,
    heads: int,
    peak_lr: float,
    batch_size: int,
    tokens: float,
    microbatches: int,
    remat: str = "none",
) -> Config:
    """GPT-2 on C4, 1,024 tokens a sequence, as nanoGPT and llm.c reproduce it: AdamW (0.9, 0.95), weight decay 0.1,
    clipping at 1, 700 steps of warm-up, cosine to 0. Learning rates and batches of larger sizes are those of GPT-3
    (arXiv 2005.14165, table 2.1)."""
    return _run(
        name,
        model=gpt2(vocab_size=50257, width=width, layers=layers, heads=heads),
        data=c4(tokenizer="gpt2", store="stores/c4-gpt2"),
        training=_training(tokens, batch_size, 1024, microbatches, remat),
        optimizer=Optimizer(peak_lr=peak_lr, warmup_steps=700, final_lr_fraction=0.0),
        mesh=Mesh(data=-1),
    )


def llama_run(
    name: str,
    *,
    width: int,
    layers: int,
    heads: int,
    kv_heads: int,
    mlp_width: int,
    peak_lr: float,
    batch_size: int,
    tokens: float,
    warmup_steps: int,
    microbatches: int,
) -> Config:
    """Llama on C4 with a tokenizer of 32,000 tokens trained on it, 2,048 tokens a sequence, fully sharded: AdamW
    (0.9, 0.95), weight decay 0.1, clipping at 1, cosine to a tenth (arXiv 2302.13971, section 2.3)."""
    return _run(
        name,
        model=llama(vocab_size=32000, width=width, layers=layers, heads=heads, kv_heads=kv_heads, mlp_width=mlp_width),
        data=c4(tokenizer="trained", store="stores/c4-32000"),
        training=_training(tokens, batch_size, 2048, microbatches, "attention"),
        optimizer=Optimizer(peak_lr=peak_lr, warmup_steps=warmup_steps),
        mesh=Mesh(data=1, fsdp=-1),
    )


def llama_7b_run(name: str, *, kv_heads: int = 32, mlp_width: int = 11008) -> Config:
    """7B for the paper's 2B tokens; what else it does is not published."""
    return llama_run(
        name,
        width=4096,
        layers=32,
        heads=32,
        kv_heads=kv_heads,
        mlp_width=mlp_width,
        peak_lr=3e-4,
        batch_size=256,
        tokens=2e9,
        warmup_steps=200,
        microbatches=2,
    )


def _training(tokens: float, batch_size: int, sequence_length: int, microbatches: int, remat: str) -> Training:
    return Training(
        steps=math.ceil(tokens / (batch_size * sequence_length)),
        batch_size=batch_size,
        sequence_length=sequence_length,
        microbatches=microbatches,
        loss_chunks=8,
        remat=remat,  # type: ignore[arg-type]
        # Where everything is kept, a loop would keep more than the layers apart.
        scan_layers=remat != "none",
    )


def _run(name: str, *, model: Model, data: Data, training: Training, optimizer: Optimizer, mesh: Mesh) -> Config:
    return Config(
        run=f"runs/{name}",
        model=dataclasses.replace(model, compute_dtype="bfloat16"),
        attention=RECOMMENDED,
        data=data,
        training=training,
        optimizer=optimizer,
        mesh=mesh,
        evaluation=Evaluation(sequences=256, batch_size=32, top_k=(1, 2)),
        checkpoint=Checkpoint(every=1000),
    )
