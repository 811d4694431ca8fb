"""Who may call the worker: the addresses that it listens on, and bearer tokens with roles (docs/security.md)."""
import hashlib
import hmac
import ipaddress
import os
import stat
from typing import Dict, List, Optional, Tuple

import grpc

from . import wire

# As the table of docs/security.md has them.
MAY_CALL = {"Describe": ("trainer", "rollouter"), "ListTasks": ("trainer",), "Score": ("rollouter",),
            "Play": ("rollouter",)}
_ROLES = ("trainer", "rollouter", "synchronizer", "admin", "viewer", "client", "environment")
_LEAST, _MOST = 32, 1024  # bytes of a token


def check_address(address: str, insecure_bind: bool, has_tls: bool = False) -> None:
    """Ends the process if others than this host's could reach a port that is plaintext."""
    if address.startswith("unix:") or insecure_bind or has_tls:
        return
    host = address.rpartition(":")[0].strip("[]")
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise SystemExit(f"refusing to listen on {address}: the worker's port is plaintext. Name unix:PATH or a loopback "
                         "address such as 127.0.0.1:7080, give --tls-cert, --tls-key and --tls-ca, or allow it with "
                         "--insecure-bind if the network is trusted")


class Certificates:
    """This worker's certificate and key, and the authorities that callers' certificates must come from: files that are
    read again for each connection, when they have changed. What cannot be read is said, and what was read stays."""

    def __init__(self, cert: str, key: str, ca: str, trust_domain: str):
        if not (cert and key and ca):
            raise SystemExit("--tls-cert, --tls-key and --tls-ca belong together")
        self._cert, self._key, self._ca = cert, key, ca
        self._prefix = f"spiffe://{trust_domain}/role/"
        self._seen = self._states()
        self._configuration = self._read()

    def credentials(self):
        """Credentials of the port; every caller must show a certificate."""
        return grpc.dynamic_ssl_server_credentials(self._configuration, self._fetch, require_client_authentication=True)

    def role(self, context) -> Optional[str]:
        """The caller's role, from the only URI name of its certificate; None if it has none."""
        uris = [uri.decode("utf-8", "replace") for uri in context.auth_context().get("peer_uri", ())]
        if len(uris) != 1 or not uris[0].startswith(self._prefix):
            return None
        role = uris[0][len(self._prefix):]
        return role if role in _ROLES else None

    def _states(self):
        try:
            return [(state.st_mtime_ns, state.st_ino, state.st_size)
                    for state in map(os.stat, (self._cert, self._key, self._ca))]
        except OSError:
            return None

    def _fetch(self):
        states = self._states()
        if states == self._seen:
            return None  # as before
        try:
            self._configuration = self._read()
        except SystemExit as error:
            print(f"syncopate-worker: {error}; the certificate that was read before stays in use", flush=True)
            return None
        self._seen = states
        return self._configuration

    def _read(self):
        contents = []
        for path in (self._cert, self._key, self._ca):
            try:
                with open(path, "rb") as file:
                    mode = os.fstat(file.fileno()).st_mode
                    contents.append(file.read())
            except OSError as error:
                raise SystemExit(f"{path}: cannot be read: {error}") from None
            if path == self._key and mode & (stat.S_IRWXO | stat.S_IWGRP):
                raise SystemExit(f"{path}: may be read or changed by others; run chmod 0400 on it")
        cert, key, ca = contents
        return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=ca)


class Tokens:
    """The lines "<role> <token>" of a file, read again when it changes. What cannot be used is said and not taken: what
    was read before stays."""

    def __init__(self, path: str):
        self._path = path
        self._seen = self._state()
        self._digests = self._read()

    def role(self, shown: str) -> Optional[str]:
        """Of a token that a caller shows; takes the same time whichever it is."""
        self._reload()
        digest, found = hashlib.sha256(shown.encode("utf-8", "replace")).digest(), None
        for role, known in self._digests:
            if hmac.compare_digest(digest, known):
                found = role
        return found

    def _state(self):
        try:
            state = os.stat(self._path)
        except OSError:
            return None
        return state.st_mtime_ns, state.st_ino, state.st_size

    def _reload(self) -> None:
        state = self._state()
        if state == self._seen:
            return
        self._seen = state
        try:
            self._digests = self._read()
        except SystemExit as error:
            print(f"syncopate-worker: {error}; the tokens that were read before stay in use", flush=True)

    def _read(self) -> List[Tuple[str, bytes]]:
        try:
            with open(self._path, encoding="utf-8") as file:
                mode = os.fstat(file.fileno()).st_mode
                lines = file.read().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SystemExit(f"{self._path}: cannot be read: {error}") from None
        if not stat.S_ISREG(mode) or mode & (stat.S_IRWXO | stat.S_IWGRP):
            raise SystemExit(f"{self._path}: may be read or changed by others; run chmod 0400 on it")
        digests = []
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) != 2 or words[0] not in _ROLES or not _LEAST <= len(words[1]) <= _MOST:
                raise SystemExit(f"{self._path}: line {number} is not '<role> <token>' with a role of docs/security.md "
                                 f"and a token of {_LEAST} to {_MOST} bytes")
            digests.append((words[0], hashlib.sha256(words[1].encode()).digest()))
        if not digests:
            raise SystemExit(f"{self._path}: there is no token in it")
        return digests


class Guard:
    """Asks each call for the certificate or the token of a role that may make it; without either it asks nothing."""

    def __init__(self, tokens: Optional[Tokens], certificates: Optional[Certificates] = None):
        self._tokens, self._certificates = tokens, certificates

    async def check(self, method: str, context) -> None:
        if self._certificates is not None:
            role = self._certificates.role(context)
            if role is None:
                await self._refuse(context, grpc.StatusCode.PERMISSION_DENIED, "NO_ROLE",
                                   "the certificate gives no role: it needs one URI name spiffe://.../role/<role>")
            return await self._check_role(role, method, context)
        if self._tokens is None:
            return
        shown: Dict[str, str] = {key: value for key, value in context.invocation_metadata()}
        scheme, _, token = shown.get("authorization", "").partition(" ")
        if not token:
            await self._refuse(context, grpc.StatusCode.UNAUTHENTICATED, "NO_CREDENTIALS", "a bearer token is needed")
        role = self._tokens.role(token) if scheme.lower() == "bearer" else None
        if role is None:
            await self._refuse(context, grpc.StatusCode.UNAUTHENTICATED, "BAD_TOKEN", "the token is not known here")
        await self._check_role(role, method, context)

    async def _check_role(self, role: str, method: str, context) -> None:
        if role not in MAY_CALL[method]:
            await self._refuse(context, grpc.StatusCode.PERMISSION_DENIED, "NOT_ALLOWED",
                               f"the role {role} may not call /{wire.SERVICE}/{method}; {' and '.join(MAY_CALL[method])} may")

    def unary(self, method: str, function):
        async def guarded(request, context):
            await self.check(method, context)
            return await function(request, context)
        return guarded

    def stream(self, method: str, function):
        async def guarded(requests, context):
            await self.check(method, context)
            async for response in function(requests, context):
                yield response
        return guarded

    @staticmethod
    async def _refuse(context, code, reason: str, message: str) -> None:
        await context.abort(code, message, (("grpc-status-details-bin",
                                             wire.write_error(code.value[0], message, reason)),))
