import assert from 'node:assert/strict';
import { mkdir, mkdtemp, rm, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { quiet } from '@releap/testing/logging';
import { findVolumeProblem, VolumeProbe } from '../src/volume/probe-volumes.ts';

const BUILD = fileURLToPath(new URL('../../../build', import.meta.url));

/** A folder like that of set-up, without virtiofsd. */
async function incompleteBuild(): Promise<string> {
  const build = await mkdtemp(join(tmpdir(), 'releap-build-'));
  await mkdir(join(build, 'host'));
  await symlink(join(BUILD, 'host/hostd'), join(build, 'host/hostd'));
  return build;
}

// Other failures are tested in host/internal/jail/volumes_test.go.
test('a host with all that volumes need has no problem; one without virtiofsd has', async (t) => {
  assert.equal(await findVolumeProblem(BUILD), undefined);
  const build = await incompleteBuild();
  t.after(() => rm(build, { recursive: true }));
  assert.equal(
    await findVolumeProblem(build),
    `virtiofsd (unpacked by set-up): ${build}/virtiofsd/current: no such file or directory`,
  );
});

for (const [name, isDamaged] of [
  ['a host whose set-up unpacks virtiofsd after its runner has started can mount volumes then', false],
  ['a host that cannot mount volumes when its runner starts is tried again until it can', true],
] as const)
  test(name, async (t) => {
    const build = await incompleteBuild();
    if (isDamaged) await mkdir(join(build, 'virtiofsd/current'), { recursive: true });
    t.after(() => rm(build, { recursive: true }));
    const probe = await VolumeProbe.open(build, quiet);
    t.after(() => probe.close());
    assert.equal(probe.works, false);
    const works = Promise.withResolvers<void>();
    probe.watch(works.resolve, 50);
    await rm(join(build, 'virtiofsd'), { recursive: true, force: true });
    await symlink(join(BUILD, 'virtiofsd'), join(build, 'virtiofsd'));
    await works.promise;
    assert.equal(probe.works, true);
  });
