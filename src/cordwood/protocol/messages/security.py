"""Access control and SCRAM users."""

from __future__ import annotations

from cordwood.protocol.schema import array, int8, int16, int32, message, string

#: The pattern type of a resource that is named in full.
LITERAL = 3


@message
class DescribeAclsRequest:
    """Request the access control entries that match a filter; null matches anything."""

    resource_type_filter: int = int8("0+")
    resource_name_filter: str | None = string("0+", nullable="0+")
    pattern_type_filter: int = int8("1+", default=LITERAL)
    principal_filter: str | None = string("0+", nullable="0+")
    host_filter: str | None = string("0+", nullable="0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


@message
class AclDescription:
    """An operation that a principal is allowed or denied."""

    principal: str = string("0+")
    host: str = string("0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


@message
class DescribeAclsResource:
    """A resource and its entries."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    pattern_type: int = int8("1+", default=LITERAL)
    acls: list[AclDescription] = array(AclDescription, "0+")


@message
class DescribeAclsResponse:
    """The matching entries."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    resources: list[DescribeAclsResource] = array(DescribeAclsResource, "0+")


@message
class AclCreation:
    """An entry to create."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    resource_pattern_type: int = int8("1+", default=LITERAL)
    principal: str = string("0+")
    host: str = string("0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


@message
class CreateAclsRequest:
    """Create access control entries."""

    creations: list[AclCreation] = array(AclCreation, "0+")


@message
class AclCreationResult:
    """The result for one entry."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


@message
class CreateAclsResponse:
    """The result for each entry."""

    throttle_time_ms: int = int32("0+")
    results: list[AclCreationResult] = array(AclCreationResult, "0+")


@message
class DeleteAclsFilter:
    """Entries to delete; null matches anything."""

    resource_type_filter: int = int8("0+")
    resource_name_filter: str | None = string("0+", nullable="0+")
    pattern_type_filter: int = int8("1+", default=LITERAL)
    principal_filter: str | None = string("0+", nullable="0+")
    host_filter: str | None = string("0+", nullable="0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


@message
class DeleteAclsRequest:
    """Delete access control entries."""

    filters: list[DeleteAclsFilter] = array(DeleteAclsFilter, "0+")


@message
class DeleteAclsMatchingAcl:
    """An entry that matched, and whether it was deleted."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    pattern_type: int = int8("1+", default=LITERAL)
    principal: str = string("0+")
    host: str = string("0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


@message
class DeleteAclsFilterResult:
    """The result for one filter."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    matching_acls: list[DeleteAclsMatchingAcl] = array(DeleteAclsMatchingAcl, "0+")


@message
class DeleteAclsResponse:
    """The result for each filter."""

    throttle_time_ms: int = int32("0+")
    filter_results: list[DeleteAclsFilterResult] = array(DeleteAclsFilterResult, "0+")


@message
class UserName:
    """A requested user."""

    name: str = string("0+")


@message
class DescribeUserScramCredentialsRequest:
    """Request the SCRAM credentials of users; null or none means all users."""

    users: list[UserName] | None = array(UserName, "0+", nullable="0+")


@message
class CredentialInfo:
    """One credential without its secret."""

    mechanism: int = int8("0+")
    iterations: int = int32("0+")


@message
class DescribeUserScramCredentialsResult:
    """A user and their credentials."""

    user: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    credential_infos: list[CredentialInfo] = array(CredentialInfo, "0+")


@message
class DescribeUserScramCredentialsResponse:
    """The credentials of each user."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    results: list[DescribeUserScramCredentialsResult] = array(DescribeUserScramCredentialsResult, "0+")
