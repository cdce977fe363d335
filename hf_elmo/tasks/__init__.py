"""The six systems by which ELMo was shown (Peters et al. 2018), and the bricks they share.

Bricks take `(batch, tokens, width)` and a mask, True at a row's words, which stand first in it:
padding is on the right. A row's result depends neither on its padding nor on the rest of the batch.
"""
