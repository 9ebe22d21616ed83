"""Make GGUF files: of a folder of safetensors, and of other GGUF files.

May import the rooms `file`, `text` and `arch`.
Begin with `folder` and `requantise`.
"""
