"""Tools and deps: what the model is told, what a body gets, and how it says what went wrong."""

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from weft import Agent, Context, Retry, ToolError, tool
from weft.testing import Script, call, calls, say


class Order(BaseModel):
    id: str
    status: Literal["open", "shipped"]


@dataclass
class Shop:
    """The application's own object; each run brings one."""

    orders: dict[str, Order]
    notes: list[str] = field(default_factory=list)


@tool(effect="none")
async def look_up(ctx: Context[Shop], order_id: Annotated[str, Field(pattern=r"^\d+$")]) -> Order:
    """Look an order up.

    Args:
        order_id: The order's number, digits only.
    """
    order = ctx.deps.orders.get(order_id)
    if order is None:
        raise Retry("There is no such order; ask the customer for the number.")
    return order


@tool  # a synchronous body runs on a thread
def cancel(ctx: Context[Shop], order_id: str, reasons: list[str] | None = None) -> str:
    """Cancel an order that has not been shipped."""
    if ctx.deps.orders[order_id].status == "shipped":
        raise ToolError("SHIPPED", "It has been shipped and cannot be cancelled any more.")
    ctx.deps.notes.append(f"cancelled {order_id}: {', '.join(reasons or ['no reason'])}")
    return "cancelled"


async def main() -> None:
    model = Script(
        call("look_up", order_id="forty-two"),
        calls(call("look_up", order_id="41"), call("look_up", order_id="42"), call("look_up", order_id="43")),
        calls(call("cancel", order_id="42"), call("cancel", order_id="43", reasons=["too late"])),
        say("43 is cancelled; 42 has been shipped already."),
    )
    desk = Agent(model, name="desk", deps=Shop, tools=[look_up, cancel])
    orders = [Order(id="42", status="shipped"), Order(id="43", status="open")]
    shop = Shop({order.id: order for order in orders})
    result = await desk.run("Please cancel 42 and 43.", deps=shop)
    for message in result.messages:
        for each in message.results:
            print(each.code, each.content)
    # INVALID_INPUT order_id: String should match pattern '^\d+$'; got 'forty-two'
    # RETRY There is no such order; ask the customer for the number.
    # None {"id":"42","status":"shipped"}
    # None {"id":"43","status":"open"}
    # SHIPPED It has been shipped and cannot be cancelled any more.
    # None cancelled
    print(shop.notes)  # ['cancelled 43: too late']
    print(result.text)  # 43 is cancelled; 42 has been shipped already.


if __name__ == "__main__":
    asyncio.run(main())
