"""Block formats of GGUF in numpy: decode, encode and convert to a canonical form."""
