"""Locks, notifications, special files, programs and limits."""
import ctypes, fcntl, os, socket, stat, struct, subprocess

from check import attempt, base, call, check, in_child, libc, path, put


@check
def locks_of_files():
    fd, other = put('locked'), os.open(path('locked'), os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    refused = attempt(lambda: fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB))
    fcntl.flock(fd, fcntl.LOCK_UN)
    return [refused, attempt(lambda: fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB))]


@check
def locks_of_ranges():
    fd = put('ranges', b'x' * 100)
    fcntl.lockf(fd, fcntl.LOCK_EX, 10, 0)
    lock = lambda start: in_child(
        lambda: fcntl.lockf(os.open(path('ranges'), os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB, 5, start))
    return [lock(5), lock(20)]


@check
def notifications():
    fd = libc.inotify_init1(os.O_NONBLOCK)
    call('inotify_add_watch', fd, base, 0x100 | 0x200 | 0x2)
    os.close(put('noticed', b'x'))
    os.unlink(path('noticed'))
    events, masks = os.read(fd, 4096), []
    while events:
        _, mask, _, length = struct.unpack_from('iIII', events)
        masks.append(mask)
        events = events[16 + length:]
    return sorted(set(masks))


@check
def pipes_and_sockets():
    os.mkfifo(path('fifo'))
    os.chdir(base)
    server = socket.socket(socket.AF_UNIX)
    server.bind('socket')
    server.listen(1)
    client = socket.socket(socket.AF_UNIX)
    client.connect('socket')
    pid = os.fork()
    if pid == 0:
        os.write(os.open('fifo', os.O_WRONLY), b'through')
        os._exit(0)
    text = os.read(os.open('fifo', os.O_RDONLY), 20).decode()
    os.waitpid(pid, 0)
    os.chdir('/')
    return [text, stat.S_ISSOCK(os.stat(path('socket')).st_mode)]


@check
def device_files():
    os.mknod(path('null'), stat.S_IFCHR | 0o666, os.makedev(1, 3))
    return 'made'


@check
def programs():
    os.close(put('script', b'#!/bin/sh\necho ran\n', mode=0o755))
    with open('/bin/true', 'rb') as file:
        os.close(put('binary', file.read(), mode=0o755))
    plain = put('plain', b'#!/bin/sh\n')
    os.close(plain)
    return [subprocess.run([path('script')], capture_output=True).stdout.decode(), subprocess.run([path('binary')]).returncode,
            attempt(lambda: subprocess.run([path('plain')]))]


@check
def program_of_another_user():
    with open('/usr/bin/id', 'rb') as file:
        os.close(put('id', file.read()))
    os.chmod(path('id'), 0o4755)
    return in_child(lambda: subprocess.run([path('id'), '-u'], capture_output=True).stdout.decode(), uid=1000)


@check
def running_program():
    with open('/bin/sleep', 'rb') as file:
        os.close(put('busy', file.read(), mode=0o755))
    child = subprocess.Popen([path('busy'), '60'])
    refused = attempt(lambda: os.open(path('busy'), os.O_WRONLY))
    child.kill()
    child.wait()
    return refused


@check
def file_beyond_the_disk():
    fd = put('huge')
    os.ftruncate(fd, 1 << 40)
    os.pwrite(fd, b'x', (1 << 40) - 1)
    return os.fstat(fd).st_size


@check
def flags_of_files():
    fd = put('flagged')
    return fcntl.ioctl(fd, 0x80086601, b'\0' * 8) != b''


@check
def handles_of_files():
    os.close(put('handled'))
    handle = ctypes.create_string_buffer(struct.pack('Ii', 128, 0), 200)
    mount = ctypes.c_int()
    call('name_to_handle_at', -100, path('handled'), handle, ctypes.byref(mount), 0)
    return 'made'


@check
def space():
    facts = os.statvfs(base)
    return [facts.f_namemax, facts.f_bfree > 0, facts.f_ffree > 0]


@check
def removed_working_folder():
    os.mkdir(path('gone'))
    os.chdir(path('gone'))
    os.rmdir(path('gone'))
    answer = attempt(lambda: os.listdir('.')), attempt(lambda: put('gone/x'))
    os.chdir('/')
    return list(answer)
