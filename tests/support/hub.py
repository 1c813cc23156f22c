"""A Hugging Face Hub in a thread of the test: the part of its HTTP interface that uploads and `hf://` use.

with fake_hub(monkeypatch) as hub:
    levada.push(run, "user/name", num_episodes=0)
    hub.files("user/name")["config.json"]
"""

import base64
import contextlib
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from huggingface_hub import HfFileSystem, constants

TOKEN = "hf_ofthetest"


class Hub:
    """Repositories, and what was asked of them."""

    def __init__(self):
        self.repositories = {}
        self.private = set()
        self.commits = []
        self.asked = []
        self.status = {}
        """Path -> status with which requests that contain it are answered."""

    def make(self, repo_id, files=(), *, private=False):
        self.repositories[repo_id] = [dict(files)]
        if private:
            self.private.add(repo_id)

    def files(self, repo_id, revision="main"):
        """Return the files of a revision: `main`, or the hash of a commit."""
        versions = self.repositories[repo_id]
        return versions[-1] if revision == "main" else versions[int(revision, 16) - 1]


@contextlib.contextmanager
def fake_hub(monkeypatch):
    """Context in which huggingface_hub speaks with a Hub in this process, logged in as `user`."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    HfFileSystem.clear_instance_cache()
    try:
        yield hub
    finally:
        HfFileSystem.clear_instance_cache()
        server.shutdown()
        server.server_close()
        thread.join()


def sha(number):
    return f"{number:040x}"


class _Handler(BaseHTTPRequestHandler):
    hub = None
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def _handle(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        for part, status in self.hub.status.items():
            if part in path:
                self._answer(status, {"error": "said by the test"})
                return
        if self.headers.get("Authorization") not in (None, f"Bearer {TOKEN}"):
            self._answer(401, {"error": "Invalid credentials in Authorization header"})
            return
        for pattern, answer in _ROUTES:
            if match := re.fullmatch(pattern, path):
                getattr(self, answer)(*match.groups(), body)
                return
        self._answer(404, {"error": f"no such path: {path}"})

    do_GET = do_POST = do_HEAD = _handle

    def _answer(self, status, value, **headers):
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _files(self, repo_id, revision="main"):
        """Files of a repository that the caller may see; None, after the answer, if there is none."""
        known = repo_id in self.hub.repositories
        if not known or (repo_id in self.hub.private and self.headers.get("Authorization") is None):
            self._answer(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
            return None
        try:
            return self.hub.files(repo_id, revision)
        except (ValueError, IndexError):
            self._answer(404, {"error": "Revision not found"}, X_Error_Code="RevisionNotFound")
            return None

    def info(self, repo_id, revision, body):
        files = self._files(repo_id, revision or "main")
        if files is not None:
            head = sha(len(self.hub.repositories[repo_id]))
            siblings = [{"rfilename": name} for name in files]
            private = repo_id in self.hub.private
            self._answer(200, {"id": repo_id, "sha": head, "private": private, "siblings": siblings, "tags": []})

    def create(self, body):
        asked = json.loads(body)
        repo_id = f"{asked.get('organization') or 'user'}/{asked['name']}"
        if repo_id in self.hub.repositories:
            self._answer(
                409, {"error": "You already created this model repo", "url": f"{constants.ENDPOINT}/{repo_id}"}
            )
            return
        self.hub.make(
            repo_id, {".gitattributes": b""}, private=asked.get("private") or asked.get("visibility") == "private"
        )
        self._answer(200, {"url": f"{constants.ENDPOINT}/{repo_id}", "name": repo_id})

    def validate(self, body):
        self._answer(200, {"warnings": [], "errors": []})

    def preupload(self, repo_id, body):
        asked = json.loads(body)["files"]
        files = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None} for file in asked]
        self._answer(200, {"files": files})

    def commit(self, repo_id, body):
        files = dict(self._files(repo_id))
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del files[value["path"]]
            else:
                self.hub.commits.append(value["summary"])
        self.hub.repositories[repo_id].append(files)
        head = sha(len(self.hub.repositories[repo_id]))
        self._answer(
            200, {"commitUrl": f"{constants.ENDPOINT}/{repo_id}/commit/{head}", "commitOid": head, "success": True}
        )

    def paths(self, repo_id, revision, body):
        files = self._files(repo_id, revision)
        if files is not None:
            asked = json.loads(body)["paths"]
            self._answer(200, [_entry(files, name) for name in asked if _entry(files, name)])

    def tree(self, repo_id, revision, folder, body):
        files = self._files(repo_id, revision)
        if files is not None:
            prefix = f"{folder.strip('/')}/" if folder else ""
            below = {name for name in files if name.startswith(prefix)}
            if "recursive=true" not in self.path.lower():
                below = {prefix + name.removeprefix(prefix).split("/")[0] for name in below}
            self._answer(200 if below else 404, [_entry(files, name) for name in sorted(below)])

    def resolve(self, repo_id, revision, name, body):
        files = self._files(repo_id, revision)
        if files is None:
            return
        data, etag = files[name], f'"{hashlib.sha1(files[name]).hexdigest()}"'
        headers = {"ETag": etag, "X_Repo_Commit": sha(1), "Accept_Ranges": "bytes"}
        if found := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or ""):
            first, last = int(found[1]), min(int(found[2]), len(data) - 1)
            headers["Content_Range"] = f"bytes {first}-{last}/{len(data)}"
            self._answer(206, data[first : last + 1], **headers)
        else:
            self._answer(200, data, **headers)


_REPO = r"([\w.-]+/[\w.-]+)"
_ROUTES = (
    ("/api/repos/create", "create"),
    ("/api/validate-yaml", "validate"),
    (f"/api/models/{_REPO}(?:/revision/(.+))?", "info"),
    (r"/api/models/([\w.-]+)()", "info"),  # older versions try the first part as a name without a user
    (f"/api/models/{_REPO}/preupload/main", "preupload"),
    (f"/api/models/{_REPO}/commit/main", "commit"),
    (f"/api/models/{_REPO}/paths-info/([^/]+)", "paths"),
    (f"/api/models/{_REPO}/tree/([^/]+)/?(.*)", "tree"),
    (f"/{_REPO}/resolve/([^/]+)/(.+)", "resolve"),
)


def _entry(files, name):
    """Describe a file or a directory as the Hub does; None if there is neither."""
    if name in files:
        return {"type": "file", "path": name, "size": len(files[name]), "oid": hashlib.sha1(files[name]).hexdigest()}
    if any(other.startswith(f"{name}/") for other in files):
        return {"type": "directory", "path": name, "oid": sha(0)}
    return None
