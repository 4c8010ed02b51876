"""Keeps obstore from following redirects to another server, with the one means that it offers: its HTTP proxy.

obstore (reqwest below it) follows redirects, sends the session token along, and has no option against it. So every
request that does not go to the store's own endpoint is sent to a proxy that leads nowhere:

- ``http://`` endpoint: the endpoint is the proxy of all requests. Every connection goes there and nowhere else. A
  request's first line then has the whole URL, which every HTTP/1.1 server must accept (RFC 9112, 3.2.2).
- ``https://`` endpoint: the proxy is an address that no connection reaches, and the endpoint's host bypasses it. A
  redirect to another port of the same host, under a valid certificate of that host, is the exception that remains.
"""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Iterable
from urllib.parse import urlsplit

from concurrent_loader.storage.stores.options import AzureOptions, CloudOptions, GoogleOptions

__all__ = ["NOWHERE", "credential_hosts", "environment_proxy", "redirect_guard"]

# TCP has no broadcast: the system refuses the connection at once, whatever the network.
NOWHERE = "255.255.255.255:9"
_METADATA = "169.254.169.254"
# A name stands for its subdomains, too.
_GOOGLE = (
    ["googleapis.com", "metadata.google.internal", _METADATA],
    ("GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP"),
)
_AZURE = (
    [
        "login.microsoftonline.com",
        "login.microsoftonline.us",
        "login.microsoftonline.de",
        "login.chinacloudapi.cn",
        _METADATA,
    ],
    (
        "AZURE_STORAGE_AUTHORITY_HOST",
        "AZURE_AUTHORITY_HOST",
        "IDENTITY_ENDPOINT",
        "MSI_ENDPOINT",
        "AZURE_IDENTITY_ENDPOINT",
        "AZURE_MSI_ENDPOINT",
        "AZURE_STORAGE_ENDPOINT",
        "AZURE_ENDPOINT",
    ),
)


def environment_proxy(endpoint_url: str) -> str | None:
    """Returns the proxy that the environment (``HTTPS_PROXY``, ``NO_PROXY`` and the like) names for an endpoint."""
    parts = urlsplit(endpoint_url)
    proxies = urllib.request.getproxies_environment()
    # As in CGI programs, where a client could set it by its header "Proxy".
    if parts.scheme == "http" and "REQUEST_METHOD" in os.environ:
        proxies.pop("http", None)
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    bypass = urllib.request.proxy_bypass_environment  # type: ignore[attr-defined]  # documented as proxy_bypass only
    return None if proxy is None or bypass(parts.hostname or "", proxies) else proxy


def redirect_guard(endpoint_url: str, *, others: Iterable[str] = ()) -> dict[str, str]:
    """Returns obstore's client options that keep requests at an endpoint.

    Args:
        endpoint_url: ``http://`` or ``https://`` URL that the store's requests go to.
        others: Hosts from which the client gets its credentials.
    """
    parts = urlsplit(endpoint_url)
    hosts = [*others]
    if parts.scheme == "http":
        proxy = f"http://{parts.netloc}"
    else:
        proxy = f"http://{NOWHERE}"
        hosts.append(parts.hostname or "")
    return {"proxy_url": proxy, **({"proxy_excludes": ",".join(hosts)} if hosts else {})}


def credential_hosts(options: CloudOptions) -> list[str]:
    """Returns the hosts from which obstore itself gets credentials."""
    if not isinstance(options, GoogleOptions | AzureOptions):
        return []
    hosts, variables = _GOOGLE if isinstance(options, GoogleOptions) else _AZURE
    named = (os.environ.get(variable, "") for variable in variables)
    return [*hosts, *(host for text in named if (host := urlsplit(text if "//" in text else f"//{text}").hostname))]
