import assert from 'node:assert/strict';
import { mkdir, mkdtemp, rm, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { findVolumeProblem } from '../src/volume/probe-volumes.ts';

const BUILD = fileURLToPath(new URL('../../../build', import.meta.url));

// Other failures are tested in host/internal/jail/volumes_test.go.
test('a host with all that volumes need has no problem; one without virtiofsd has', async (t) => {
  assert.equal(await findVolumeProblem(BUILD), undefined);
  const build = await mkdtemp(join(tmpdir(), 'releap-build-'));
  t.after(() => rm(build, { recursive: true }));
  await mkdir(join(build, 'host'));
  await symlink(join(BUILD, 'host/hostd'), join(build, 'host/hostd'));
  assert.equal(
    await findVolumeProblem(build),
    `virtiofsd (unpacked by set-up): ${build}/virtiofsd/current: no such file or directory`,
  );
});
