"""Holes, flags of open, copies, times and mappings."""
import ctypes, mmap, os, time

from check import attempt, base, call, check, content, in_child, path, put


@check
def sparse_file():
    fd = put('sparse')
    os.pwrite(fd, b'end', 100 << 20)
    os.fsync(fd)
    facts = os.fstat(fd)
    return [facts.st_size, facts.st_blocks < 2048, os.lseek(fd, 0, os.SEEK_DATA) >= 99 << 20, os.lseek(fd, 0, os.SEEK_HOLE),
            os.pread(fd, 4, 50 << 20).hex()]


@check
def allocation():
    fd = put('allocated')
    call('fallocate', fd, 0, ctypes.c_long(0), ctypes.c_long(4 << 20))
    full = os.fstat(fd).st_blocks * 512 >= 4 << 20
    os.pwrite(fd, b'x' * 8192, 0)
    call('fallocate', fd, 3, ctypes.c_long(0), ctypes.c_long(4096))
    return [full, os.fstat(fd).st_size, os.pread(fd, 2, 4095).hex()]


@check
def truncation():
    fd = put('truncated', b'123456')
    os.ftruncate(fd, 3)
    os.ftruncate(fd, 5)
    return [os.pread(fd, 9, 0).hex(), attempt(lambda: os.truncate(path('full'), 0))]


@check
def flags_of_open():
    os.close(put('flags', b'12'))
    appended = os.open(path('flags'), os.O_WRONLY | os.O_APPEND)
    os.write(appended, b'3')
    os.pwrite(appended, b'4', 0)
    one = lambda name, flags: attempt(lambda: os.close(os.open(path(name), flags)))
    return [content('flags'), one('flags', os.O_CREAT | os.O_EXCL), one('flags', os.O_DIRECTORY), one('full', os.O_WRONLY),
            one('none', os.O_RDONLY), one('flags/x', os.O_RDONLY), one('flags', os.O_RDWR | os.O_SYNC)]


@check
def nameless_file():
    fd = os.open(base, os.O_TMPFILE | os.O_RDWR)
    os.write(fd, b'named later')
    os.link('/proc/self/fd/%d' % fd, path('named'), follow_symlinks=True)
    return content('named')


@check
def direct_reads_and_writes():
    fd = os.open(path('direct'), os.O_CREAT | os.O_RDWR | os.O_DIRECT)
    page = mmap.mmap(-1, 4096)
    page.write(b'd' * 4096)
    return [os.pwritev(fd, [page], 0), os.preadv(fd, [page], 0), page[:2].decode()]


@check
def copies():
    fd = put('original', b'copy me')
    target = put('copied')
    os.copy_file_range(fd, target, 7, 0, 0)
    return content('copied')


@check
def syncs():
    fd = put('synced', b'x')
    os.fsync(fd)
    os.fdatasync(fd)
    folder = os.open(base, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(folder)
    call('syncfs', fd)
    return 'done'


@check
def times():
    os.close(put('times'))
    os.utime(path('times'), ns=(1234567890123456789, 987654321987654321))
    facts = os.stat(path('times'))
    os.close(put('times', b'changed'))
    after = os.stat(path('times'))
    return [facts.st_atime_ns, facts.st_mtime_ns, abs(after.st_mtime - time.time()) < 600, after.st_ctime_ns >= facts.st_ctime_ns]


@check
def shared_mapping():
    fd = put('mapped', b'a' * 8192)
    with mmap.mmap(fd, 8192) as memory:
        memory[0:1] = b'b'
        memory.flush()
        read_back = os.pread(fd, 1, 0).decode()
        other = in_child(lambda: mmap.mmap(os.open(path('mapped'), os.O_RDWR), 8192).__setitem__(slice(1, 2), b'c'))
        return [read_back, memory[1:2].decode(), other]


@check
def private_mapping():
    fd = put('mapped-privately', b'a' * 4096)
    with mmap.mmap(fd, 4096, flags=mmap.MAP_PRIVATE) as memory:
        memory[0:1] = b'b'
        return os.pread(fd, 1, 0).decode()


@check
def mapping_after_a_write():
    fd = put('mapped-again', b'a' * 4096)
    with mmap.mmap(fd, 4096) as memory:
        before = memory[0:1].decode()
        os.pwrite(fd, b'b', 0)
        return [before, memory[0:1].decode()]
