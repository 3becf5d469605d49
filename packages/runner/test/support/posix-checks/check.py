"""What the checks share. The first argument of the program is the folder that they use."""
import ctypes, errno, json, os, sys

base = os.fsencode(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
results = {}


def path(name):
    return os.path.join(base, os.fsencode(name))


def put(name, data=b'', mode=0o644):
    fd = os.open(path(name), os.O_CREAT | os.O_TRUNC | os.O_RDWR, mode)
    os.write(fd, data)
    return fd


def content(name):
    with open(path(name), 'rb') as file:
        return file.read().decode()


def attempt(action):
    try:
        return action()
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))


def in_child(action, uid=None, gid=None, groups=()):
    """The result of an action in another process, perhaps of another user."""
    there, here = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if uid is not None:
                os.setgroups(list(groups))
                os.setgid(uid if gid is None else gid)
                os.setuid(uid)
            answer = attempt(action)
        except BaseException as error:  # noqa: the parent shows it
            answer = repr(error)
        os.write(here, json.dumps(answer).encode())
        os._exit(0)
    os.close(here)
    with os.fdopen(there) as pipe:
        answer = json.loads(pipe.read())
    os.waitpid(pid, 0)
    return answer


def call(name, *args):
    if getattr(libc, name)(*args) < 0:
        raise OSError(ctypes.get_errno(), name)


def rename2(a, b, flags):
    call('renameat2', -100, path(a), -100, path(b), flags)


def check(action):
    results[action.__name__] = attempt(action)
