"""As much of a hub as the page asks: whose token it is, and what that allows."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeHub:
    """Answers `/hub/api/user`; which answers, the test says."""

    def __init__(self):
        #: token -> the hub's model of who has it
        self.models = {}
        #: status that is answered instead, as by a hub in trouble
        self.trouble = 0
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                token = self.headers.get("Authorization", "").removeprefix("token ")
                model = hub.models.get(token)
                if self.path.endswith("/hub/api"):  # what anybody may ask
                    model = {"version": "6.1.1"}
                status = hub.trouble or (200 if model else 403)
                body = json.dumps(model if status == 200 else {"status": status}).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hub/api"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def knows(self, name, *scopes, groups=(), kind="user"):
        """Make a token for somebody."""
        token = f"token-of-{name}"
        self.models[token] = {
            "kind": kind,
            "name": name,
            "admin": False,
            "groups": list(groups),
            "scopes": ["access:services!service=jgpu", *scopes],
        }
        return token

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
