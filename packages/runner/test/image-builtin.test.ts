import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { mkdir, readdir } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';
import { pino } from 'pino';
import { ImageError, ImageStore } from '../src/image/image-store.ts';
import { run, temporaryFolder } from '@releap/testing/oci';
import { isNightly } from '@releap/testing/repetitions';
import { TEST_CACHE } from '@releap/testing/test-cache';

const log = pino({ level: 'silent' });

test('the busybox image is made once and has a shell, its tools and what a system expects', async () => {
  await using dir = await temporaryFolder();
  const first = new ImageStore({ cacheDir: dir.path, log });
  const image = await first.ensure({ type: 'builtin', name: 'busybox' });
  await first.close();
  assert.deepEqual(image.config.cmd, ['/bin/sh']);

  const second = new ImageStore({ cacheDir: dir.path, log });
  assert.equal(await second.has({ type: 'builtin', name: 'busybox' }), true);
  assert.deepEqual(await second.ensure({ type: 'builtin', name: 'busybox' }), image);
  await second.close();

  const root = path.join(dir.path, 'root');
  run('unsquashfs', ['-d', root, image.path]);
  assert.equal(
    run('chroot', [
      root,
      '/bin/sh',
      '-c',
      'echo "$(id -un) $(stat -c %a /tmp) $(ls / | wc -l)" | sed s/x/y/',
    ]),
    'root 1777 16\n',
  );
  assert.deepEqual(await readdir(path.join(dir.path, 'images', 'staging')), []);
});

test('the debian image has Python, git, curl and a working apt', { timeout: 600_000 }, async () => {
  await using dir = await temporaryFolder();
  // It takes a minute. The service of another file uses the one that is made here, and a nightly run makes its own.
  const store = new ImageStore({ cacheDir: isNightly() ? dir.path : TEST_CACHE, log });
  const isMade = await store.has({ type: 'builtin', name: 'debian' });
  const steps = new Set<string>();
  const image = await store.ensure(
    { type: 'builtin', name: 'debian' },
    { onProgress: ({ phase, done }) => steps.add(`${phase} ${done ?? ''}`) },
  );
  await store.close();
  // The shared service may be making it already.
  assert.ok(isMade || steps.has('wait ') || (steps.has('make 0') && steps.has('make 5')), [...steps].join());
  const listing = run('unsquashfs', ['-ll', image.path]);
  for (const name of [
    'usr/bin/python3',
    'usr/bin/git',
    'usr/bin/curl',
    'usr/bin/apt-get',
    'etc/ssl/certs/ca-certificates.crt',
  ]) {
    assert.ok(listing.includes(`squashfs-root/${name}`), name);
  }
  assert.match(
    run('unsquashfs', ['-cat', image.path, 'etc/apt/sources.list']),
    /deb http:\/\/deb\.debian\.org\/debian bookworm main/,
  );
  assert.equal(run('unsquashfs', ['-cat', image.path, 'etc/resolv.conf']), '');
});

test('a mirror that cannot be reached is reported, and leaves nothing', async () => {
  await using dir = await temporaryFolder();
  const store = new ImageStore({ cacheDir: dir.path, log });
  const proxy = process.env['http_proxy'];
  process.env['http_proxy'] = 'http://127.0.0.1:1';
  try {
    await assert.rejects(store.ensure({ type: 'builtin', name: 'debian' }), (error: unknown) => {
      assert.ok(error instanceof ImageError);
      assert.match(error.message, /built-in image debian needs Debian's package mirror/);
      return error.code === 'unreachable';
    });
  } finally {
    if (proxy === undefined) delete process.env['http_proxy'];
    else process.env['http_proxy'] = proxy;
    await store.close();
  }
  assert.deepEqual(await readdir(path.join(dir.path, 'images', 'staging')), []);
});

test('a package that set-up left is used as it is', async () => {
  await using dir = await temporaryFolder();
  const packagesDir = path.join(dir.path, 'packages');
  await mkdir(packagesDir);
  run('sh', [
    '-c',
    'cd "$1" && apt-get -q -o APT::Sandbox::User=root download busybox-static',
    'sh',
    packagesDir,
  ]);
  const store = new ImageStore({ cacheDir: dir.path, log, packagesDir });
  const image = await store.ensure({ type: 'builtin', name: 'busybox' });
  await store.close();
  assert.ok(existsSync(image.path));
});
