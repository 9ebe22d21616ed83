"""Structured output: which tokens keep a text in a grammar.

`grammar` has what a caller may ask for, `constraint` which tokens may follow in one text.  The
package llguidance, which is optional, does the parsing; only `library` imports it.
"""
