"""Lets respx, which knows httpx, answer for SDKs that send through httpx2."""

import httpx
import httpx2
import respx


def respx_client(router: respx.MockRouter) -> httpx2.AsyncClient:
    """A client whose every request the router answers; httpx's errors are raised as httpx2's of the same name."""

    async def handle(request: httpx2.Request) -> httpx2.Response:
        sent = httpx.Request(
            request.method, str(request.url), headers=request.headers.multi_items(), content=await request.aread()
        )
        try:
            answer = await router.async_handler(sent)
        except httpx.TransportError as error:
            kind: type[httpx2.TransportError] = getattr(httpx2, type(error).__name__)
            raise kind(str(error)) from error
        return httpx2.Response(answer.status_code, headers=answer.headers.multi_items(), content=await answer.aread())

    return httpx2.AsyncClient(transport=httpx2.MockTransport(handle))
