"""As much of a W&B server, on this machine alone, as a run needs to be created, filled and continued."""

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HISTORY, EVENTS = "wandb-history.jsonl", "wandb-events.jsonl"


class _QuietServer(ThreadingHTTPServer):
    def handle_error(self, *_):
        """A client that ends closes its connections; that is not worth a traceback."""


class WandbServer:
    """Keeps the files of one run by line, as they are streamed to it, and what the run was created with.

    `rewritten` are lines of history that were sent again.
    """

    def __init__(self):
        self.files: dict[str, list[str]] = {HISTORY: [], EVENTS: []}
        self.run: dict | None = None
        self.alerts: list[str] = []
        self.rewritten: list[str] = []
        self.view: dict = {}
        self._http = _QuietServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    @property
    def history(self) -> list[dict]:
        return [json.loads(line) for line in self.files[HISTORY]]

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, operation: str, variables: dict) -> dict:
        project = {"id": "p", "name": "focus-jax", "entity": {"id": "e", "name": "someone"}}
        match operation:
            case "Viewer":
                return {"viewer": {"id": "u", "entity": "someone", "username": "someone", "teams": {"edges": []}}}
            case "RunResumeStatus":
                return {"model": {**project, "bucket": self.run and self._resume_status()}}
            case "UpsertBucket":
                inserted = self.run is None
                given = {name: value for name, value in variables.items() if value is not None}
                self.run = {**(self.run or {}), **given}
                bucket = {"id": "b", "name": self.run["name"], "displayName": "run", "config": self.run["config"]}
                return {"upsertBucket": {"bucket": {**bucket, "project": project}, "inserted": inserted}}
            case "CreateRunFiles":
                files = [{"name": name, "uploadUrl": f"{self.url}/upload"} for name in variables["files"]]
                return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
            case "UpsertView2":
                self.view = variables
                return {"upsertView": {"view": {"id": "v", "name": variables["name"]}}}
            case "NotifyScriptableRunAlert":
                self.alerts.append(variables["title"])
                return {"notifyScriptableRunAlert": {"success": True}}
            case _:
                return {}

    def stream(self, files: dict) -> None:
        for name, part in files.items():
            lines = self.files.setdefault(name, [])
            place = slice(part["offset"], part["offset"] + len(part["content"]))
            self.rewritten += lines[place] if name == HISTORY else []
            lines[place] = part["content"]

    def _resume_status(self) -> dict:
        return {
            "id": "b",
            "name": self.run["name"],
            "summaryMetrics": self.run.get("summaryMetrics", "{}"),
            "displayName": "run",
            "logLineCount": 0,
            "historyLineCount": len(self.files[HISTORY]),
            "eventsLineCount": len(self.files[EVENTS]),
            "historyTail": json.dumps(self.files[HISTORY][-1:]),
            "eventsTail": json.dumps(self.files[EVENTS][-1:]),
            "config": self.run["config"],
            "tags": self.run.get("tags", []),
            "notes": None,
            "wandbConfig": '{"t": 1}',
        }

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                message = json.loads(self._body())
                if self.path == "/graphql":
                    operation = message["query"].split("(")[0].split("{")[0].split()[1]
                    self._reply({"data": server.answer(operation, message.get("variables") or {})})
                else:
                    server.stream(message.get("files") or {})
                    self._reply({"exitcode": None, "limits": {}})

            def do_PUT(self):
                self._body()
                self._reply({})

            def _body(self) -> bytes:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

            def _reply(self, message: dict) -> None:
                body = json.dumps(message).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        return Handler
