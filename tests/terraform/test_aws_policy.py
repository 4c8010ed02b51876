"""What the AWS module must never lose, read off its parsed HCL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

Body = dict[str, Any]

READ = {"s3:ListBucket", "s3:GetBucketLocation", "s3:GetObject", "s3express:CreateSession", "kms:Decrypt"}
WRITE = {
    "s3:PutObject",
    "s3:AbortMultipartUpload",
    "s3:ListMultipartUploadParts",
    "s3express:CreateSession",
    "kms:GenerateDataKey",
}


class Module:
    """A parsed folder: resources under ``type.name``, data sources under ``data.type.name``."""

    def __init__(self, parsed: dict[str, Any]) -> None:
        self.parts: dict[str, Body] = {}
        for prefix, kind in (("", "resource"), ("data.", "data")):
            for entry in parsed.get(kind, []):
                for type_name, named in entry.items():
                    for name, body in named.items():
                        self.parts[f"{prefix}{type_name}.{name}"] = flat(body)
        self.variables: dict[str, Body] = {
            name: flat(body) for entry in parsed["variable"] for name, body in entry.items()
        }
        self.outputs: dict[str, Body] = {name: flat(body) for entry in parsed["output"] for name, body in entry.items()}

    def __getitem__(self, address: str) -> Body:
        return self.parts[address]

    def of(self, type_name: str) -> dict[str, Body]:
        return {address: body for address, body in self.parts.items() if address.startswith(f"{type_name}.")}

    def statements(self, document: str) -> dict[str, Body]:
        body = self[f"data.aws_iam_policy_document.{document}"]
        dynamic = [entry["statement"]["content"][0] for entry in body.get("dynamic", [])]
        statements = [flat(statement) for statement in [*body.get("statement", []), *dynamic]]
        return {statement.get("sid", ""): statement for statement in statements}


def flat(body: Body) -> Body:
    """The parser puts every value into a list of its own; blocks stay lists of bodies."""

    def value(given: Any) -> Any:
        if isinstance(given, list) and len(given) == 1 and not isinstance(given[0], dict):
            return given[0]
        return given

    return {name: value(given) for name, given in body.items() if not name.startswith("__")}


def block(body: Body, *names: str) -> Body:
    for name in names:
        (body,) = body[name]
        body = flat(body)
    return body


@pytest.fixture(scope="module")
def aws(parsed: Callable[[Path], dict[str, Any]], terraform_folder: Path) -> Module:
    return Module(parsed(terraform_folder / "modules" / "aws"))


class TestBucket:
    def test_is_closed_to_the_public(self, aws: Module) -> None:
        closed = aws["aws_s3_bucket_public_access_block.data"]
        for name in ("block_public_acls", "block_public_policy", "ignore_public_acls", "restrict_public_buckets"):
            assert closed[name] is True
        assert block(aws["aws_s3_bucket_ownership_controls.data"], "rule")["object_ownership"] == "BucketOwnerEnforced"
        assert not aws.of("aws_s3_bucket_acl")

    def test_is_encrypted_and_versioned(self, aws: Module) -> None:
        rule = block(aws["aws_s3_bucket_server_side_encryption_configuration.data"], "rule")
        default = block(rule, "apply_server_side_encryption_by_default")
        assert default["sse_algorithm"] == '${var.kms_key_arn == None ? "AES256" : "aws:kms"}'
        assert default["kms_master_key_id"] == "${var.kms_key_arn}"
        assert block(aws["aws_s3_bucket_versioning.data"], "versioning_configuration")["status"] == "Enabled"

    def test_is_not_deleted_with_data_in_it(self, aws: Module) -> None:
        assert aws["aws_s3_bucket.data"]["force_destroy"] is False
        assert aws["aws_s3_directory_bucket.express"]["force_destroy"] is False
        assert block(aws["terraform_data.guard"], "lifecycle")["prevent_destroy"] is True
        assert aws.variables["prevent_destroy"]["default"] is True

    def test_is_tidied_up(self, aws: Module) -> None:
        rules = {rule["id"][0]: flat(rule) for rule in aws["aws_s3_bucket_lifecycle_configuration.data"]["rule"]}
        assert all(rule["status"] == "Enabled" for rule in rules.values())
        assert block(rules["unfinished-uploads"], "abort_incomplete_multipart_upload")["days_after_initiation"] == 2
        expiry = block(rules["old-versions"], "noncurrent_version_expiration")
        assert expiry["noncurrent_days"] == "${var.noncurrent_days}"
        assert block(rules["old-versions"], "expiration") == {"expired_object_delete_marker": True}

    def test_takes_tls_only(self, aws: Module) -> None:
        statements = aws.statements("bucket")
        conditions = {sid: block(statement, "condition") for sid, statement in statements.items()}
        assert conditions["TlsOnly"] == {"test": "Bool", "variable": "aws:SecureTransport", "values": ["false"]}
        assert conditions["ModernTlsOnly"]["variable"] == "s3:TlsVersion"
        for statement in statements.values():
            assert statement["effect"] == "Deny"
            assert statement["actions"] == ["s3:*"]
            assert statement["resources"] == ["${local.bucket_arn}", "${local.bucket_arn}/*"]
            assert block(statement, "principals") == {"type": "*", "identifiers": ["*"]}
        assert aws["aws_s3_bucket_policy.data"]["policy"] == "${data.aws_iam_policy_document.bucket.json}"


class TestIdentity:
    def test_the_reader_only_reads(self, aws: Module) -> None:
        statements = aws.statements("reader")
        assert {action for statement in statements.values() for action in statement["actions"]} == READ
        assert block(statements["List"], "condition")["variable"] == "s3:prefix"
        assert statements["Read"]["resources"] == "${local.read_arns}"
        session = block(statements["Express"], "condition")
        assert (session["variable"], session["values"]) == ("s3express:SessionMode", ["ReadOnly"])

    def test_the_writer_cannot_delete(self, aws: Module) -> None:
        statements = aws.statements("writer")
        assert {action for statement in statements.values() for action in statement["actions"]} == WRITE
        assert statements["Write"]["resources"] == ["${local.objects_arn}"]

    def test_nobody_gets_everything(self, aws: Module) -> None:
        for address in aws.of("data.aws_iam_policy_document"):
            for sid, statement in aws.statements(address.rpartition(".")[2]).items():
                if statement.get("effect") == "Deny":
                    continue
                assert not any("*" in action for action in statement["actions"]), (address, sid)
                assert statement.get("resources") != ["*"], (address, sid)

    def test_kms_is_named_only_with_a_key_and_through_s3(self, aws: Module) -> None:
        for document in ("reader", "writer"):
            body = aws[f"data.aws_iam_policy_document.{document}"]
            for entry in body["dynamic"]:
                content = flat(entry["statement"]["content"][0])
                if any(action.startswith("kms:") for action in content["actions"]):
                    assert entry["statement"]["for_each"] == ["${var.kms_key_arn[*]}"]
                    assert block(content, "condition")["variable"] == "kms:ViaService"

    def test_machines_read_and_only_named_principals_write(self, aws: Module) -> None:
        assert aws["aws_iam_instance_profile.reader"]["role"] == "${aws_iam_role.reader.name}"
        trust = block(aws["data.aws_iam_policy_document.machine_trust"], "statement", "principals")
        assert trust == {"type": "Service", "identifiers": ["ec2.amazonaws.com"]}
        trust = block(aws["data.aws_iam_policy_document.writer_trust"], "statement", "principals")
        assert trust["identifiers"] == "${var.writer_principals}"
        attached = [body["policy_arn"] for body in aws.of("aws_iam_role_policy_attachment").values()]
        assert [arn.rpartition("/")[2] for arn in attached] == ["AmazonSSMManagedInstanceCore"]


class TestNetwork:
    def test_nothing_comes_in(self, aws: Module) -> None:
        """What may enter are requests of the machines to the endpoints, and of the machines among themselves."""
        for address, rule in aws.of("aws_vpc_security_group_ingress_rule").items():
            assert rule["referenced_security_group_id"] == "${aws_security_group.machines.id}", address
            assert "cidr_ipv4" not in rule
            assert "cidr_ipv6" not in rule
        for body in [*aws.of("aws_security_group").values(), *aws.of("aws_default_security_group").values()]:
            assert not {"ingress", "egress"} & set(body)
        peers = aws["aws_vpc_security_group_ingress_rule.peers"]
        assert peers["count"] == "${var.num_instances > 1 ? 1 : 0}"

    def test_machines_have_no_public_address(self, aws: Module) -> None:
        for subnet in aws.of("aws_subnet").values():
            assert subnet["map_public_ip_on_launch"] is False
        interface = block(aws["aws_launch_template.this"], "network_interfaces")
        assert interface["associate_public_ip_address"] is False
        assert interface["subnet_id"] == "${aws_subnet.private.id}"

    def test_the_way_out_is_optional(self, aws: Module) -> None:
        for address, body in aws.parts.items():
            if address.startswith(("aws_nat_gateway.", "aws_internet_gateway.", "aws_eip.", "aws_route.")):
                assert body["count"] == "${var.nat_gateway ? 1 : 0}", address
        assert aws.variables["nat_gateway"]["default"] is False

    def test_s3_is_reached_by_a_gateway_with_a_policy(self, aws: Module) -> None:
        endpoint = aws["aws_vpc_endpoint.s3"]
        assert endpoint["vpc_endpoint_type"] == "Gateway"
        assert endpoint["route_table_ids"] == ["${aws_route_table.private.id}"]
        assert endpoint["policy"] == "${data.aws_iam_policy_document.s3_endpoint.json}"
        (statement,) = aws.statements("s3_endpoint").values()
        assert statement["resources"] == ["${local.bucket_arn}", "${local.bucket_arn}/*"]
        assert not any("Put" in action or "Delete" in action for action in statement["actions"])


class TestMachines:
    def test_metadata_need_a_token(self, aws: Module) -> None:
        metadata = block(aws["aws_launch_template.this"], "metadata_options")
        assert (metadata["http_tokens"], metadata["http_put_response_hop_limit"]) == ("required", 1)

    def test_are_reached_by_session_manager_alone(self, aws: Module) -> None:
        for body in (aws["aws_launch_template.this"], aws["aws_instance.this"]):
            assert "key_name" not in body
        assert not aws.of("aws_key_pair")

    def test_the_root_volume_is_encrypted(self, aws: Module) -> None:
        assert block(aws["aws_launch_template.this"], "block_device_mappings", "ebs")["encrypted"] is True

    def test_spot_placement_and_count_are_switches(self, aws: Module) -> None:
        dynamic = {name: body for entry in aws["aws_launch_template.this"]["dynamic"] for name, body in entry.items()}
        assert dynamic["instance_market_options"]["for_each"] == ["${var.spot ? [1] : []}"]
        assert dynamic["placement"]["for_each"] == ["${aws_placement_group.this[*].name}"]
        assert aws["aws_placement_group.this"]["count"] == "${var.num_instances > 1 ? 1 : 0}"
        assert aws["aws_instance.this"]["count"] == "${var.num_instances}"


class TestInterface:
    def test_every_variable_is_described_and_typed(self, aws: Module) -> None:
        free = {"prevent_destroy", "express", "nat_gateway", "spot", "tags"}  # any value of the type will do
        for name, body in aws.variables.items():
            assert body["description"], name
            assert body["type"], name
            assert ("validation" in body) != (name in free), name

    def test_no_output_is_secret(self, aws: Module) -> None:
        for name, body in aws.outputs.items():
            assert body["description"], name
            assert "sensitive" not in body, name
        assert not aws.of("aws_iam_access_key")
        assert not aws.of("aws_iam_user")

    def test_the_outputs_are_what_doctor_reads(self, aws: Module) -> None:
        assert {"dataset_url", "storage_options", "cache_dir"} <= set(aws.outputs)
