"""Makes the tokenizers next to this file, and what they make of a text. Needs `pip install tokenizers`."""

import json

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXT = """In the beginning was the word, and the word was long.
Naïve café owners don't count: 1, 22, 333! 🦀 Ωmega"""


def words():
    """Whole words, one of them with a number far from the others; texts are to be cut to 3 tokens and filled up to 8."""
    vocabulary = {"[UNK]": 0, "the": 1, "cat": 2, "dog": 3, "sat": 4, "on": 5, "mat": 9}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=8)
    return tokenizer


def pairs():
    """Pairs of bytes, as GPT-2 has them: any text can be made of its tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        show_progress=False,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([TEXT] * 2, trainer)
    return tokenizer


def letters():
    """Small letters without a token for what is unknown: other characters are left out."""
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz")}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


expected = {}
for make in [words, pairs, letters]:
    tokenizer = make()
    tokenizer.save(f"{make.__name__}.json")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    expected[make.__name__] = tokenizer.encode(TEXT, add_special_tokens=False).ids

with open("expected.txt", "w", encoding="utf-8") as file:
    for name, tokens in expected.items():
        print(name, *tokens, file=file)
with open("text.txt", "w", encoding="utf-8") as file:
    file.write(TEXT)
print(json.dumps(expected))
