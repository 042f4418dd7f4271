"""The cluster's own certificate authority and the certificates of its parts, made with openssl."""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .process import run

DAYS = 365


@dataclass(frozen=True)
class Certificate:
    cert: Path
    key: Path


def openssl(*args: str | Path) -> None:
    run(["openssl", *args])


class Authority:
    """Signs for one cluster; every private key is readable by its owner only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ca = Certificate(folder / "ca.crt", folder / "ca.key")
        self.service_accounts = Certificate(folder / "service-accounts.pub", folder / "service-accounts.key")

    def create(self) -> None:
        self._key(self.ca.key)
        subject = ("-subj", "/CN=gemma-serving local cluster")
        usage = ("-addext", "keyUsage=critical,keyCertSign,digitalSignature")
        openssl("req", "-x509", "-new", "-key", self.ca.key, "-days", str(DAYS), *subject, *usage, "-out", self.ca.cert)
        self._key(self.service_accounts.key)
        openssl("pkey", "-in", self.service_accounts.key, "-pubout", "-out", self.service_accounts.cert)

    def issue(self, name: str, subject: str, addresses: Sequence[str] = ()) -> Certificate:
        """A certificate for a client, and for a server at the addresses ("DNS:name", "IP:1.2.3.4") where there are some."""
        made = Certificate(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        self._key(made.key)
        openssl("req", "-new", "-key", made.key, "-subj", subject, "-out", request)
        lines = ["extendedKeyUsage=clientAuth" + (",serverAuth" if addresses else "")]
        if addresses:
            lines.append("subjectAltName=" + ",".join(addresses))
        extensions.write_text("\n".join(lines) + "\n")
        signer = ("-CA", self.ca.cert, "-CAkey", self.ca.key, "-CAcreateserial")
        openssl("x509", "-req", "-in", request, *signer, "-days", str(DAYS), "-extfile", extensions, "-out", made.cert)
        request.unlink()
        extensions.unlink()
        return made

    def kubeconfig(self, path: Path, server: str, user: str, certificate: Certificate) -> Path:
        """One self-contained file, readable by its owner only."""
        path.touch(mode=0o600)
        path.write_text(json.dumps(kubeconfig(server, user, self.ca.cert.read_bytes(), certificate), indent=1) + "\n")
        return path

    def _key(self, path: Path) -> None:
        path.touch(mode=0o600)
        # Kubernetes signs service account tokens with RSA or P-256 keys; P-256 ones are made in no time
        openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", path)


def kubeconfig(server: str, user: str, ca: bytes, certificate: Certificate) -> dict[str, Any]:
    def text(data: bytes) -> str:
        return base64.b64encode(data).decode()

    credentials = {
        "client-certificate-data": text(certificate.cert.read_bytes()),
        "client-key-data": text(certificate.key.read_bytes()),
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "gemma-serving",
        "clusters": [{"name": "gemma-serving", "cluster": {"server": server, "certificate-authority-data": text(ca)}}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "gemma-serving", "context": {"cluster": "gemma-serving", "user": user}}],
    }
