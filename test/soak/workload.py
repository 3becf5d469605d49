"""What a sandbox does while its life cycle is tried: it keeps data that would show the loss of a byte.

  workload.py run            writes until it is ended; reports its state to clients that connect to port 8080 and send nothing;
  workload.py verify N HASH  checks what is on the disk, and that the chain of rows continues from row N, whose hash that was;
                             says {"rows": ..., "hash": ..., "files": ...}

SQLite (Python's own module, which is the C library) in WAL mode with synchronous=FULL: a writer whose rows form a hash
chain, and a reader beside it. Files of random bytes whose SHA-256 is in a list that is synced after them. A TCP server
with connections over loopback that stay open and count, so that one that broke or lost a byte is seen.
"""
import hashlib, json, os, random, socket, sqlite3, sys, threading, time

DB, FILES, LIST = "/data/load.sqlite", "/data/files", "/data/files.list"
CONNECTIONS = 5
state = {"pid": os.getpid(), "nonce": os.urandom(16).hex(), "acked": 0, "reads": 0, "files": 0, "open": 0, "pings": 0, "errors": []}


def guarded(work, *arguments):
    def run():
        try:
            work(*arguments)
        except BaseException as error:
            state["errors"].append(f"{work.__name__}: {error!r}")

    threading.Thread(target=run, daemon=True).start()


def connect():
    db = sqlite3.connect(DB, timeout=60, isolation_level=None)
    assert db.execute("pragma journal_mode=wal").fetchone()[0] == "wal"
    db.execute("pragma synchronous=full")
    return db


def link(before, payload):
    return hashlib.sha256(before.encode() + payload).hexdigest()


def writer():
    db = connect()
    db.execute("create table if not exists rows (n integer primary key, payload blob not null, hash text not null)")
    n, last = db.execute("select n, hash from rows order by n desc limit 1").fetchone() or (0, "")
    state["acked"] = n
    while True:
        db.execute("begin immediate")
        for _ in range(4):
            n += 1
            payload = os.urandom(random.randint(100, 1000))
            last = link(last, payload)
            db.execute("insert into rows values (?, ?, ?)", (n, payload, last))
        db.execute("commit")
        state["acked"] = n
        time.sleep(0.02)


def reader():
    db = connect()
    while True:
        rows = db.execute("select n, payload, hash from rows order by n desc limit 8").fetchall()
        for (_, payload, found), (_, _, before) in zip(rows, rows[1:]):
            assert link(before, payload) == found, "a row is not what was written"
        state["reads"] += 1
        time.sleep(0.05)


def files():
    """Forty at a time: a line for each once it is on the disk, and one with a minus before it goes."""
    os.makedirs(FILES, exist_ok=True)
    listed = open(LIST, "ab", buffering=0)
    names = sorted(listing())

    def note(line):
        listed.write(line.encode() + b"\n")
        os.fsync(listed.fileno())

    while True:
        data, name = os.urandom(65536), os.urandom(8).hex()
        with open(f"{FILES}/{name}", "wb") as file:
            file.write(data)
            os.fsync(file.fileno())
        note(f"{hashlib.sha256(data).hexdigest()} {name}")
        names.append(name)
        if len(names) > 40:
            note(f"- {names[0]}")
            os.unlink(f"{FILES}/{names.pop(0)}")
        state["files"] += 1
        time.sleep(0.5)


def listing():
    found = {}
    lines = open(LIST, "rb").read().split(b"\n")[:-1] if os.path.exists(LIST) else []
    for line in lines:
        digest, name = line.decode().split(" ")
        if digest == "-":
            del found[name]
        else:
            found[name] = digest
    return found


def serve(connection):
    expected = 0
    with connection:
        stream = connection.makefile("rwb", buffering=0)
        while line := stream.readline():
            if line == b"status\n":
                stream.write(json.dumps(state).encode() + b"\n")
                continue
            if expected == 0:
                state["open"] += 1
            expected += 1
            assert int(line) == expected, f"{line} came, {expected} was to come"
            stream.write(line)
        if expected > 0:
            state["open"] -= 1


def server(listening):
    while True:
        connection, _ = listening.accept()
        # Not a closure: the next connection may be here before the thread begins.
        guarded(serve, connection)


def client():
    stream = socket.create_connection(("127.0.0.1", 8080)).makefile("rwb", buffering=0)
    number = 0
    while True:
        number += 1
        stream.write(f"{number}\n".encode())
        assert stream.readline() == f"{number}\n".encode(), "a connection lost something"
        state["pings"] += 1
        time.sleep(0.05)


def verify(n, last):
    db = connect()
    assert db.execute("pragma integrity_check").fetchone()[0] == "ok"
    if n > 0:
        found = db.execute("select hash from rows where n = ?", (n,)).fetchone()
        assert found == (last,), f"row {n} is not what it was"
    for number, payload, found in db.execute("select n, payload, hash from rows where n > ? order by n", (n,)):
        n, last = n + 1, link(last, payload)
        assert number == n and found == last, f"row {n} is not what was written"
    listed = listing()
    for name, digest in listed.items():
        try:
            with open(f"{FILES}/{name}", "rb") as file:
                found = hashlib.sha256(file.read()).hexdigest()
        except FileNotFoundError:
            # The workload continues meanwhile, and says first what it removes.
            assert name not in listing(), f"{name} is gone"
            continue
        assert found == digest, f"{name} is not what was written"
    print(json.dumps({"rows": n, "hash": last, "files": len(listed)}))


if sys.argv[1] == "verify":
    verify(int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")
else:
    os.makedirs("/data", exist_ok=True)
    connect().execute("create table if not exists rows (n integer primary key, payload blob not null, hash text not null)")
    # Before a client connects to it.
    guarded(server, socket.create_server(("", 8080)))
    for work in (writer, reader, files):
        guarded(work)
    for _ in range(CONNECTIONS):
        guarded(client)
    while True:
        time.sleep(3600)
