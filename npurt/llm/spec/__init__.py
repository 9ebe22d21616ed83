"""Speculative decoding: guess some tokens cheaply, check them all in one pass of the model."""
