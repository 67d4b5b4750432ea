"""SCRAM users at a broker, through confluent-kafka: passwords are hashed before they are sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cordwood.cli.backends.asking import ask
from cordwood.cli.backends.backend import UserRow, unknown_user
from cordwood.errors import CordwoodError
from cordwood.host import process
from cordwood.kafka_client import KafkaClient
from cordwood.protocol import ApiKey, ErrorCode
from cordwood.protocol.messages import DescribeUserScramCredentialsRequest
from cordwood.security import ScramMechanism, salt_from


class BrokerUsers:
    """The users of a broker."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._kafka = client.kafka.admin

    def find(self) -> list[UserRow]:
        """Return all users, by name."""
        # Not by confluent-kafka, which crashes on the answer to a client that may not see users.
        client = self._client
        request = DescribeUserScramCredentialsRequest(users=None)
        answer = ask(client.settings, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, request, client.seconds)
        if answer.error_code:
            reason = answer.error_message or ErrorCode(answer.error_code).name
            raise CordwoodError(f"listing users at {client.address} failed: {reason}")
        rows = [
            UserRow(result.user, ScramMechanism(each.mechanism), each.iterations)
            for result in answer.results
            for each in result.credential_infos
        ]
        return sorted(rows, key=lambda each: (each.name, each.mechanism.value))

    def set(self, name: str, password: str, mechanisms: Sequence[ScramMechanism], iterations: int) -> None:
        """Set the credentials of a user, with a request for each: brokers take one a user."""
        for mechanism in mechanisms:
            info = self._kafka.ScramCredentialInfo(self._mechanism(mechanism), iterations)
            salt = salt_from(process.new_seed())
            self._alter(
                f"adding user {name}",
                self._kafka.UserScramCredentialUpsertion(name, info, password.encode(), salt),
            )

    def remove(self, name: str, mechanisms: Sequence[ScramMechanism]) -> list[ScramMechanism]:
        """Remove credentials of a user; return their mechanisms.

        Raises:
            CordwoodError: If the user has none of them.
        """
        known = [each.mechanism for each in self.find() if each.name == name]
        removed = [each for each in mechanisms if each in known]
        if not removed:
            raise unknown_user(name)
        for mechanism in removed:
            deletion = self._kafka.UserScramCredentialDeletion(name, self._mechanism(mechanism))
            self._alter(f"removing user {name}", deletion)
        return removed

    def _alter(self, doing: str, change: Any) -> None:
        futures = self._client.admin.alter_user_scram_credentials(
            [change], request_timeout=self._client.seconds
        )
        for future in futures.values():
            self._client.asked(doing, future.result)

    def _mechanism(self, mechanism: ScramMechanism) -> Any:
        return self._kafka.ScramMechanism(mechanism.value)
