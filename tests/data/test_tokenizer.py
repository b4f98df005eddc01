"""Tokenizers: exact inverses, the same tokens cut or whole, an end of document that text cannot forge."""

import json
import random

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from focus_jax.data import tokenizer as module
from focus_jax.data.tokenizer import END_OF_TEXT, ByteTokenizer, GPT2Tokenizer, HuggingFaceTokenizer, lines, load
from focus_jax.errors import UserError

TEXT = "Ärger, naïve café — 日本語 👍🏽 \U0001f468‍\U0001f469‍\U0001f467 's 're\t x  y\n\n\n  z\r\n 12345\x00 end"


@pytest.fixture(scope="module")
def trained():
    return HuggingFaceTokenizer.train([TEXT * 3, "the cat sat on the mat, the cat's mat. " * 50], 300)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """GPT-2's pattern and policy on a vocabulary that needs no download: the bytes, and merges of the letters."""
    folder = tmp_path_factory.mktemp("gpt2")
    tokens = [bytes([b]) for b in range(256)] + [bytes([a, b]) for a in range(256) for b in range(256)][: 50_256 - 256]
    (folder / GPT2Tokenizer.FILE).write_bytes(module._tiktoken_file({token: i for i, token in enumerate(tokens)}))
    return GPT2Tokenizer.load(folder)


@pytest.mark.parametrize("name", ["bytes", "trained", "gpt2"])
class TestEveryTokenizer:
    @pytest.fixture
    def tokenizer(self, name, trained, gpt2):
        return {"bytes": ByteTokenizer(), "trained": trained, "gpt2": gpt2}[name]

    def test_decode_undoes_encode(self, tokenizer):
        assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT

    def test_text_cannot_forge_the_end_of_a_document(self, tokenizer):
        text = f"before {END_OF_TEXT} after"
        assert tokenizer.record.eos not in tokenizer.encode(text)
        assert tokenizer.record.eos not in np.concatenate(tokenizer.encode_many([text]))
        assert tokenizer.decode([*tokenizer.encode("a"), tokenizer.record.eos]) == "a" + END_OF_TEXT

    def test_cutting_a_text_does_not_change_its_tokens(self, tokenizer, monkeypatch):
        monkeypatch.setattr(module, "PIECE", 3)
        draw = random.Random(0)
        for _ in range(300):
            text = "".join(
                draw.choice(["a", "bc", " ", "  ", "\n", "\n\n", "\t", ".", "'s", "7", "é"]) for _ in range(60)
            )
            cut = list(tokenizer.cut(text))
            assert "".join(cut) == text
            assert np.concatenate(tokenizer.encode_many(cut)).tolist() == tokenizer.encode(text)

    def test_saved_and_loaded_it_is_the_same(self, tokenizer, tmp_path):
        tokenizer.save(tmp_path)
        again = load(tokenizer.record, tmp_path)
        assert again.record == tokenizer.record
        assert again.encode(TEXT) == tokenizer.encode(TEXT)


def test_long_texts_are_cut(monkeypatch):
    monkeypatch.setattr(module, "PIECE", 10)
    assert list(lines("twelve chars\nand\na line\n\nx")) == ["twelve chars\n", "and\na line\n\nx"]


def test_training_is_reproducible(trained):
    again = HuggingFaceTokenizer.train([TEXT * 3, "the cat sat on the mat, the cat's mat. " * 50], 300)
    assert again.record == trained.record


def write(tokenizer, tmp_path, config=None):
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return str(path)


def byte_level(*special, **options):
    vocabulary = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, **options)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    return tokenizer


@pytest.mark.parametrize(
    ("special", "config", "named", "expected"),
    [
        (["</s>", "<s>"], None, "", "</s>"),
        (["</s>", "<|endoftext|>"], {"eos_token": "</s>"}, "", "</s>"),
        (["<end>"], {"eos_token": {"content": "<end>"}}, "", "<end>"),
        (["</s>", "<|endoftext|>"], {"eos_token": "</s>"}, "<|endoftext|>", "<|endoftext|>"),
    ],
)
def test_end_of_document_is_found(tmp_path, special, config, named, expected):
    path = write(byte_level(*special), tmp_path, config)
    record = HuggingFaceTokenizer.open(path, named).record
    assert record.eos_token == expected
    assert record.eos == Tokenizer.from_file(path).token_to_id(expected)


@pytest.mark.parametrize(
    ("special", "named", "message"),
    [
        (["<end>"], "", r"data\.eos_token: .*tokenizer\.json does not say which token.* none of .*; name the token"),
        (["</s>", "<eos>"], "", r"</s> and <eos> of .*; name the token"),
        (["</s>"], "<end>", r"data\.eos_token: .*tokenizer\.json has no token '<end>'"),
    ],
)
def test_end_of_document_is_asked_for_where_it_is_not_clear(tmp_path, special, named, message):
    with pytest.raises(UserError, match=message):
        HuggingFaceTokenizer.open(write(byte_level(*special), tmp_path), named)


def test_another_end_of_document_is_another_tokenizer(tmp_path):
    path = write(byte_level("</s>", "<eos>"), tmp_path)
    assert HuggingFaceTokenizer.open(path, "</s>").record.hash != HuggingFaceTokenizer.open(path, "<eos>").record.hash


def test_a_file_that_is_no_tokenizer(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"data\.tokenizer: .*tokenizer\.json is not a Hugging Face tokenizer\.json"):
        HuggingFaceTokenizer.open(str(tmp_path / "tokenizer.json"), "")


def test_truncation_and_padding_of_a_given_tokenizer_are_switched_off(tmp_path):
    tokenizer = byte_level("</s>")
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=100)
    opened = HuggingFaceTokenizer.open(write(tokenizer, tmp_path), "")
    assert opened.decode(opened.encode("sixteen letters!")) == "sixteen letters!"


def test_tokenizers_that_reach_over_line_ends_get_documents_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PIECE", 3)
    reaching = byte_level("</s>")
    reaching.normalizer = normalizers.Prepend("_")
    joined = byte_level("</s>", "d\na")
    for tokenizer in (reaching, joined, byte_level("</s>", use_regex=False)):
        opened = HuggingFaceTokenizer.open(write(tokenizer, tmp_path), "")
        assert list(opened.cut("abcd\nabcd\nabcd")) == ["abcd\nabcd\nabcd"]
    assert len(list(HuggingFaceTokenizer.open(write(byte_level("</s>"), tmp_path), "").cut("abcd\nabcd\nabcd"))) == 3


def test_gpt2_without_its_files_says_how_to_get_them(monkeypatch, tmp_path):
    import requests

    def no_network(*args, **kwargs):
        raise requests.ConnectionError("no network")

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(requests, "get", no_network)
    with pytest.raises(UserError, match=r"data\.tokenizer: tiktoken has no GPT-2 files .* TIKTOKEN_CACHE_DIR=DIR"):
        GPT2Tokenizer.download()


def test_gpt2_is_gpt2():
    """Where tiktoken's files are cached or can be fetched: published token numbers."""
    try:
        tokenizer = GPT2Tokenizer.download()
    except UserError as missing:
        pytest.skip(str(missing))
    assert tokenizer.encode("Hello world") == [15496, 995]
    assert (tokenizer.record.vocab_size, tokenizer.record.eos) == (50_257, 50_256)
    assert tokenizer.record.hash == "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"
