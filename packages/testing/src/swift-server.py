"""OpenStack Swift with its S3 API in one process, for tests: one proxy, one disk, one replica, one user.

Arguments: a folder for its data, new or that of a server that was killed. Prints the port that it listens on at 127.0.0.1, and runs until it is killed.
The user is test:tester, its secret is testing; signatures are checked by s3api.
"""
import eventlet

eventlet.monkey_patch()

import array  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402

from eventlet import wsgi  # noqa: E402
from swift.common import utils  # noqa: E402
from swift.common.ring import RingData  # noqa: E402
from swift.common.utils import NullLogger  # noqa: E402
from swift.common.wsgi import loadapp  # noqa: E402

try:
    from swift.common.http_protocol import SwiftHttpProtocol
except ImportError:
    from swift.common.wsgi import SwiftHttpProtocol

PROXY = """
[DEFAULT]
swift_dir = {folder}
log_level = CRITICAL

[pipeline:main]
pipeline = catch_errors gatekeeper proxy-logging s3api tempauth bulk slo dlo proxy-logging proxy-server

[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
node_timeout = 120
conn_timeout = 60

[filter:catch_errors]
use = egg:swift#catch_errors

[filter:gatekeeper]
use = egg:swift#gatekeeper

[filter:proxy-logging]
use = egg:swift#proxy_logging

[filter:s3api]
use = egg:swift#s3api
location = us-east-1
storage_domain = s3.test,s3.us-east-1.amazonaws.com

[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin

[filter:bulk]
use = egg:swift#bulk

[filter:slo]
use = egg:swift#slo

[filter:dlo]
use = egg:swift#dlo
"""

BACKEND = """
[DEFAULT]
swift_dir = {folder}
devices = {folder}/devices
mount_check = false
disable_fallocate = true
log_level = CRITICAL

[pipeline:main]
pipeline = {kind}-server

[app:{kind}-server]
use = egg:swift#{kind}
"""


class Cache:
    """What memcached is for several processes: s3api refuses to work without."""

    def __init__(self):
        self.values = {}

    def set(self, key, value, *_args, **_named):
        self.values[key] = value

    def get(self, key, *_args, **_named):
        return self.values.get(key)

    def delete(self, key, *_args, **_named):
        self.values.pop(key, None)


def with_cache(app):
    cache = Cache()

    def cached(env, start_response):
        env["swift.cache"] = cache
        return app(env, start_response)

    return cached


def main(folder):
    # Instead of those in /etc/swift/swift.conf. Rings are not loaded without.
    utils.HASH_PATH_SUFFIX = b"test"
    os.makedirs(os.path.join(folder, "devices", "disk", "tmp"), exist_ok=True)
    sockets = {"proxy": eventlet.listen(("127.0.0.1", 0))}
    for kind in ("account", "container", "object"):
        sockets[kind] = eventlet.listen(("127.0.0.1", 0))
        device = {"id": 0, "region": 1, "zone": 1, "weight": 1.0, "device": "disk", "meta": ""}
        for prefix in ("", "replication_"):
            device[prefix + "ip"] = "127.0.0.1"
            device[prefix + "port"] = sockets[kind].getsockname()[1]
        RingData([array.array("H", [0])], [device], 32).save(os.path.join(folder, kind + ".ring.gz"))
    servers = []
    for kind, socket in sockets.items():
        conf = os.path.join(folder, kind + "-server.conf")
        with open(conf, "w") as file:
            file.write((PROXY if kind == "proxy" else BACKEND).format(folder=folder, kind=kind))
        app = loadapp(conf)
        if kind == "proxy":
            app = with_cache(app)
        servers.append(
            eventlet.spawn(wsgi.server, socket, app, NullLogger(), protocol=SwiftHttpProtocol,
                           capitalize_response_headers=False)
        )
    print(sockets["proxy"].getsockname()[1], flush=True)
    for server in servers:
        server.wait()


main(sys.argv[1])
