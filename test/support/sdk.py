"""The Python SDK against a service: its generated models refuse a field that is absent or has another type."""

import sys

from daytona import (
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    Daytona,
    DaytonaConfig,
    DaytonaError,
    DaytonaNotFoundError,
    Resources,
)

key, url, version = sys.argv[1:]
daytona = Daytona(DaytonaConfig(api_key=key, api_url=url))
name = f"python-{version}"


def fails(kind, call, text):
    try:
        call()
    except DaytonaError as error:
        assert type(error) is kind, (type(error), error)
        assert text in str(error), error
    else:
        raise AssertionError(f"nothing failed with {text}")


small = Resources(cpu=1, memory=1, disk=1)
sandbox = daytona.create(
    CreateSandboxFromImageParams(
        image="busybox",
        name=name,
        env_vars={"A": "b"},
        labels={"team": "x"},
        resources=small,
        auto_stop_interval=60,
        auto_delete_interval=60,
    )
)
assert sandbox.state == "started", sandbox.state
assert (sandbox.cpu, sandbox.memory, sandbox.labels["team"]) == (1, 1, "x")
answer = sandbox.process.exec("echo $A; exit 3")
assert (answer.exit_code, answer.result) == (3, "b\n"), answer
assert daytona.get(name).id == sandbox.id
assert [one.name for one in daytona.list()] == [name]
sandbox.fs.upload_file("öl\n".encode(), "/tmp/öl")
assert sandbox.fs.download_file("/tmp/öl") == "öl\n".encode()
assert any(info.name == "öl" for info in sandbox.fs.list_files("/tmp"))
assert (sandbox.auto_stop_interval, sandbox.auto_delete_interval) == (60, 60)
assert not sandbox.get_preview_link(3000).url.endswith("/")
signed = sandbox.create_signed_preview_url(3000, 60)
assert signed.token in signed.url
sandbox.expire_signed_preview_url(3000, signed.token)
if version != "0.190.1":  # which gives up on a terminal that does not answer within 100 ms
    output = bytearray()
    terminal = sandbox.process.create_pty_session(id="far", envs={"GREETING": "hello"})
    terminal.send_input("echo $GREETING-$((6 * 7)); exit 3\n")
    ended = terminal.wait(on_data=output.extend)
    assert (ended.exit_code, b"hello-42" in output) == (3, True), (ended, output)
snapshots = daytona.snapshot.list()
assert any(one.name == "busybox" and one.general for one in snapshots.items), snapshots
assert daytona.snapshot.get("busybox").state == "active"
fails(DaytonaNotFoundError, lambda: daytona.get("nowhere"), "not found")
fails(DaytonaError, lambda: sandbox.archive(), "sandbox archive is not supported")
fails(DaytonaNotFoundError, lambda: daytona.create(CreateSandboxFromSnapshotParams(snapshot="Not-A-Reference")), "not found")
sandbox.stop()
assert sandbox.state in ("stopped", "destroyed"), sandbox.state
fails(DaytonaError, sandbox.start, "not supported")
sandbox.delete()
print("all passed")
