"""Owners, modes, attributes and access control lists."""
import os, struct

from check import attempt, check, content, in_child, path, put


@check
def owner_of_a_new_file():
    os.mkdir(path('open'), 0o777)
    os.chmod(path('open'), 0o777)
    in_child(lambda: os.close(put('open/own')), uid=1000, gid=2000)
    facts = os.stat(path('open/own'))
    return [facts.st_uid, facts.st_gid]


@check
def change_of_owner_and_mode():
    os.close(put('owned'))
    os.chown(path('owned'), 3000, 4000)
    os.chmod(path('owned'), 0o7751)
    facts = os.stat(path('owned'))
    return [facts.st_uid, facts.st_gid, oct(facts.st_mode)]


@check
def set_user_id_after_a_write_of_another_user():
    os.close(put('setuid'))
    os.chmod(path('setuid'), 0o6777)

    def write():
        fd = os.open(path('setuid'), os.O_WRONLY)
        os.write(fd, b'x')
        return oct(os.fstat(fd).st_mode)

    return in_child(write, uid=1000)


@check
def highest_user():
    os.close(put('high'))
    os.chown(path('high'), 65535, 65535)
    return os.stat(path('high')).st_uid


@check
def user_beyond_65535():
    os.close(put('beyond'))
    return os.chown(path('beyond'), 70000, 70000)


@check
def file_of_another_user():
    os.close(put('private', mode=0o600))
    return in_child(lambda: os.close(os.open(path('private'), os.O_RDONLY)), uid=1000)


@check
def file_of_a_supplementary_group():
    os.close(put('group', b'read', mode=0o640))
    os.chown(path('group'), 0, 5000)
    return in_child(lambda: content('group'), uid=1000, groups=[5000])


@check
def set_group_id_folder():
    os.mkdir(path('setgid'))
    os.chown(path('setgid'), 0, 5000)
    os.chmod(path('setgid'), 0o2777)
    in_child(lambda: os.close(put('setgid/file')), uid=1000)
    os.mkdir(path('setgid/folder'))
    return [os.stat(path('setgid/file')).st_gid, oct(os.stat(path('setgid/folder')).st_mode)]


@check
def sticky_folder():
    os.mkdir(path('sticky'))
    os.chmod(path('sticky'), 0o1777)
    os.close(put('sticky/file'))
    return in_child(lambda: os.unlink(path('sticky/file')), uid=1000)


@check
def mode_mask():
    before = os.umask(0o027)
    os.close(put('masked', mode=0o666))
    os.mkdir(path('masked-folder'), 0o777)
    os.umask(before)
    return [oct(os.stat(path(name)).st_mode) for name in ('masked', 'masked-folder')]


@check
def user_attributes():
    os.close(put('attributes'))
    name = path('attributes')
    os.setxattr(name, 'user.one', b'1')
    os.setxattr(name, 'user.large', b'x' * 3000)
    again = attempt(lambda: os.setxattr(name, 'user.one', b'2', os.XATTR_CREATE))
    found = sorted(os.listxattr(name))
    os.removexattr(name, 'user.one')
    return [found, again, len(os.getxattr(name, 'user.large')), attempt(lambda: os.getxattr(name, 'user.one'))]


@check
def trusted_attributes():
    os.close(put('trusted'))
    os.setxattr(path('trusted'), 'trusted.one', b'1')
    return os.getxattr(path('trusted'), 'trusted.one').decode()


@check
def file_capabilities():
    os.close(put('capable', mode=0o755))
    os.setxattr(path('capable'), 'security.capability', struct.pack('<5I', 0x02000001, 1 << 10, 0, 0, 0))
    return os.getxattr(path('capable'), 'security.capability').hex()


@check
def access_control_list():
    os.close(put('listed', b'read', mode=0o600))
    entry = lambda tag, perm, who=0xFFFFFFFF: struct.pack('<HHI', tag, perm, who)
    os.setxattr(path('listed'), 'system.posix_acl_access', struct.pack('<I', 2) + entry(1, 6) + entry(2, 4, 1000) +
                entry(4, 0) + entry(16, 4) + entry(32, 0))
    return [in_child(lambda: content('listed'), uid=1000), in_child(lambda: content('listed'), uid=1001)]
