import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { gunzipSync, gzipSync } from 'node:zlib';
import { buildInitramfs, moduleDependencies, resolveModules } from '../initramfs.mjs';

const BUILD_DIR = fileURLToPath(new URL('../../build', import.meta.url));

let dir;
before(async () => {
  dir = await mkdtemp(join(tmpdir(), 'releap-initramfs-'));
});
after(async () => {
  await rm(dir, { recursive: true, force: true });
});

/** Reads "newc" archives, independently of what writes them. */
function readCpio(archive) {
  const entries = [];
  for (let at = 0; ; ) {
    assert.equal(archive.toString('latin1', at, at + 6), '070701');
    const field = (index) =>
      Number.parseInt(archive.toString('latin1', at + 6 + index * 8, at + 14 + index * 8), 16);
    const [mode, size, nameSize] = [field(1), field(6), field(11)];
    const name = archive.toString('latin1', at + 110, at + 110 + nameSize - 1);
    const start = Math.ceil((at + 110 + nameSize) / 4) * 4;
    if (name === 'TRAILER!!!') return entries;
    entries.push({ name, mode, content: archive.subarray(start, start + size) });
    at = Math.ceil((start + size) / 4) * 4;
  }
}

/** A kernel folder whose modules are nothing but what they depend on. */
async function kernelWith(name, modules, builtIn = []) {
  const folder = join(dir, name);
  await mkdir(join(folder, 'modules', 'kernel', 'deep'), { recursive: true });
  for (const [module, depends] of Object.entries(modules)) {
    await writeFile(
      join(folder, 'modules', 'kernel', 'deep', `${module}.ko`),
      `\x7fELF\0license=GPL\0depends=${depends}\0retpoline=Y\0`,
    );
  }
  await writeFile(
    join(folder, 'modules', 'modules.builtin'),
    builtIn.map((path) => `kernel/${path}.ko\n`).join(''),
  );
  return folder;
}

describe('the initramfs', () => {
  it('holds the agent as init and the modules in dependency order, and is reproducible', async () => {
    const options = { kernelDir: join(BUILD_DIR, 'kernel'), agentPath: join(BUILD_DIR, 'guest', 'agent') };
    const first = await buildInitramfs({ ...options, out: join(dir, 'a.cpio.gz') });
    const second = await buildInitramfs({ ...options, out: join(dir, 'b.cpio.gz') });
    assert.equal(first.sha256, second.sha256);
    const entries = readCpio(gunzipSync(await readFile(join(dir, 'a.cpio.gz'))));
    const names = entries.map(({ name }) => name);
    assert.equal(new Set(names).size, names.length);
    const init = entries.find(({ name }) => name === 'init');
    assert.equal(init?.mode, 0o100755);
    assert.deepEqual(init?.content, await readFile(options.agentPath));
    assert.ok(names.indexOf('dev') < names.indexOf('dev/console'));
    const list = entries
      .find(({ name }) => name === 'lib/modules/load.txt')
      ?.content.toString()
      .trim()
      .split('\n');
    assert.deepEqual(
      list,
      first.modules.map((name) => `/lib/modules/${name}`),
    );
    const loaded = new Set();
    for (const path of list ?? []) {
      const entry = entries.find(({ name }) => `/${name}` === path);
      assert.ok(entry, path);
      for (const needed of moduleDependencies(entry.content))
        assert.ok(loaded.has(needed), `${path} before ${needed}`);
      loaded.add(path.slice('/lib/modules/'.length, -'.ko'.length).replaceAll('-', '_'));
    }
    assert.ok(loaded.has('virtio_mmio') && loaded.has('squashfs') && loaded.has('overlay'));
  });

  it('treats - and _ in module names alike, and skips modules that are built in', async () => {
    const kernel = await kernelWith('names', { 'virtio-rng': 'virtio,core_x', virtio: '' }, ['lib/core-x']);
    const modules = await resolveModules(kernel, ['virtio_rng']);
    assert.deepEqual(
      modules.map(({ name }) => name),
      ['virtio.ko', 'virtio-rng.ko'],
    );
  });

  it('unpacks modules in the compressions of all distributions', async () => {
    const kernel = await kernelWith('compressed', { plain: 'a', a: 'b', b: 'c', c: '' });
    const deep = join(kernel, 'modules', 'kernel', 'deep');
    const content = (name) => readFile(join(deep, `${name}.ko`));
    const [a, b, c] = await Promise.all(['a', 'b', 'c'].map(content));
    await writeFile(join(deep, 'a.ko.gz'), gzipSync(a));
    await rm(join(deep, 'a.ko'));
    execFileSync('xz', [join(deep, 'b.ko')]);
    execFileSync('zstd', ['-q', '--rm', join(deep, 'c.ko')]);
    const modules = await resolveModules(kernel, ['plain']);
    assert.deepEqual(modules, [
      { name: 'c.ko', content: c },
      { name: 'b.ko', content: b },
      { name: 'a.ko', content: a },
      { name: 'plain.ko', content: await content('plain') },
    ]);
    await writeFile(join(deep, 'b.ko.xz'), 'not compressed');
    await assert.rejects(resolveModules(kernel, ['plain']), /b\.ko\.xz cannot be unpacked with xz/);
  });

  it('says which module is missing and what needs it, or that dependencies form a cycle', async () => {
    const kernel = await kernelWith('broken', { a: 'b', c: 'd', d: 'c' });
    await assert.rejects(resolveModules(kernel, ['a']), /kernel module b is neither in .* \(needed by a\)/);
    await assert.rejects(resolveModules(kernel, ['c']), /depend on each other: c -> d -> c/);
    assert.throws(
      () => moduleDependencies(Buffer.from('\x28\xb5\x2f\xfdcompressed')),
      /compressed or truncated/,
    );
  });

  it('refuses an agent that is no program', async () => {
    const agentPath = join(dir, 'agent.txt');
    await writeFile(agentPath, 'not a program');
    await assert.rejects(
      buildInitramfs({ kernelDir: join(BUILD_DIR, 'kernel'), agentPath, out: join(dir, 'never') }),
      /not an ELF executable/,
    );
  });
});
