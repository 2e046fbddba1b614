"""A model of benchmarks/serve.py behind LitServe: python lit_app.py FOLDER PORT THREADS WORKERS MAX_BATCH.

Without postponed annotations: LitServe looks at the type of a request, and refuses every one where it is a text.
"""

import sys
from pathlib import Path
from typing import Any

import litserve
import torch

import leanbayes as lb
from serve import SAMPLES, network


class Api(litserve.LitAPI):
    """JSON to a tensor, a batch of them through `predict`, JSON again."""

    folder, threads = Path(), 1

    def setup(self, device: str) -> None:
        """Load the model, in every worker."""
        torch.set_num_threads(self.threads)
        self.model = lb.load(self.folder / "model.safetensors", into=network())

    def decode_request(self, request: dict[str, Any]) -> torch.Tensor:
        """The image of a request."""
        return torch.tensor(request["inputs"][0], dtype=torch.float32)

    def predict(self, x: torch.Tensor) -> list[Any]:
        """What is said of each image of a batch."""
        said = lb.predict(self.model, x, SAMPLES, seed=0, task="classification")
        return list(zip(said.probs.tolist(), said.entropy.tolist(), said.mutual_information.tolist(), strict=True))

    def encode_response(self, output: Any) -> dict[str, Any]:
        """The answer to a request."""
        probs, entropy, information = output
        return {"predictions": [{"probs": probs, "entropy": entropy, "mutual_information": information}]}


def main() -> None:
    """Serve until stopped."""
    port, threads, workers, most = map(int, sys.argv[2:])
    api = Api(max_batch_size=most, batch_timeout=0.002)
    api.folder, api.threads = Path(sys.argv[1]), threads
    server = litserve.LitServer(
        api, accelerator="cpu", devices=1, workers_per_device=workers, timeout=120, fast_queue=True
    )
    server.run(host="127.0.0.1", port=port, num_api_servers=1, generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    main()
