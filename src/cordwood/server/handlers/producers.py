"""InitProducerId: an id for each idempotent producer."""

from __future__ import annotations

from cordwood.errors import CordwoodError
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from cordwood.server.answers import code_of
from cordwood.server.connection import Exchange
from cordwood.server.context import Context


def init_producer_id(context: Context, exchange: Exchange) -> None:
    """Give out an id that nobody had before. A producer that wants to be transactional is told no."""
    request: InitProducerIdRequest = exchange.request.body
    if request.transactional_id is not None:
        exchange.answer(InitProducerIdResponse(error_code=ErrorCode.UNSUPPORTED_VERSION))
        return

    def give() -> InitProducerIdResponse:
        try:
            return InitProducerIdResponse(producer_id=context.tenant.new_producer_id())
        except CordwoodError as error:
            return InitProducerIdResponse(error_code=code_of(error))

    context.changes.run(exchange, give, exchange.answer)
