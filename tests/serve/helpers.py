"""Small models behind a server, and requests to it without a network."""

import asyncio
import contextlib
import importlib
import json
import os
import threading
import time

import numpy as np
import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.serve.config import Settings
from leanbayes.serve.predictor import Predictor, TorchModel


def package(name):
    """An optional package; with LEANBAYES_REQUIRE_EXTRAS=1 its absence is a failure, not a skip."""
    if os.environ.get("LEANBAYES_REQUIRE_EXTRAS") == "1":
        return importlib.import_module(name)
    return pytest.importorskip(name)


def floats(inputs):
    """Inputs as they are; images as pixels from 0 to 1."""
    scale = 255 if inputs.dtype == np.uint8 else 1
    return torch.from_numpy((inputs / scale).astype(np.float32))


def images(classes=4, size=6):
    """A small Bayesian network for images of one channel."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * (size - 2) ** 2, classes))
    lb.bayesianize_(model, lb.MeanField(std=0.3))
    return model


def image_predictor(model=None, **options):
    """The network of `images` behind a server."""
    return Predictor(TorchModel(model or images(), "classification"), floats, (1, 6, 6), **options)


def number_predictor(**options):
    """A regression of two inputs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    lb.bayesianize_(model, lb.MeanField())
    return Predictor(TorchModel(model, "regression"), floats, (2,), **options)


class Client:
    """Calls an ASGI application as a server would, in the loop that runs."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, method, path, body=b"", kind=None, headers=(), pieces=None):
        """The status, the headers and the body of an answer."""
        path, _, query = path.partition("?")
        parts = pieces or [body]
        told = [(b"content-type", kind.encode())] if kind else []
        told += [(b"content-length", str(len(body)).encode())] if pieces is None else []
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
            "headers": told + [(a.encode(), b.encode()) for a, b in headers],
            "client": ("test", 1), "server": ("test", 80),
        }  # fmt: skip
        sent, at = [], iter(range(len(parts) + 1))

        async def receive():
            number = next(at)
            if number == len(parts):
                return {"type": "http.disconnect"}
            if parts[number] is None:  # a client that has stopped sending
                await asyncio.sleep(60)
            return {"type": "http.request", "body": parts[number], "more_body": number + 1 < len(parts)}

        async def send(message):
            sent.append(message)

        with contextlib.suppress(Exception):  # it is raised again for the log of the server, after the answer
            await self.app(scope, receive, send)
        content = b"".join(message.get("body", b"") for message in sent)
        return sent[0]["status"], dict(sent[0]["headers"]), content

    async def predict(self, inputs, query="", **options):
        """The JSON document that a list of data is answered with."""
        body = json.dumps({"inputs": inputs, **options}).encode()
        status, _, content = await self("POST", "/predict" + query, body, "application/json")
        return status, json.loads(content)


def serving(scenario, predictor, **settings):
    """What the coroutine scenario(client) returns, with a running application."""
    package("starlette")
    from leanbayes.serve.app import make_app

    async def run():
        app = make_app(predictor, Settings(**settings))
        inside, events = asyncio.Queue(), asyncio.Queue()
        lifespan = asyncio.create_task(app({"type": "lifespan", "asgi": {"version": "3.0"}}, inside.get, events.put))
        await inside.put({"type": "lifespan.startup"})
        assert (await events.get())["type"] == "lifespan.startup.complete"
        try:
            return await scenario(Client(app))
        finally:
            await inside.put({"type": "lifespan.shutdown"})
            await lifespan

    return asyncio.run(run())


@contextlib.contextmanager
def running(app):
    """The port of an application behind uvicorn, in a thread."""
    uvicorn = package("uvicorn")
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="on"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
