"""Write GGUF files from checkpoint folders or from other GGUF files.

`checkpoint` reads the weights and settings of a folder; `tokenizer` reads its tokenizer; `types`,
`mixture` and `importance` choose the type of each tensor.  May import the subpackages `file`,
`text` and `arch`.  Begin with `folder` and `requantise`.
"""
