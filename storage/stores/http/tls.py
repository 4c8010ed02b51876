"""Makes the SSL context of ``https://`` connections."""

from __future__ import annotations

import ssl

from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["make_ssl_context"]


def make_ssl_context(
    *, verify: bool, ca_bundle: str | None = None, fallback_bundle: str | None = None
) -> ssl.SSLContext:
    """Makes the SSL context of a client; reads files.

    Args:
        verify: Whether to check the server's certificate.
        ca_bundle: Path of certificates to trust besides the system's, in PEM format.
        fallback_bundle: Path of certificates to trust if OpenSSL cannot find the system's.

    Raises:
        ConfigurationError: ``ca_bundle`` cannot be read, or holds no certificates.
    """
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    # Since Python 3.13 the default rejects certificates that the other clients and older versions accept.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if ca_bundle:
        try:
            context.load_verify_locations(cafile=ca_bundle)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise ConfigurationError("the certificate bundle cannot be read", got=ca_bundle) from error
    system = ssl.get_default_verify_paths()
    if fallback_bundle is not None and not any((system.cafile, system.capath)):
        context.load_verify_locations(cafile=fallback_bundle)
    return context
