import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { cp, mkdir, readdir, readFile, stat, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { SandboxSpec } from '@releap/contract';
import { until } from '@releap/testing/eventually';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { isAlive, type ProcessIdentity } from '../src/vmm/process-identity.ts';
import { BUILD_DIR } from './support/machines.ts';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { vmFacts } from './support/runner-process.ts';
import { TestRunner } from './support/sandboxes.ts';
import { SPEC } from './support/sandbox-spec.ts';

isolateNetwork(fileURLToPath(import.meta.url));

/** Persistent, with Debian; another with busybox alone, which ends with its VM. */
const ONE = '0a0a0a0a-2222-4333-8444-000000000001';
const TWO = '0a0a0a0a-2222-4333-8444-000000000002';
const THREE = '0a0a0a0a-2222-4333-8444-000000000003';
const FOUR = '0a0a0a0a-2222-4333-8444-000000000005';
const TOO_EARLY = '0a0a0a0a-2222-4333-8444-000000000004';
const VOLUME = '0b0b0b0b-2222-4333-8444-000000000001';
const OTHER = '0b0b0b0b-2222-4333-8444-000000000002';

const BASE: SandboxSpec = { ...SPEC, scratch_mib: 256, ports: [] };
const WITH_DEBIAN: SandboxSpec = {
  ...BASE,
  root: { type: 'builtin', name: 'debian' },
  entrypoint: ['/bin/sh', '-c', 'cat /data/before-the-entrypoint > /see; mv /see /seen; exec sleep 100000'],
  volumes: [
    { id: VOLUME, mount_path: '/data' },
    { id: OTHER, mount_path: '/data/other' },
  ],
};
const WITH_BUSYBOX: SandboxSpec = {
  ...BASE,
  persistent: false,
  volumes: [
    { id: VOLUME, mount_path: '/shared' },
    { id: VOLUME, mount_path: '/part', subpath: 'inner/deep' },
  ],
};

/** docs/volumes.md lists them: what an operation gives in a volume, and on a sandbox's own disk. */
const EXCEPTIONS: Record<string, { volume: unknown; disk: unknown }> = {
  user_beyond_65535: { volume: 'EINVAL', disk: null },
  trusted_attributes: { volume: 'EPERM', disk: '1' },
  // XFS: links of at most 1,024 bytes.
  symbolic_links: { volume: 'ENAMETOOLONG', disk: [4000, 'ELOOP', 'ENOENT', 'ELOOP', 7] },
  // POSIX allows both.
  renames: {
    volume: ['c', 'a', 'EEXIST', 'EINVAL', 'EEXIST', 'EISDIR', 'ENOTEMPTY'],
    disk: ['c', 'a', 'EEXIST', 'EINVAL', 'ENOTEMPTY', 'EISDIR', 'ENOTEMPTY'],
  },
  // A sandbox's own disk is an overlay, which a volume is not.
  whiteout: { volume: true, disk: 'EINVAL' },
  handles_of_files: { volume: 'made', disk: 'ENOTSUP' },
  space: { volume: [255, true, true], disk: [256, true, true] },
  nameless_file: { volume: 'ENOTSUP', disk: 'EXDEV' },
  device_files: { volume: 'EPERM', disk: 'made' },
  flags_of_files: { volume: 'ENOTTY', disk: true },
};

/** What set-up makes after the first start. */
const DEFERRED = /^(?:virtiofsd|volume-.*)$/;

let home: string;
let runner: TestRunner;
let tooEarly: unknown;
before(async () => {
  home = await temporaryFolder('releap-vo-');
  const buildDir = join(home, 'build');
  await mkdir(buildDir);
  const link = async (isWanted: (name: string) => boolean): Promise<void> => {
    for (const name of (await readdir(BUILD_DIR)).filter(isWanted))
      await symlink(join(BUILD_DIR, name), join(buildDir, name));
  };
  await link((name) => !DEFERRED.test(name));
  runner = await TestRunner.open(home, { buildDir });
  runner.want(TOO_EARLY, 1, 'running', { spec: WITH_BUSYBOX });
  tooEarly = await runner.reported(1, 'running', { of: TOO_EARLY }).catch((error: unknown) => error);
  await link((name) => DEFERRED.test(name));
  const { data } = await runner.volumes.open(VOLUME, 'the test');
  await writeFile(join(data, 'before-the-entrypoint'), 'there\n');
  runner.want(ONE, 1, 'running', { spec: WITH_DEBIAN });
  runner.want(TWO, 1, 'running', { spec: WITH_BUSYBOX });
  await runner.reported(1, 'running', { of: ONE });
  await runner.reported(1, 'running', { of: TWO });
});
after(async () => await runner.dispose());

/** Servers of a sandbox's volumes, in the order of the volumes. */
async function servers(vmId: string): Promise<ProcessIdentity[]> {
  const record = JSON.parse(await readFile(join(home, 'vms', vmId, 'vm.json'), 'utf8')) as {
    shares: { process: ProcessIdentity }[];
  };
  return record.shares.map((share) => share.process);
}

/** The process that hostd waits for; each of its threads may have started it. */
function serverBelow({ pid }: ProcessIdentity): number {
  const children = readdirSync(`/proc/${pid}/task`).map((thread) =>
    readFileSync(`/proc/${pid}/task/${thread}/children`, 'utf8').trim(),
  );
  return Number(children.join(''));
}

describe('a volume', () => {
  // Those of the other tests run with parts that came after their runner had started.
  it('is refused with the reason while set-up has not made what sandboxes with volumes need', () => {
    assert.match(
      String(tooEarly),
      /the parts of guests with volumes are missing: set-up makes them after the first start/,
    );
  });

  it('is mounted before the entrypoint starts', async () => {
    assert.equal(await runner.sh(ONE, 'until cat /seen; do sleep 0.1; done 2>/dev/null'), 'there\n');
  });

  it('gives what the disk of a sandbox gives, but for what the documentation lists', async () => {
    const { data } = runner.volumes.paths(VOLUME);
    const checks = join(import.meta.dirname, 'support/posix-checks');
    await cp(checks, join(data, 'checks'), { recursive: true });
    const run = async (folder: string): Promise<Record<string, unknown>> =>
      JSON.parse(await runner.sh(ONE, `mkdir ${folder} && python3 -B /data/checks ${folder}`)) as never;
    const [volume, disk] = [await run('/data/check'), await run('/check')];
    const differing: typeof EXCEPTIONS = {};
    for (const [name, result] of Object.entries(disk)) {
      if (JSON.stringify(result) !== JSON.stringify(volume[name]))
        differing[name] = { volume: volume[name], disk: result };
    }
    assert.ok(Object.keys(disk).length > 40);
    assert.deepEqual(differing, EXCEPTIONS);
  });

  it('holds a database whose log is mapped by several connections, and a repository', async () => {
    const statements = `
import sqlite3
one, two = (sqlite3.connect('/data/test.db') for _ in range(2))
print(one.execute('pragma journal_mode=wal').fetchone()[0])
one.execute('create table t(x)')
one.executemany('insert into t values(?)', [(i,) for i in range(1000)])
one.commit()
two.execute('insert into t values(5)')
two.commit()
print(one.execute('select count(*), sum(x) from t').fetchone())
`;
    await writeFile(join(runner.volumes.paths(VOLUME).data, 'database.py'), statements);
    assert.equal(await runner.sh(ONE, 'python3 /data/database.py'), 'wal\n(1001, 499505)\n');
    const commit = 'git -c user.email=a@b -c user.name=a commit -qm one';
    const steps = `git init -q /data/repo && cd /data/repo && echo 1 > file && git add . && ${commit} && git clone -q . ../clone`;
    await runner.sh(ONE, `${steps} && git -C ../clone fsck && test -f /data/clone/file`);
  });

  it('holds programs that run, in memory where others ran before', async () => {
    const drop = 'echo 3 > /proc/sys/vm/drop_caches';
    const count = `-c 'import json; print(len(json.dumps(list(range(1000)))))'`;
    const round = `${drop}; python3 ${count}; ${drop}; /data/programs/python ${count}`;
    await runner.sh(
      ONE,
      'mkdir /data/programs && cp "$(readlink -f "$(command -v python3)")" /data/programs/python',
    );
    assert.equal(
      await runner.sh(ONE, `for i in 1 2 3 4 5; do ${round}; done; rm -r /data/programs`),
      '4890\n'.repeat(10),
    );
  });

  it('shows each sandbox at once what another one writes', async () => {
    for (let round = 0; round < 5; round++) {
      await runner.sh(
        ONE,
        `echo ${round} > /data/note; mv /data/note /data/note-${round}; exec 9>/data/open; echo begun >&9`,
      );
      const seen = `cat /shared/note-${round} /shared/open; stat -c %s /shared/open; echo ${round} >> /shared/grown; rm /shared/note-${round}`;
      assert.equal(await runner.sh(TWO, seen), `${round}\nbegun\n6\n`);
      assert.equal(await runner.sh(ONE, `ls /data/note* 2>/dev/null; tail -n 1 /data/grown`), `${round}\n`);
    }
    const append = (vmId: string, folder: string, letter: string) =>
      runner.sh(vmId, `i=0; while [ $i -lt 200 ]; do echo ${letter} >> ${folder}/appended; i=$((i+1)); done`);
    await Promise.all([append(ONE, '/data', 'a'), append(TWO, '/shared', 'b')]);
    const lines = (await runner.sh(TWO, 'sort /shared/appended | uniq -c')).trim().split(/\s+/);
    assert.deepEqual(lines, ['200', 'a', '200', 'b']);
  });

  it('keeps the users of its files in all sandboxes', async () => {
    await runner.sh(TWO, 'touch /part/mine; chown 1234:4321 /part/mine; chmod 640 /part/mine');
    assert.equal(
      await runner.sh(ONE, 'stat -c "%u %g %a" /data/inner/deep /data/inner/deep/mine'),
      '0 0 755\n1234 4321 640\n',
    );
    const { uid, gid } = await stat(join(runner.volumes.paths(VOLUME).data, 'inner/deep/mine'));
    assert.deepEqual([uid, gid], [1234, 4321]);
  });

  it('is served by a process that reaches nothing but the folder', async () => {
    const found = new Set<number>();
    for (const share of [...(await servers(ONE)), ...(await servers(TWO))]) {
      const server = serverBelow(share);
      assert.deepEqual(readdirSync(`/proc/${server}/root`).sort(), ['data', 'proc', 'vmm']);
      const { uid } = await stat(`/proc/${server}`);
      assert.ok(uid >= 0x8000_0000);
      found.add(uid);
      const cgroups = readFileSync(`/proc/${server}/cgroup`, 'utf8').match(/vm-[^/]*\.share-\d$/gm) ?? [];
      assert.ok(cgroups.length > 0);
      const status = readFileSync(`/proc/${server}/status`, 'utf8');
      assert.match(status, /^NoNewPrivs:\t1$/m);
      assert.match(status, /^Seccomp:\t2$/m);
    }
    assert.equal(found.size, 4, 'each has users of its own');
    const [, part] = await servers(TWO);
    assert.ok(part);
    const seen = readdirSync(`/proc/${serverBelow(part)}/root/data`);
    assert.deepEqual(seen, ['mine']);
  });

  it('that is full refuses writes, and no other volume does', async () => {
    await runner.sh(ONE, 'fallocate -l 800M /data/other/most');
    await assert.rejects(runner.sh(ONE, 'fallocate -l 300M /data/other/rest'), /No space left on device/);
    await assert.rejects(
      runner.sh(ONE, 'dd if=/dev/zero of=/data/other/rest bs=1M'),
      /No space left on device/,
    );
    await runner.sh(TWO, 'dd if=/dev/zero of=/shared/more bs=1M count=4 conv=fsync && rm /shared/more');
    await runner.sh(ONE, 'rm /data/other/*; echo again > /data/other/small; sync');
  });

  it('is refused where its subpath leads through a link or a file of a tenant', async () => {
    await runner.sh(ONE, 'ln -s / /data/away; ln -s inner /data/near; touch /data/file');
    for (const [index, { subpath, reason }] of [
      { subpath: 'away/etc', reason: /away.* is a symbolic link/ },
      { subpath: 'near/deep', reason: /near.* is a symbolic link/ },
      { subpath: 'file', reason: /file.* is not a folder/ },
    ].entries()) {
      const volumes = [{ id: VOLUME, mount_path: '/x', subpath }];
      runner.want(THREE, index + 1, 'running', { spec: { ...WITH_BUSYBOX, volumes } });
      await assert.rejects(runner.reported(index + 1, 'running', { of: THREE }), reason);
    }
    await assert.rejects(stat(join(runner.volumes.paths(VOLUME).data, 'inner/etc')), /ENOENT/);
  });

  it('keeps a sandbox from being paused', async () => {
    runner.want(ONE, 2, 'paused', { spec: WITH_DEBIAN });
    const { error } = await runner.reported(2, 'running', { of: ONE });
    assert.match(error ?? '', /a sandbox with volumes .* cannot be paused/);
  });
});

describe('the end of a process', () => {
  it('of the runner: the next one finds the sandbox and its volumes', async () => {
    await runner.sh(
      ONE,
      'exec 8>/data/kept-open; (while :; do date >&8; sleep 0.2; done) > /dev/null 2>&1 &',
    );
    const before = await servers(ONE);
    await runner.detach();
    runner = await TestRunner.open(home);
    assert.deepEqual(await servers(ONE), before);
    const size = await runner.sh(ONE, 'stat -c %s /data/kept-open');
    await until(async () => (await runner.sh(ONE, 'stat -c %s /data/kept-open')) !== size);
    assert.equal(
      await runner.sh(TWO, 'cat /part/mine; echo again > /part/mine; cat /shared/inner/deep/mine'),
      'again\n',
    );
  });

  it('of a server: its sandbox ends, and has the volume again when it is started', async () => {
    await runner.sh(ONE, 'echo durable > /data/durable; sync /data/durable');
    const [first, second] = await servers(ONE);
    assert.ok(first && second);
    const waits = runner
      .sh(ONE, 'while :; do cat /data/durable > /dev/null || exit 0; done')
      .catch(() => undefined);
    process.kill(serverBelow(first), 'SIGKILL');
    const { error } = await runner.reported(2, 'stopped', { of: ONE });
    assert.match(error ?? '', /no longer serves one of its volumes/);
    await waits;
    assert.equal(isAlive(second), false);
    assert.equal(await runner.sh(TWO, 'cat /shared/durable'), 'durable\n');
    runner.want(ONE, 3, 'running', { spec: WITH_DEBIAN });
    await runner.reported(3, 'running', { of: ONE });
    assert.equal(await runner.sh(ONE, 'cat /data/durable /data/other/small'), 'durable\nagain\n');
  });

  it('of a VMM: its servers end, and the volume has what was written', async () => {
    await runner.sh(TWO, 'echo last > /shared/last');
    const shares = await servers(TWO);
    process.kill((await vmFacts(home, TWO)).pid, 'SIGKILL');
    await assert.rejects(runner.reported(1, 'deleted', { of: TWO }), /failed/);
    for (const share of shares) assert.equal(isAlive(share), false);
    assert.equal(await runner.sh(ONE, 'cat /data/last'), 'last\n');
  });

  it('of a VMM whose guest boots: the guest is booted once more', async () => {
    runner.want(FOUR, 1, 'running', { spec: WITH_BUSYBOX });
    const log = join(home, 'logs', FOUR, 'console.log');
    const console = async (): Promise<string> => await readFile(log, 'utf8').catch(() => '');
    await until(async () => (await console()).includes('SeaBIOS'));
    process.kill((await vmFacts(home, FOUR)).pid, 'SIGKILL');
    await runner.reported(1, 'running', { of: FOUR });
    assert.equal(await runner.sh(FOUR, 'cat /shared/before-the-entrypoint'), 'there\n');
    // The second boot is not quiet.
    assert.match(await console(), /SeaBIOS.*Linux version/s);
    runner.want(FOUR, 2, 'deleted', { spec: WITH_BUSYBOX });
    await runner.reported(2, 'deleted', { of: FOUR });
  });

  it('of a sandbox: nothing of it is left, and its volumes are', async () => {
    const shares = await servers(ONE);
    runner.want(ONE, 4, 'deleted', { spec: WITH_DEBIAN });
    await runner.reported(4, 'deleted', { of: ONE });
    for (const share of shares) assert.equal(isAlive(share), false);
    const { mount } = runner.volumes.paths(OTHER);
    assert.ok(!readFileSync('/proc/self/mounts', 'utf8').includes(mount));
    const { data } = await runner.volumes.open(OTHER, 'the test');
    assert.equal(await readFile(join(data, 'small'), 'utf8'), 'again\n');
  });
});
