"""The HTTP side of a server: reads requests within limits, has them predicted, and never shows a traceback."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import DataError, LeanBayesError
from . import bodies, page
from .answers import judged
from .batcher import Batcher, Busy
from .config import Settings
from .metrics import Metrics
from .openapi import document, documentation
from .options import Ask, Thresholds, chosen, options
from .predictor import Predictor

THRESHOLDS = [field.name for field in dataclasses.fields(Thresholds)]
CLOSE = {"Connection": "close"}  # what the client still sends would be read as another request
LATER = {"Retry-After": "1"}
LINGER = 30.0  # seconds for which the rest of a refused body is read


def refused(code: int, message: str, headers: dict[str, str] | None = None) -> HTTPException:
    """The error that becomes an answer of this status."""
    return HTTPException(code, message, headers)


class Service:
    """The routes of one model."""

    def __init__(self, predictor: Predictor, settings: Settings, metrics: Metrics) -> None:
        self.predictor, self.settings, self.metrics = predictor, settings, metrics
        card = predictor.card
        self.options = options(
            settings,
            card.task,
            has_width=card.has_width,
            is_conformal=card.coverage is not None,
            can_sample=card.samples is None,
        )
        self.document = document(card, settings, self.options)
        self.in_progress = 0
        self.batcher: Batcher | None = None
        self.readers = ThreadPoolExecutor(2, "leanbayes-reader")

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """The thread that predicts lives as long as the application, and computes what is waiting when it ends."""
        most = self.settings.max_batch if self.predictor.card.together else 1
        self.batcher = Batcher(self.predictor, most=most, wait=self.settings.max_wait / 1000, observe=self._observe)
        self.metrics.count("worker_starts_total")
        yield
        await asyncio.get_running_loop().run_in_executor(self.readers, self.batcher.close)
        self.readers.shutdown()

    def _observe(self, size: int, seconds: float) -> None:
        self.metrics.observe("batch_data", size)
        self.metrics.observe("batch_seconds", seconds)

    async def predict(self, request: Request) -> Response:
        """POST /predict."""
        if self.in_progress >= self.settings.max_queue:
            raise refused(429, f"{self.in_progress} requests are under way, which is the limit", LATER | CLOSE)
        start = time.monotonic()
        self.in_progress += 1
        self.metrics.count("requests_in_progress")
        try:
            return JSONResponse(await self._answered(request, start))
        finally:
            self.in_progress -= 1
            self.metrics.count("requests_in_progress", by=-1)
            self.metrics.observe("request_seconds", time.monotonic() - start)

    async def _answered(self, request: Request, start: float) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in bodies.TYPES:
            raise refused(
                415, f"Content-Type: expected one of {', '.join(bodies.TYPES)}, received {kind[:80]!r}", CLOSE
            )
        body = await self._body(request)
        values, inputs, size = await loop.run_in_executor(
            self.readers, partial(self._read, kind, body, dict(request.query_params))
        )
        ask = Ask(**{field.name: values.get(field.name, field.default) for field in dataclasses.fields(Ask)})
        left = values["deadline"] / 1000 - (time.monotonic() - start)
        try:
            assert self.batcher is not None
            found = await self.batcher.ask(ask, inputs, len(inputs), max(left, 0.0))
        except Busy as error:
            raise refused(429, str(error), LATER) from None
        thresholds = Thresholds(**{name: values[name] for name in THRESHOLDS if name in values})
        made = [judged(answer, thresholds) for answer in found]
        for answer in made:
            self.metrics.count("data_total", "abstained" if answer["abstained"] else "answered")
        card = self.predictor.card
        samples, seed = (ask.samples, ask.seed) if card.samples is None else (card.samples, card.seed)
        held = card.conformal_samples in (None, samples)
        said: dict[str, Any] = {"task": card.task, "samples": samples, "seed": seed}
        said |= {"width": ask.width} if card.has_width else {}
        said |= {"classes": card.classes} if card.classes else {}
        said |= {"coverage": card.coverage if held else None} if card.coverage is not None else {}
        said |= {"image_size": size} if size else {}
        return said | {"predictions": made}

    async def _body(self, request: Request) -> bytes:
        most = self.settings.max_body
        too_large = refused(413, f"expected a body of at most {most:,} bytes, received more", CLOSE)
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > most:
            raise too_large
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.settings.deadline / 1000):
                async for part in request.stream():
                    size += len(part)
                    if size > most:
                        break
                    parts.append(part)
        except TimeoutError:
            raise refused(408, f"expected a body within {self.settings.deadline:g} ms", CLOSE) from None
        except ClientDisconnect:
            raise refused(400, "the client has left", CLOSE) from None
        if size > most:
            raise too_large
        return b"".join(parts)

    def _read(self, kind: str, body: bytes, query: dict[str, str]) -> tuple[dict[str, Any], Any, Any]:
        """Options and data of a request; in a thread, since it may take a while."""
        card, settings = self.predictor.card, self.settings
        found = bodies.parse(
            kind, body, card.shape, card.columns, max_pixels=settings.max_pixels, max_rows=settings.max_rows
        )
        values = chosen({**query, **found.options}, self.options)
        inputs = self.predictor.prepare(found.inputs)
        if tuple(inputs.shape[1:]) != card.shape:
            raise DataError(f"inputs: expected data of shape {card.shape}, received {tuple(inputs.shape[1:])}")
        if not bool(inputs.isfinite().all()):
            raise DataError("inputs: expected finite numbers, received others")
        return values, inputs, found.size

    async def model(self, request: Request) -> Response:
        """GET /model."""
        limits = {name: option.schema for name, option in self.options.items()}
        return JSONResponse({"model": self.predictor.card.to_dict(), "options": limits})

    async def health(self, request: Request) -> Response:
        """GET /health: whether this worker runs. GET /ready: whether it takes requests."""
        if self.batcher is None or not self.batcher.is_alive:
            raise refused(503, "the thread of the model has ended", LATER)
        return JSONResponse({"status": "ok"})

    async def measured(self, request: Request) -> Response:
        """GET /metrics."""
        return PlainTextResponse(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def openapi(self, request: Request) -> Response:
        """GET /openapi.json."""
        return JSONResponse(self.document)

    async def docs(self, request: Request) -> Response:
        """GET /docs."""
        return HTMLResponse(documentation(self.document), headers=page.HEADERS)

    async def page(self, request: Request) -> Response:
        """GET /."""
        return HTMLResponse(page.TEXT, headers=page.HEADERS)


class Counted:
    """Counts every answer by its status."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, looking at what is answered."""

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.metrics.count("requests_total", str(message["status"]))
            await send(message)

        await self.app(scope, receive, counting if scope["type"] == "http" else send)


class Refusal(Response):
    """An answer to a request whose body has not been read: sent at once, and then the body is read and dropped.

    A connection that is closed while the client is sending is reset, and a client that reads when it has sent all would
    not see the answer.
    """

    def __init__(self, unread: AsyncIterator[bytes], *arguments: Any) -> None:
        super().__init__(*arguments)
        self.unread = unread

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and read for `LINGER` seconds at most."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with contextlib.suppress(TimeoutError, ClientDisconnect, RuntimeError):  # the last: it was read to its end
            async with asyncio.timeout(LINGER):
                async for _ in self.unread:
                    pass
        await send({"type": "http.response.body"})


async def _said(request: Request, error: Exception) -> Response:
    """Errors as JSON: expected, received, what to type; of our own faults no more than that they are in the log."""
    if isinstance(error, HTTPException):
        message = str(error.detail)
        if error.status_code == 404:
            message = f"expected one of {', '.join(route.path for route in request.app.routes)}; / is a page to try it"
        elif error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "")
            message = f"{request.url.path}: expected {allowed}, received {request.method}"
        closes = "Connection" in (error.headers or {})
        return _error(error.status_code, message, error.headers, request.stream() if closes else None)
    if isinstance(error, LeanBayesError):
        return _error(400, str(error))
    return _error(500, "the server failed; its log says more")


def _error(code: int, message: str, headers: Any = None, unread: AsyncIterator[bytes] | None = None) -> Response:
    answer = (json.dumps({"error": {"status": code, "message": message}}), code, headers, "application/json")
    return Response(*answer) if unread is None else Refusal(unread, *answer)


def make_app(predictor: Predictor, settings: Settings, metrics: Metrics | None = None) -> ASGIApp:
    """The application of a model, for any ASGI server."""
    metrics = metrics or Metrics()
    service = Service(predictor, settings, metrics)
    routes = [
        Route("/predict", service.predict, methods=["POST"]),
        Route("/model", service.model),
        Route("/health", service.health),
        Route("/ready", service.health),
        Route("/metrics", service.measured),
        Route("/openapi.json", service.openapi),
        Route("/docs", service.docs),
        Route("/", service.page),
    ]
    handlers: dict[Any, Any] = dict.fromkeys((HTTPException, LeanBayesError, Exception), _said)
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=service.lifespan)
    return Counted(app, metrics)
