"""Calls of functions in the text of a model: one file for each way in which models write them."""
