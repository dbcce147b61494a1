"""qkv: the whole Transformer on the machine you have. Query: what I look for. Key: what I offer. Value: what I hold."""

__version__ = "0.1.0"
