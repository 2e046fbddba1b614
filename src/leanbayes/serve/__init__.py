"""A server for one model: HTTP in front, a thread that predicts concurrent requests in batches behind it.

`config` and `options` say what an operator and a request may choose, `bodies` reads what arrives, `predictor` is the
model, `batcher` the thread, `answers` what is sent back, `app` the HTTP side, `supervisor` several processes behind
one port. Nothing but `app` and `supervisor` needs the packages of the extra.
"""
