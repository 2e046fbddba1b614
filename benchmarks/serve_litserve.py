"""The model of benchmarks/serve.py behind LitServe: batches of the same size, the same wait, the same answers."""

import io
import sys
from pathlib import Path
from typing import Any

import litserve
import numpy as np
import torch
from starlette.requests import Request

import leanbayes as lb
from leanbayes.serve.answers import answers
from serve import SAMPLES, network


class Served(litserve.LitAPI):  # type: ignore[misc]
    """`predict` of the network, one body of numpy's format a request."""

    folder = Path()

    def setup(self, device: str) -> None:
        """Read the model in a worker."""
        torch.set_num_threads(1)
        self.network = lb.load(self.folder / "model.safetensors", into=network())

    async def decode_request(self, request: Request) -> Any:  # type: ignore[override]
        """The image of a request."""
        return torch.from_numpy(np.load(io.BytesIO(await request.body()), allow_pickle=False))

    def batch(self, inputs: list[Any]) -> Any:
        """Images together."""
        return torch.cat(inputs)

    def predict(self, x: Any) -> Any:
        """The answers to a batch."""
        found = lb.predict(self.network, x, SAMPLES, seed=0, task="classification")
        return answers(found, [str(n) for n in range(10)])

    def unbatch(self, output: Any) -> Any:
        """One by one."""
        return output

    def encode_response(self, output: Any) -> Any:
        """The JSON document of an answer."""
        return {"predictions": [output]}


def main() -> None:
    """Serve until a signal comes."""
    folder, port, workers, most = sys.argv[1:]
    api = Served(max_batch_size=int(most), batch_timeout=0.002)
    api.folder = Path(folder)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=int(workers), timeout=120)
    server.run(port=int(port), host="127.0.0.1", num_api_servers=1, generate_client_file=False, log_level="error")


if __name__ == "__main__":
    main()
