import assert from 'node:assert/strict';
import { chmod, copyFile, mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { CgroupTree } from '../src/cgroup/cgroup-tree.ts';
import { Voltree, VOLTREE } from '../src/volume/voltree.ts';
import { type VolumePaths, volumePaths } from '../src/volume/volume-paths.ts';

const { signal } = new AbortController();
let folder: string;
let groups: CgroupTree;
before(async () => {
  folder = await temporaryFolder('voltree');
  groups = await CgroupTree.open(folder);
});
after(async () => await groups.close());

async function volume(name: string): Promise<VolumePaths> {
  const paths = volumePaths(folder, name);
  for (const made of [paths.data, paths.outgoing, paths.incoming]) await mkdir(made, { recursive: true });
  return paths;
}

const upload = (): Promise<void> => Promise.resolve();

test('commands of voltree run in a control group of their own, which is gone afterwards', async () => {
  const voltree = new Voltree(async () => VOLTREE, groups);
  const [one, two] = [await volume('one'), await volume('two')];
  await writeFile(join(one.data, 'file'), 'content');
  const commit = await voltree.commit(one, upload, signal);
  assert.ok(commit.root !== 'same');
  const named = (from: VolumePaths, digest: string): string =>
    join(from.outgoing, digest.replace('sha256:', ''));
  const seen: string[] = [];
  await voltree.checkout(
    two,
    named(one, commit.root.digest),
    async ({ digest }) => {
      for (const name of await groups.list())
        for (const pid of await groups.processes(name))
          seen.push(`${name} ${(await readFile(`/proc/${pid}/comm`, 'utf8')).trim()}`);
      const file = digest.replace('sha256:', '');
      await copyFile(join(one.outgoing, file), join(two.incoming, file));
    },
    signal,
  );
  assert.equal(await readFile(join(two.data, 'file'), 'utf8'), 'content');
  assert.deepEqual([...new Set(seen)], ['two.2 voltree']);
  assert.deepEqual(await groups.list(), []);
});

test('a command that takes more memory than it may is killed, and the error says so', async () => {
  const program = join(folder, 'hungry');
  // Joins as voltree does, and takes all it can get.
  const script = `#!/bin/sh
while [ "$1" = --cgroup ]; do echo 0 > "$2"; shift 2; done
exec dd if=/dev/zero of=/dev/null bs=1300M count=1
`;
  await writeFile(program, script);
  await chmod(program, 0o755);
  const voltree = new Voltree(async () => program, groups);
  await assert.rejects(voltree.commit(await volume('three'), upload, signal), /may use 1024 MiB of memory/);
  assert.deepEqual(await groups.list(), []);
});
