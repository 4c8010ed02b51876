"""What the tests of the S3 stores share."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import botocore.session
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@pytest.fixture(scope="session")
def s3_client(s3_server):
    """A plain botocore client: what others put into a bucket, and see in it."""
    options = s3_server.storage_options()
    client = botocore.session.Session().create_client(
        "s3",
        endpoint_url=options["endpoint_url"],
        aws_access_key_id=options["access_key_id"],
        aws_secret_access_key=options["secret_access_key"],
        region_name=options["region"],
    )
    yield client
    client.close()


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory):
    """A private key and its self-signed certificate for 127.0.0.1, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "nobody")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    path.write_bytes(private + signed.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture(scope="session")
def tls_certificate(tls_files):
    """The certificate that `tls` shows, as PEM."""
    begin = "-----BEGIN CERTIFICATE-----"
    return begin + tls_files.read_text().partition(begin)[2]


@pytest.fixture(scope="session")
def tls(tls_files):
    """A server's TLS, with a certificate that nobody knows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls_files)
    return context
