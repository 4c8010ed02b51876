from __future__ import annotations

import itertools
import sys

import pytest

from concurrent_loader.storage.errors import AccessDenied, ConfigurationError
from concurrent_loader.storage.stores.aws.botocore_chain import chain_settings
from concurrent_loader.storage.stores.aws.credential_provider import CredentialProvider
from concurrent_loader.storage.stores.aws.credentials import S3Credentials
from concurrent_loader.storage.stores.aws.settings import AwsSettings
from concurrent_loader.storage.stores.options import S3Options


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch, tmp_path):
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE", "REGION", "DEFAULT_REGION"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    for name in ("ENDPOINT_URL", "ENDPOINT_URL_S3", "CA_BUNDLE"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def test_nothing_said():
    assert AwsSettings.resolve(S3Options(), url="s3://b") == AwsSettings(None, None, None)


def test_options_before_environment_before_files(monkeypatch, tmp_path):
    (tmp_path / "config").write_text(
        "[default]\nregion = from-file\n[profile p]\nregion = of-p\nendpoint_url = http://of-p\nca_bundle = /of-p\n"
    )
    assert AwsSettings.resolve(S3Options(), url="").region == "from-file"
    assert AwsSettings.resolve(S3Options(profile="p"), url="") == AwsSettings("http://of-p", "of-p", "/of-p")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "from-default-region")
    assert AwsSettings.resolve(S3Options(), url="").region == "from-default-region"
    monkeypatch.setenv("AWS_REGION", "from-region")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://from-environment")
    assert AwsSettings.resolve(S3Options(), url="") == AwsSettings("http://from-environment", "from-region", None)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://for-s3")
    assert AwsSettings.resolve(S3Options(), url="").endpoint_url == "http://for-s3"
    given = S3Options(region="given", endpoint_url="http://given")
    assert AwsSettings.resolve(given, url="") == AwsSettings("http://given", "given", None)


def test_certificates(monkeypatch, tmp_path):
    AwsSettings.resolve(S3Options(), url="").check_ca_bundle(url="")
    bundle = tmp_path / "bundle.pem"
    monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
    with pytest.raises(ConfigurationError, match=r"AWS_CA_BUNDLE.*bundle\.pem: No such file"):
        AwsSettings.resolve(S3Options(), url="").check_ca_bundle(url="")
    bundle.write_bytes(b"certificates")
    AwsSettings.resolve(S3Options(), url="").check_ca_bundle(url="")


def test_explicit_keys(monkeypatch):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "somebody else's")
    keys = CredentialProvider(S3Options(access_key_id="id", secret_access_key="secret"), url="").get().keys
    assert keys == S3Credentials("id", "secret")


def test_keys_of_the_environment(monkeypatch):
    for name, value in (("ACCESS_KEY_ID", "id"), ("SECRET_ACCESS_KEY", "secret"), ("SESSION_TOKEN", "token")):
        monkeypatch.setenv(f"AWS_{name}", value)
    keys = CredentialProvider(S3Options(), url="").get().keys
    assert keys == S3Credentials("id", "secret", "token")


@pytest.mark.processes
def test_expiring_keys_are_asked_for_again(tmp_path):
    script = tmp_path / "keys.py"
    script.write_text(
        "import json; print(json.dumps({'Version': 1, 'AccessKeyId': 'id', 'SecretAccessKey': 's', 'SessionToken': 't',"
        "'Expiration': '2099-01-01T00:00:00Z'}))"
    )
    (tmp_path / "config").write_text(f"[profile p]\ncredential_process = {sys.executable} {script}\n")
    keys = CredentialProvider(S3Options(profile="p"), url="").get().keys
    assert keys.session_token == "t"
    assert keys.expires_at is not None


def test_no_keys_anywhere():
    provider = CredentialProvider(S3Options(), url="s3://b")
    with pytest.raises(AccessDenied, match="credentials"):
        provider.get()


def test_no_such_profile():
    with pytest.raises(ConfigurationError, match="profile"):
        AwsSettings.resolve(S3Options(profile="nobody"), url="s3://b")


@pytest.mark.parametrize("endpoint_url", [None, "http://given"])
@pytest.mark.parametrize("region", [None, "given"])
def test_without_files_the_environment_says_what_botocore_would(monkeypatch, region, endpoint_url):
    names = ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE")
    options = S3Options(region=region, endpoint_url=endpoint_url)
    # Each setting has variables of its own: all values of one pair, beside one of each value of the others.
    pairs = list(itertools.product((None, "", "said"), repeat=2))
    rows = [
        (*one, *other, ca) for one, other, ca in zip(pairs, pairs[4:] + pairs[:4], [None, "", "said"] * 3, strict=True)
    ]
    for values in rows:
        with monkeypatch.context() as surroundings:
            for name, value in zip(names, values, strict=True):
                if value is not None:
                    prefix = "http://" if "ENDPOINT" in name else ""
                    surroundings.setenv(name, f"{prefix}{value}-{name}" if value else "")
            settings = AwsSettings.resolve(options, url="")
            assert (settings.endpoint_url, settings.region, settings.ca_bundle) == chain_settings(options, url="")


@pytest.mark.parametrize("by_file", [True, False])
def test_what_environment_and_files_say_is_checked_as_options_are(monkeypatch, tmp_path, by_file):
    if by_file:
        (tmp_path / "config").write_text("[default]\nregion = r\n")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:secret-of-endpoint@host:9000")
    with pytest.raises(ConfigurationError, match=r"AWS_ENDPOINT_URL.*must not hold credentials") as caught:
        AwsSettings.resolve(S3Options(), url="s3://b")
    assert "secret-of-endpoint" not in str(caught.value)
    assert "http://***@host:9000" in str(caught.value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://host")
    monkeypatch.setenv("AWS_REGION", "us-east-1\n")
    with pytest.raises(ConfigurationError, match="white space"):
        AwsSettings.resolve(S3Options(), url="s3://b")


def test_keys_of_the_environment_that_no_request_can_carry(monkeypatch):
    for name, value in (("ACCESS_KEY_ID", "id"), ("SECRET_ACCESS_KEY", "secret"), ("SESSION_TOKEN", "my-token\n")):
        monkeypatch.setenv(f"AWS_{name}", value)
    with pytest.raises(ConfigurationError, match=r"session_token from the AWS chain.*newline") as caught:
        CredentialProvider(S3Options(), url="").get()
    assert "my-token" not in str(caught.value)
