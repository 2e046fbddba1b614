"""A server that speaks as much of the Hub's protocol as uploading and downloading a few files takes."""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """files: what was committed, by repository. calls: what was asked. status: an error to answer everything with."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.calls, self.status = {}, [], None
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *args):
        pass

    def answer(self, content, status=200, **headers):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.calls.append(("POST", self.path))
        if self.server.status is not None:
            return self.answer({"error": "Invalid username or password."}, self.server.status)
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            self.server.files.setdefault(name, {})
            return self.answer({"url": f"{self.server.endpoint}/{name}", "name": name, "id": name})
        if self.path == "/api/validate-yaml":
            return self.answer({"warnings": [], "errors": []})
        name, action = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(preupload|commit)/main", self.path).groups()
        if action == "preupload":
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            return self.answer({"files": files})
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                self.server.files[name][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        where = f"{self.server.endpoint}/{name}/commit/{COMMIT}"
        return self.answer({"success": True, "commitOid": COMMIT, "commitUrl": where, "hookOutput": ""})

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.server.calls.append((self.command, self.path))
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", self.path)
        content = self.server.files.get(found[1], {}).get(found[2]) if found else None
        if content is None:
            code = "RepoNotFound" if not found or found[1] not in self.server.files else "EntryNotFound"
            return self.answer({"error": "not found"}, 404, X_Error_Code=code)
        return self.answer(content, ETag=f'"{hashlib.sha1(content).hexdigest()}"', X_Repo_Commit=COMMIT)
