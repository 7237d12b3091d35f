"""Makes nltk.txt: probabilities of interpolated Kneser–Ney by another program. Needs `pip install nltk`.

NLTK has one discount for all counts, none for single tokens, and no even share. The first line is the text, the others are a
history, a token, and its probability.
"""

import random
from itertools import product

from nltk.lm import KneserNeyInterpolated
from nltk.util import everygrams

ORDER, DISCOUNT, TOKENS = 3, 0.75, "abcde"

random.seed(7)
text = random.choices(TOKENS, weights=[5, 4, 3, 2, 1], k=60)
# NLTK leaves out that the text's first grams come after no token: they come again here, after one.
text += ["a", *text[:ORDER]]
model = KneserNeyInterpolated(ORDER, discount=DISCOUNT)
model.fit([list(everygrams(text, max_len=ORDER))], vocabulary_text=TOKENS)

with open("nltk.txt", "w") as file:
    print("".join(text), file=file)
    for length in range(ORDER):
        for *history, token in product(TOKENS, repeat=length + 1):
            probability = model.unmasked_score(token, tuple(history))
            print("".join(history) or "-", token, repr(probability), file=file)
