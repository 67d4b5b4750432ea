"""The client's side of SCRAM, written from RFC 5802 with nothing of the library."""

from __future__ import annotations

import base64
import hashlib
import hmac


class ScramClient:
    """One authentication by name and password."""

    def __init__(self, hash_name: str, name: str, password: str, nonce: str = "clientnonce") -> None:
        self.hash_name = hash_name
        self.password = password
        self.nonce = nonce
        self.bare = f"n={name.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self.header = "n,,"
        self.server_signature = b""

    def first(self) -> bytes:
        return (self.header + self.bare).encode()

    def _mac(self, key: bytes, text: bytes) -> bytes:
        return hmac.new(key, text, self.hash_name).digest()

    def final(self, challenge: bytes, repeated: str = "") -> bytes:
        """Return the last message, for the server's *challenge*, with *repeated* before its nonce."""
        parts = dict(part.split("=", 1) for part in challenge.decode().split(","))
        assert parts["r"].startswith(self.nonce), "the server's nonce does not continue ours"
        assert len(parts["r"]) > len(self.nonce) + 16, "the server's nonce can be guessed"
        salt, iterations = base64.b64decode(parts["s"]), int(parts["i"])
        salted = hashlib.pbkdf2_hmac(self.hash_name, self.password.encode(), salt, iterations)
        client_key = self._mac(salted, b"Client Key")
        stored_key = hashlib.new(self.hash_name, client_key).digest()
        binding = base64.b64encode(self.header.encode()).decode()
        without_proof = f"c={binding},r={repeated}{parts['r']}".encode()
        signed = self.bare.encode() + b"," + challenge + b"," + without_proof
        proof = bytes(a ^ b for a, b in zip(client_key, self._mac(stored_key, signed), strict=True))
        self.server_signature = self._mac(self._mac(salted, b"Server Key"), signed)
        return without_proof + b",p=" + base64.b64encode(proof)

    def check(self, last: bytes) -> None:
        """Check that the server knows the password too."""
        assert last == b"v=" + base64.b64encode(self.server_signature)
