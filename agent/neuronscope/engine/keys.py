"""The user's key of checksums and hashes: without it nobody can test a guess about a text.

The id tells two recordings with the same key from two with different ones, and nothing about the key itself,
which must be long enough that it cannot be guessed.
"""

from __future__ import annotations

from hashlib import blake2b


def key_of(secret: str) -> bytes:
    """The key that a secret text stands for; empty for none."""
    return blake2b(secret.encode(), digest_size=32, person=b"neuronscope key").digest() if secret else b""


def key_id(key: bytes) -> str:
    """Eight hexadecimal digits that tell keys apart; empty for none."""
    return blake2b(b"", digest_size=4, key=key, person=b"neuronscope id").hexdigest() if key else ""
