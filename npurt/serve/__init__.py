"""`npurt serve`: HTTP interfaces of language models.

The *front* speaks HTTP: it renders templates, tokenizes, parses, and knows every token that it
sent.  An *engine* is a child process that holds the device.  `engine.protocol` is what they say to
each other.
"""
