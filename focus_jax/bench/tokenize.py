"""How fast the prepare command tokenizes, beside the tokenizer library's own rate on the same text.

    python -m focus_jax.bench.tokenize [--tokenizer gpt2] [--megabytes 256] [--rounds 3]

The library gets texts that are in memory already, in batches, on every core. The command is the whole of
`python -m focus_jax.data.prepare` in processes of its own: starting, reading, cleaning, hashing, writing. The two take
turns; the text is the Python standard library's own sources, written again and again under other names. Without a
tokenizer named, it is a byte-level BPE of 8,192 tokens trained on that text beforehand.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from focus_jax import config
from focus_jax.data.files import stdlib_corpus
from focus_jax.data.tokenizer import GPT2Tokenizer, HuggingFaceTokenizer
from focus_jax.errors import UserError, exit_code

VOCABULARY = 8192
BATCH = 8 * 10**6
"""Bytes of text per call of the library."""

CONFIG = """
from focus_jax.config import Checkpoint, Config, Data, Dense, Optimizer, Training, gpt2


def get_config():
    return Config(
        run="run",
        models=("dense",),
        model=gpt2(vocab_size={vocab_size}, width=64, layers=1, heads=1),
        attention=Dense(),
        data=Data(source="text", files=("text/*",), tokenizer="{tokenizer}", store="store"),
        training=Training(steps=1, batch_size=1, sequence_length=64),
        optimizer=Optimizer(peak_lr=1e-3, warmup_steps=0),
        checkpoint=Checkpoint(every=1),
    )
"""


def main() -> int:
    options = _parse()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = _write_texts(folder / "text", options.megabytes * 10**6)
        encode = _prepare_tokenizer(options.tokenizer, texts, folder)
        size = sum(len(text.encode()) for text in texts) / 1e6
        print(f"{len(texts):,} documents, {size:.0f} MB, {os.cpu_count()} cores; MB/s by the clock")
        library, command = [], []
        for _ in range(options.rounds):
            library.append(size / _seconds(lambda: [encode(batch) for batch in _batches(texts)]))
            command.append(size / _seconds(lambda: _prepare(folder)))
            shutil.rmtree(folder / "store")
            print(f"library {library[-1]:.2f}   prepare {command[-1]:.2f}", flush=True)
    print(f"best of each: {max(library):.2f} and {max(command):.2f}, ratio {max(command) / max(library):.2f}")
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m focus_jax.bench.tokenize",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tokenizer", choices=("trained", "gpt2"), default="trained")
    parser.add_argument("--megabytes", type=int, default=256, help="of text")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def _write_texts(folder: Path, size: int) -> list[str]:
    folder.mkdir()
    sources = [document.text for part in stdlib_corpus(config.Data(store="")).train for document in part.documents()]
    texts: list[str] = []
    written = 0
    while written < size:
        text = sources[len(texts) % len(sources)]
        written += (folder / f"{len(texts):07d}").write_text(text, encoding="utf-8")
        texts.append(text)
    return texts


def _prepare_tokenizer(kind: str, texts: list[str], folder: Path) -> Callable[[list[str]], object]:
    """Writes the config that names it; returns the library's own function for many texts."""
    if kind == "gpt2":
        import tiktoken

        GPT2Tokenizer.download()
        _write_config(folder, "gpt2", 50_257)
        encoding = tiktoken.get_encoding("gpt2")
        return lambda batch: encoding.encode_ordinary_batch(batch, num_threads=os.cpu_count() or 1)
    from tokenizers import Tokenizer

    trained = HuggingFaceTokenizer.train(dict.fromkeys(texts), VOCABULARY)
    trained.save(folder)
    _write_config(folder, "tokenizer.json", trained.record.vocab_size)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda batch: tokenizer.encode_batch_fast(batch, add_special_tokens=False)


def _write_config(folder: Path, tokenizer: str, vocab_size: int) -> None:
    (folder / "bench.py").write_text(CONFIG.format(tokenizer=tokenizer, vocab_size=vocab_size))


def _batches(texts: list[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    length = 0
    for text in texts:
        batch.append(text)
        length += len(text)
        if length >= BATCH:
            yield batch
            batch, length = [], 0
    yield batch


def _prepare(folder: Path) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "focus_jax.data.prepare", "--config", "bench.py"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise UserError(f"the prepare command failed: {done.stderr.splitlines()[-1]}")


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(exit_code(main))
