"""respx for an SDK that sends through httpx2: it knows httpx."""

import httpx
import httpx2
import respx


def through(router: respx.MockRouter) -> httpx2.AsyncClient:
    """A client whose requests the router answers; one that no route fits fails."""

    async def handle(request: httpx2.Request) -> httpx2.Response:
        asked = httpx.Request(request.method, str(request.url), headers=request.headers.raw, content=request.content)
        answer = await router.async_handler(asked)
        return httpx2.Response(answer.status_code, headers=answer.headers.raw, content=await answer.aread())

    return httpx2.AsyncClient(transport=httpx2.MockTransport(handle))
