"""A hub that lies, drips, redirects and never ends, and a storage host at another port that listens for the token.

Each behaviour is a function of a request that answers in the place of the honest server, or returns false.
"""

import gzip
import hashlib
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from harness import MODEL, active, bounds

ID, COMMIT, CANARY = "org/tiny", "0123456789abcdef0123456789abcdef01234567", "hf_canaryThatNobodyMayHave"
FILES = {path.name: path.read_bytes() for path in MODEL.iterdir()}
WEIGHTS = "model.safetensors"


def hash_of(name, content):
    return hashlib.sha256(content).hexdigest() if name == WEIGHTS else hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def listing(**changes):
    siblings = [{"rfilename": name, "size": len(content)} for name, content in FILES.items()]
    return {"sha": COMMIT, "siblings": siblings, **changes}


class Handler(BaseHTTPRequestHandler):
    """The honest server: the list, the facts about a file (HEAD), small files, and weights at the storage host."""

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        server, path = self.server, self.path.split("?")[0]
        server.seen.append((self.command, path, self.headers.get("authorization", "") + self.headers.get("cookie", "")))
        name = path.rsplit("/", 1)[-1]
        self.name = name
        self.kind = "list" if path.startswith("/api/") else "facts" if self.command == "HEAD" else "storage" if server.is_storage else "file"
        try:
            if not server.behaviour(self):
                self.honest()
        except (OSError, ValueError):
            pass

    def honest(self, content=None, name=None):
        name = name or self.name
        if self.kind == "list":
            return self.say(200, json.dumps(listing()).encode())
        if name not in FILES:
            return self.say(404, b"not here", {"x-error-code": "EntryNotFound"})
        content = FILES[name] if content is None else content
        facts = {"etag": f'"{hash_of(name, FILES[name])}"', "x-repo-commit": COMMIT}
        if name == WEIGHTS and self.kind in ("facts", "file"):
            facts |= {"x-linked-etag": facts["etag"], "x-linked-size": str(len(FILES[name])), "location": f"{self.server.storage}/{name}"}
            return self.say(302, b"", facts)
        begin = int(self.headers.get("range", "bytes=0-")[6:].split("-")[0])
        if begin:
            facts["content-range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        return self.say(206 if begin else 200, content[begin:], facts)

    def say(self, status, body=b"", headers=None, length=None):
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("content-length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.close_connection = True
        return True

    def raw(self, content):
        self.wfile.write(content)
        self.close_connection = True
        return True

    def endless(self, head, piece, pause=0.0):
        """Sends a head, and then a piece for ever."""
        self.wfile.write(head)
        while not self.server.over.wait(pause) if pause else not self.server.over.is_set():
            self.wfile.write(piece)
        self.close_connection = True
        return True


OK = b"HTTP/1.1 200 OK\r\n"


def on(kind, act, name=None):
    """A behaviour for one kind of request, and for one file if it is named."""
    return lambda request: request.kind == kind and name in (None, request.name) and act(request)


def says(status, body=b"", headers=None, length=None):
    return lambda request: request.say(status, body, headers, length)


def lists(**changes):
    return on("list", lambda request: request.say(200, json.dumps(listing(**changes)).encode()))


def named(*names):
    siblings = [{"rfilename": name, "size": len(content)} for name, content in FILES.items()]
    return lists(siblings=siblings + [{"rfilename": name, "size": 4} for name in names])


def sized(change):
    return lists(siblings=[{"rfilename": name, "size": change(len(content))} for name, content in FILES.items()])


def indexed(*names):
    """A model in shards, whose index names these."""
    index = json.dumps({"weight_map": {f"w{number}": name for number, name in enumerate(names)}}).encode()
    siblings = [file for file in listing()["siblings"] if file["rfilename"] != WEIGHTS]
    siblings += [{"rfilename": "model.safetensors.index.json", "size": len(index)}, *({"rfilename": name, "size": 4} for name in names)]

    def behaviour(request):
        if request.kind == "list":
            return request.say(200, json.dumps(listing(siblings=siblings)).encode())
        if request.name == "model.safetensors.index.json":
            return request.say(200, index, {"etag": hash_of("index", index), "x-repo-commit": COMMIT})
        if request.name in FILES:
            return False
        return request.say(200, b"evil", {"etag": hash_of("x", b"evil"), "x-repo-commit": COMMIT})

    return behaviour


def moved(location):
    """The hub sends elsewhere; the storage host is where it ends."""
    return lambda request: not request.server.is_storage and request.say(302, b"", {"location": location(request)})


def facts(**changes):
    """Other headers for the weights."""
    headers = {key.replace("_", "-"): value for key, value in changes.items()}
    return on("facts", lambda request: request.say(200, b"", {"etag": f'"{"a" * 40}"', "x-repo-commit": COMMIT, **headers}))


def altered(request):
    content = bytearray(FILES[request.name])
    content[-1] ^= 1
    return request.honest(bytes(content))


def cut(after):
    def act(request):
        content = FILES[WEIGHTS]
        begin = int(request.headers.get("range", "bytes=0-")[6:].split("-")[0])
        ranged = {"content-range": f"bytes {begin}-{len(content) - 1}/{len(content)}"} if begin else {}
        return request.say(206 if begin else 200, content[begin : begin + after], ranged, length=len(content) - begin)

    return act


def other_range(request):
    size = len(FILES[WEIGHTS])
    if "range" not in request.headers:
        return cut(1000)(request)
    return request.say(206, bytes(size - 5), {"content-range": f"bytes 5-{size - 1}/{size}"})


def cut_then(answer):
    return lambda request: answer(request) if "range" in request.headers else cut(1000)(request)


def bomb_of_gzip(request):
    body = gzip.compress(bytes(10**8), 9) * 30
    return request.say(200, body, {"content-encoding": "gzip", "etag": hash_of("x", b""), "x-repo-commit": COMMIT})


def silent(request):
    request.server.over.wait(600)
    return True


def silent_after_head(request):
    request.wfile.write(OK + b"content-length: %d\r\n\r\n" % len(FILES[request.name]))
    return silent(request)


ESCAPES = "\x1b[2J\x1b]0;owned\x07\u202e"
HTML = b"<html><script>alert(1)</script>\x1b[2J\xe2\x80\xae</html>"
# The behaviour, and what may come of it: a refusal, the model, or either.
REFUSED, WORKS, EITHER = "refused", "works", "either"
BEHAVIOURS = {
    "honest": (lambda request: False, WORKS),
    "list redirected to another host": (on("list", moved(lambda r: r.server.storage + r.path)), EITHER),
    "small files redirected to another host": (on("file", moved(lambda r: r.server.storage + r.path)), EITHER),
    "facts redirected to another host": (on("facts", moved(lambda r: r.server.storage + r.path)), EITHER),
    "redirects without end": (lambda r: moved(lambda r: r.path)(r), REFUSED),
    "redirects to ever longer addresses": (lambda r: moved(lambda r: r.path + "x" * 999)(r), REFUSED),
    "redirect to a file of this machine": (lambda r: moved(lambda r: "file:///etc/passwd")(r), REFUSED),
    "redirect with a password": (on("file", moved(lambda r: r.server.storage.replace("//", "//me:pw@") + r.path)), EITHER),
    "redirect with line ends and escapes": (on("list", lambda r: r.raw(b"HTTP/1.1 302 x\r\nlocation: /\x1b[2J\r\n\r\n")), REFUSED),
    "redirect to nowhere": (on("list", moved(lambda r: "http://[::1")), REFUSED),
    "list without end": (on("list", lambda r: r.endless(OK + b'\r\n{"siblings":[', b'{"rfilename":"a"},' * 999)), REFUSED),
    "headers without end": (on("list", lambda r: r.endless(OK, b"x-a: bbbbbbbbbbbbbbbb\r\n" * 999)), REFUSED),
    "one header without end": (on("list", lambda r: r.endless(OK + b"x-a: ", b"b" * 9999)), REFUSED),
    "a status line without end": (on("list", lambda r: r.endless(b"HTTP/1.1 200 ", b"b" * 9999)), REFUSED),
    "interim answers without end": (on("list", lambda r: r.endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n")), REFUSED),
    "small file without end": (on("file", lambda r: r.endless(OK + b"\r\n", b"{" * 9999), "config.json"), REFUSED),
    "chunks without end": (on("storage", lambda r: r.endless(OK + b"transfer-encoding: chunked\r\n\r\n", b"4\r\naaaa\r\n" * 999)), REFUSED),
    "a chunk of 2⁶⁴ bytes": (on("list", lambda r: r.raw(OK + b"transfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n{}")), REFUSED),
    "an answer that grows when it is unpacked": (on("list", bomb_of_gzip), REFUSED),
    "a small file that grows when it is unpacked": (on("file", bomb_of_gzip, "tokenizer.json"), REFUSED),
    "list that drips": (on("list", lambda r: r.endless(OK + b"\r\n{", b" ", 0.5)), REFUSED),
    "headers that drip": (on("list", lambda r: r.endless(OK, b"x: y\r\n", 0.5)), REFUSED),
    "small file that drips": (on("file", lambda r: r.endless(OK + b"content-length: 1790\r\n\r\n", b" ", 0.5), "config.json"), REFUSED),
    "weights that drip": (on("storage", lambda r: r.endless(OK + b"content-length: 1190440\r\n\r\n", b"x", 0.5)), REFUSED),
    "silence": (on("list", silent), REFUSED),
    "silence after the headers": (on("file", silent_after_head), REFUSED),
    "silence of the storage host": (on("storage", silent_after_head), REFUSED),
    "no answer": (lambda request: request.raw(b""), REFUSED),
    "no HTTP": (on("list", lambda r: r.raw(b"\x1b[2J\xff\0 hello\r\n\r\n")), REFUSED),
    "another version of HTTP": (on("list", lambda r: r.raw(b"HTTP/9.9 200 OK\r\n\r\n{}")), REFUSED),
    "status 999": (on("list", says(999, HTML)), REFUSED),
    "sizes too large": (sized(lambda size: size + 1), EITHER),
    "sizes too small": (sized(lambda size: size - 1), EITHER),
    "sizes of an exabyte": (sized(lambda size: 10**18), EITHER),
    "sizes below zero": (sized(lambda size: -1), EITHER),
    "another length of the weights": (on("storage", says(200, b"evil")), REFUSED),
    "weights altered": (on("storage", altered), REFUSED),
    "a small file altered": (on("file", altered, "generation_config.json"), REFUSED),
    "config altered": (on("file", altered, "config.json"), REFUSED),
    "cut after each 1,000 bytes": (on("storage", cut(1000)), EITHER),
    "cut once": (on("storage", lambda r: "range" not in r.headers and cut(100_000)(r)), WORKS),
    "another range than was asked for": (on("storage", other_range), REFUSED),
    "range ignored": (on("storage", cut_then(lambda r: r.say(200, FILES[WEIGHTS]))), WORKS),
    "range refused": (on("storage", cut_then(says(416))), REFUSED),
    "a range of another file": (on("storage", cut_then(says(206, b"x" * 99, {"content-range": "bytes 1000-1098/99999"}))), REFUSED),
    "names that lead out": (named("../../evil", "/tmp/evil", "..\\evil", ".git/../../evil", "a/../../../evil"), EITHER),
    "names that lead out, in the index": (indexed("../../../../evil.safetensors"), REFUSED),
    "an absolute name in the index": (indexed("/etc/passwd"), REFUSED),
    "names with escapes": (named(ESCAPES, f"{ESCAPES}.safetensors", "a\nb"), EITHER),
    "names with escapes in the index": (indexed(f"{ESCAPES}.safetensors"), REFUSED),
    "a name of 100,000 letters": (named("a" * 100_000), EITHER),
    "a name of 100,000 letters in the index": (indexed("a" * 100_000 + ".safetensors"), REFUSED),
    "300,000 names": (lambda r: lists(siblings=[*listing()["siblings"], *({"rfilename": f"a{n}"} for n in range(300_000))])(r), EITHER),
    "the same name twice": (lists(siblings=[*listing()["siblings"], {"rfilename": "config.json", "size": 1}]), EITHER),
    "a commit that leads out": (lists(sha="../../../evil"), REFUSED),
    "a commit with escapes": (lists(sha=ESCAPES), REFUSED),
    "an etag that leads out": (facts(etag='"../../../../evil"'), REFUSED),
    "an etag of 100,000 letters": (facts(etag='"' + "a" * 60_000 + '"'), REFUSED),
    "no etag": (on("facts", says(200, b"", {"x-repo-commit": COMMIT})), REFUSED),
    "a commit header that leads out": (facts(x_repo_commit="../../evil"), EITHER),
    "HTML in the place of the list": (on("list", says(200, HTML)), REFUSED),
    "HTML with an error": (lambda request: request.say(500, HTML), REFUSED),
    "escapes in the headers of an error": (on("facts", says(403, HTML, {"x-error-code": "GatedRepo", "x-error-message": "\x1b[2J owned"})), REFUSED),
    "a model that is gated": (on("file", says(401, HTML, {"x-error-code": "GatedRepo"})), REFUSED),
    "too many requests, for a century": (lambda request: request.say(429, b"", {"retry-after": "3155760000"}), REFUSED),
    "too many requests, for -1 s": (lambda request: request.say(429, b"", {"retry-after": "-1"}), REFUSED),
    "a list 100,000 deep": (on("list", says(200, b"[" * 100_000)), REFUSED),
    "a list of other types": (lists(siblings={"a": 1}), REFUSED),
}  # fmt: skip


def behaviours(context):
    row = context.row("malicious hub, with a canary token")
    cases = [case for case in BEHAVIOURS if row.wants(case)]
    # Nearly all of their time is waiting.
    with ThreadPoolExecutor(6) as pool:
        for case, (done, wrong) in zip(cases, pool.map(lambda case: one(context, *BEHAVIOURS[case]), cases)):
            row.tried(case, wrong, "refused in words" if done.code else "trained", done)
            print(f"    {case}: exit {done.code} in {done.wall_s:.0f} s: {ascii(done.err.strip().splitlines()[-1:])[:150]}", flush=True)


def server_of(behaviour, over, is_storage):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.behaviour, server.over, server.is_storage, server.seen = behaviour, over, is_storage, []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def one(context, behaviour, expected):
    over = threading.Event()
    hub, storage = server_of(behaviour, over, False), server_of(behaviour, over, True)
    hub.storage = storage.storage = f"http://127.0.0.1:{storage.server_port}"
    with context.place() as place:
        place.chats()
        env = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HUB_OFFLINE": "0", "HF_TOKEN": CANARY, "HF_HUB_DOWNLOAD_TIMEOUT": 3}
        # The limit of a list is a minute, that of a file too, and a hub that says so is asked again after two minutes, four times.
        done = place.run(*place.train("--max-steps", "1", model=ID), env=env, seconds=700)
        over.set()
        wrong = bounds(done, seconds=30, memory=1 << 30)
        if done.code not in (0, 2, 3, 4, 69):
            wrong.append(done.short())
        if (done.code == 0) != (expected == WORKS) and expected != EITHER:
            wrong.append(f"{expected} was expected: {done.short()}")
        if done.code and ID not in done.said and "127.0.0.1" not in done.said:
            wrong.append(f"names neither model nor host: {done.short()}")
        wrong += [word for word in [active(done.said)] if word]
        wrong += left_behind(place, done)
        if [seen for seen in storage.seen if seen[2]]:
            wrong.append("the token was sent to the storage host")
        if not any(CANARY in seen[2] for seen in hub.seen):
            wrong.append("the hub itself did not get the token, so nothing was tested")
    for server in (hub, storage):
        server.shutdown()
        server.server_close()
    return done, wrong


def left_behind(place, done):
    """The token in a file or in words, files outside of the place, and files that are not the model's."""
    wrong = ["the token is in the output"] if CANARY in done.said else []
    outside = [name for name in os.listdir(place.outer) if name != "place"] + [path for path in ("/tmp/evil", "/evil") if os.path.lexists(path)]
    wrong += [f"wrote {name} outside" for name in outside]
    for path in place.path.rglob("*"):
        if "evil" in path.name and ".no_exist" not in str(path):
            wrong.append(f"there is a file {path.name[:50]!r}")
        if path.is_file() and not path.is_symlink() and CANARY.encode() in path.read_bytes():
            wrong.append(f"the token is in {path.name}")
        # The list of shards is another one for each behaviour, and hashes are checked.
        is_kept = "snapshots" in path.parts and path.is_file() and not path.name.endswith(".index.json")
        if is_kept and path.read_bytes() != FILES.get(path.name):
            wrong.append(f"{path.name} of the snapshot is not the hub's")
    return wrong
