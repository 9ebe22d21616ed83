"""Block formats of GGUF in numpy: decode, encode, canonical form.  Knows no device."""
