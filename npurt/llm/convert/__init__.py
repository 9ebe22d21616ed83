"""Make GGUF files: of a folder of safetensors, and of other GGUF files.

`checkpoint` reads the weights and settings of a folder, `tokenizer` its tokenizer; `types`,
`mixture` and `importance` choose the type of each tensor.  May import the rooms `file`, `text` and
`arch`.  Begin with `folder` and `requantise`.
"""
