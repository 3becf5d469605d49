/** The processes that handle untrusted input: what they reach, and when they start and end. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { createWriteStream } from 'node:fs';
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { setPriority } from 'node:os';
import path from 'node:path';
import { Readable, Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { createGzip } from 'node:zlib';
import { until } from '@releap/testing/eventually';
import { tarOf, temporaryFolder, writeOciLayout } from '@releap/testing/oci';
import { childrenOf } from '@releap/testing/processes';
import { startRegistry, type TestRegistry } from '@releap/testing/registry';
import { pino } from 'pino';
import { pack } from 'tar-stream';
import { CgroupTree } from '../src/cgroup/cgroup-tree.ts';
import { ImageJails, imageLimits } from '../src/image/image-jails.ts';
import { DEFAULT_IMAGE_LIMITS } from '../src/image/image-limits.ts';
import { ImageStore } from '../src/image/image-store.ts';
import { makeRootImage } from '../src/image/make-root-image.ts';
import type { LayerSource } from '../src/image/unpack-layer.ts';
import { UnprivilegedProcess } from '../src/image/unprivileged-process.ts';
import type { JailFindings } from './support/jail-probe.ts';

const PROBE = fileURLToPath(new URL('support/jail-probe.ts', import.meta.url));

let scratch: Awaited<ReturnType<typeof temporaryFolder>>;
let registry: TestRegistry;
let groups: CgroupTree;

before(async () => {
  scratch = await temporaryFolder();
  groups = await CgroupTree.open(scratch.path, imageLimits());
  await mkdir(path.join(scratch.path, 'registry'));
  registry = await startRegistry(path.join(scratch.path, 'registry'));
});
after(async () => {
  await registry[Symbol.asyncDispose]();
  await groups.close();
  await scratch[Symbol.asyncDispose]();
});

function openStore(name: string): ImageStore & AsyncDisposable {
  const cacheDir = path.join(scratch.path, name);
  const log = pino({ level: 'silent' });
  const store = new ImageStore({ cacheDir, log, privateHosts: ['loopback'], groups });
  return Object.assign(store, { [Symbol.asyncDispose]: async () => await store.close() });
}

async function push(name: string): Promise<{ type: 'registry'; ref: string }> {
  const layout = path.join(scratch.path, `layout-${name}`);
  await writeOciLayout(layout, [await tarOf([{ name: 'file', content: name }])]);
  registry.push(layout, name);
  return { type: 'registry', ref: `${registry.host}/${name}` };
}

/** Ids of the image processes of this process. */
async function imageProcesses(): Promise<number[]> {
  const found: number[] = [];
  for (const pid of await childrenOf(process.pid)) {
    const command = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '');
    if (/(fetch|make)-process\.m?[jt]s/.test(command)) found.push(pid);
  }
  return found.sort((a, b) => a - b);
}

const LARGE_BYTES = 384 * 2 ** 20;

/** A layer with one file of zeros, which is nowhere in memory as a whole. */
async function zerosLayer(file: string, bytes: number): Promise<LayerSource> {
  const archive = pack();
  const hash = createHash('sha256');
  const tee = new Transform({
    transform(chunk: Buffer, _encoding, done) {
      hash.update(chunk);
      done(null, chunk);
    },
  });
  const written = pipeline(archive, tee, createGzip({ level: 1 }), createWriteStream(file));
  const zeros = Buffer.alloc(2 ** 20);
  const parts = Readable.from(Array.from({ length: bytes / zeros.length }, () => zeros));
  await pipeline(parts, archive.entry({ name: 'zeros', size: bytes }));
  archive.finalize();
  await written;
  return { path: file, digest: `sha256:${'0'.repeat(64)}`, diffId: `sha256:${hash.digest('hex')}` };
}

test('an image process sees no file of the host, and reaches no other process', async () => {
  const jails = new ImageJails();
  for (const [network, listen] of [
    [false, 'EPERM'],
    [true, 'none'],
  ] as const) {
    const work = path.join(scratch.path, `probe-${network}`);
    await mkdir(work);
    await using jail = await jails.open(work);
    const { folder, uid } = jail;
    const victim = spawn('sleep', ['600'], { uid, gid: uid, stdio: 'ignore' });
    try {
      await using probe = UnprivilegedProcess.start<JailFindings>(PROBE, {
        jail,
        network,
        heapMib: 64,
        fileMax: 1024,
      });
      let found: JailFindings | undefined;
      const files = ['/etc/passwd', '/bin/sh', '/proc/self/status', '/sys', '/tmp', folder, process.execPath];
      await probe.run(
        { files, victim: victim.pid },
        { deadlineMs: 60_000, onMessage: (message) => (found = message) },
      );
      const code = ['dev', 'node', 'node_modules', 'packages', 'vm'];
      assert.deepEqual(
        found?.root.filter((name) => !/^(lib.*|usr|etc)$/.test(name)),
        code,
      );
      assert.equal(found.root.includes('etc'), network);
      const { root: _root, ...rest } = found;
      assert.deepEqual(rest, {
        uid,
        seen: [],
        write: 'EROFS',
        own: 'none',
        signal: 'EPERM',
        spawn: 'EPERM',
        listen,
      });
      assert.deepEqual(await readdir(folder), ['new']);
      assert.equal(victim.exitCode, null);
    } finally {
      victim.kill('SIGKILL');
    }
  }
});

test('the processes of a pull have a user and a control group that no other pull has', async () => {
  /** Users of the processes of a group. */
  const usersOf = async (group: string): Promise<string[]> => {
    const pids = await groups.processes(group);
    const texts = pids.map((pid) => readFile(`/proc/${pid}/status`, 'utf8').catch(() => ''));
    return (await Promise.all(texts)).map((text) => /^Uid:\s+(\d+)\s/m.exec(text)?.[1] ?? '');
  };
  {
    await using one = openStore('user-1');
    await using other = openStore('user-2');
    await one.ensure(await push('user-1'));
    await other.ensure(await push('user-2'));
    // Each keeps a pair ready for its next pull.
    await until(async () => {
      const names = await groups.list();
      const users = await Promise.all(names.map(usersOf));
      const own = names.map((name) => name.replace('pull-', ''));
      return names.length === 2 && users.every((uids, at) => uids.join() === `${own[at]},${own[at]}`);
    });
  }
  assert.deepEqual(await groups.list(), []);
});

test('an image process that takes more memory than it may is killed, and the error says so', async () => {
  const work = path.join(scratch.path, 'hungry');
  await mkdir(work);
  const layer = await zerosLayer(path.join(work, 'layer.tar.gz'), 2 ** 20);
  // Node.js alone needs more.
  const jails = new ImageJails(groups, 8);
  const target = path.join(work, 'root.squashfs');
  const made = makeRootImage(
    { layers: [layer], workDir: work, target, limits: DEFAULT_IMAGE_LIMITS, jails },
    { signal: new AbortController().signal },
  );
  await assert.rejects(made, /was killed: those of a pull may use 8 MiB of memory/);
  assert.deepEqual(await groups.list(), []);
});

test('a large layer is unpacked and written in bounded memory', async () => {
  const work = path.join(scratch.path, 'large');
  await mkdir(work);
  const layer = await zerosLayer(path.join(work, 'layer.tar.gz'), LARGE_BYTES);
  const target = path.join(work, 'root.squashfs');
  const made = makeRootImage(
    { layers: [layer], workDir: work, target, limits: DEFAULT_IMAGE_LIMITS, jails: new ImageJails(groups) },
    { signal: new AbortController().signal },
  );
  let peakKib = 0;
  const ended = new AbortController();
  const end = made.finally(() => ended.abort());
  while (!ended.signal.aborted) {
    for (const pid of await imageProcesses()) {
      const status = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => '');
      peakKib = Math.max(peakKib, Number(/^VmHWM:\s+(\d+) kB$/m.exec(status)?.[1] ?? 0));
    }
    await sleep(10);
  }
  assert.ok((await end).sizeBytes > LARGE_BYTES);
  assert.ok(peakKib > 0 && peakKib * 1024 < LARGE_BYTES / 2, `it took ${peakKib} KiB`);
});

test('a pull finds its processes started, and each pull has its own', async () => {
  await using store = openStore('spare');
  await store.ensure(await push('one'));
  await until(async () => (await imageProcesses()).length === 2);
  const spare = await imageProcesses();
  const [first = 0] = spare;
  // One that was killed while it waited is replaced.
  process.kill(first, 'SIGKILL');
  await until(async () => !(await imageProcesses()).includes(first));
  await store.ensure(await push('two'));
  await until(async () => (await imageProcesses()).length === 2);
  const next = await imageProcesses();
  assert.ok(!next.some((pid) => spare.includes(pid)));
  await store.ensure(await push('three'));
  await until(async () => (await imageProcesses()).length === 2);
  assert.ok(!(await imageProcesses()).some((pid) => next.includes(pid)));
  await store.close();
  assert.deepEqual(await imageProcesses(), []);
  assert.deepEqual(await readdir(path.join(scratch.path, 'spare/images/spare')), []);
});

test('an image that was not written to the disk before the machine stopped is fetched again', async () => {
  const source = await push('unsynced');
  let [folder, bytes] = ['', 0];
  {
    await using store = openStore('unsynced');
    const image = await store.ensure(source);
    [folder, bytes] = [path.dirname(image.path), image.sizeBytes];
  }
  assert.ok(!(await readdir(folder)).includes('unsynced'), 'it is on disk');
  await writeFile(path.join(folder, 'unsynced'), 'the boot before');
  await rm(path.join(folder, 'root.squashfs'));
  await writeFile(path.join(folder, 'root.squashfs'), Buffer.alloc(bytes));
  await using store = openStore('unsynced');
  const image = await store.ensure(source);
  const head = (await readFile(image.path)).subarray(0, 4).toString('latin1');
  assert.equal(head, 'hsqs');
});

test('a service that was started with a lower priority than its image processes want makes images', async () => {
  setPriority(15);
  try {
    await using store = openStore('nice');
    const { layerCount } = await store.ensure(await push('nice'));
    assert.equal(layerCount, 1);
  } finally {
    setPriority(0);
  }
});
