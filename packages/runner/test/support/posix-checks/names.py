"""Links, renames, names and folders."""
import os, stat

from check import attempt, check, content, path, put, rename2


@check
def hard_links():
    os.close(put('first', b'same'))
    os.link(path('first'), path('second'))
    again = attempt(lambda: os.link(path('first'), path('second')))
    a, b = os.stat(path('first')), os.stat(path('second'))
    os.unlink(path('first'))
    return [a.st_nlink, a.st_ino == b.st_ino, again, os.stat(path('second')).st_nlink, content('second')]


@check
def symbolic_links():
    os.symlink(b'x' * 4000, path('long'))
    os.symlink('loop', path('loop'))
    os.symlink('missing', path('dangling'))
    return [len(os.readlink(path('long'))), attempt(lambda: os.stat(path('loop'))), attempt(lambda: os.stat(path('dangling'))),
            attempt(lambda: os.open(path('loop'), os.O_RDONLY | os.O_NOFOLLOW)), os.lstat(path('dangling')).st_size]


@check
def renames():
    for name in 'abc':
        os.close(put('rename-' + name, name.encode()))
    os.rename(path('rename-a'), path('rename-b'))
    kept = attempt(lambda: rename2('rename-b', 'rename-c', 1))
    rename2('rename-b', 'rename-c', 2)
    os.makedirs(path('outer/inner'))
    os.mkdir(path('full'))
    os.close(put('full/file'))
    return [content('rename-b'), content('rename-c'), kept, attempt(lambda: os.rename(path('outer'), path('outer/inner/x'))),
            attempt(lambda: os.rename(path('outer'), path('full'))), attempt(lambda: os.rename(path('rename-b'), path('full'))),
            attempt(lambda: os.rmdir(path('full')))]


@check
def whiteout():
    os.close(put('out', b'x'))
    rename2('out', 'moved-out', 4)
    return stat.S_ISCHR(os.lstat(path('out')).st_mode)


@check
def unlinked_file():
    fd = put('unlinked', b'still ')
    os.unlink(path('unlinked'))
    os.write(fd, b'here')
    os.fchmod(fd, 0o600)
    os.ftruncate(fd, 10)
    os.lseek(fd, 0, os.SEEK_SET)
    return [os.read(fd, 20).decode(), os.fstat(fd).st_nlink, os.path.exists(path('unlinked'))]


@check
def unlinked_file_opened_again():
    fd = put('reopened', b'again')
    os.unlink(path('reopened'))
    with open('/proc/self/fd/%d' % fd, 'rb') as file:
        return file.read().decode()


@check
def names():
    odd = [b'\xff\xfe not UTF-8', b'line\nbreak', 'ä'.encode(), b'n' * 255, b' ', b'-rf', b'back\\slash']
    os.mkdir(path('names'))
    for name in odd:
        os.close(put(b'names/' + name))
    return [sorted(os.listdir(path('names'))) == sorted(odd), attempt(lambda: put(b'names/' + b'n' * 256)),
            attempt(lambda: os.stat(path('names') + b'/x' * 2500))]


@check
def large_folder():
    os.mkdir(path('large'))
    wanted = ['%d-%s' % (i, 'x' * (i % 90)) for i in range(600)]
    for name in wanted:
        os.close(put('large/' + name))
    with os.scandir(path('large')) as entries:
        found = [(os.fsdecode(entry.name), entry.is_file()) for entry in entries]
    return [len(found), sorted(found) == sorted((name, True) for name in wanted)]


@check
def folder_emptied_while_it_is_read():
    with os.scandir(path('large')) as entries:
        for entry in entries:
            os.unlink(entry.path)
    return os.listdir(path('large'))
