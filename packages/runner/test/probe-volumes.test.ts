import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { findVolumeProblem } from '../src/volume/probe-volumes.ts';

const VIRTIOFSD = fileURLToPath(new URL('../../../build/virtiofsd/current', import.meta.url));

// Other failures are tested in host/internal/jail/volumes_test.go.
test('a host with all that volumes need has no problem; one without virtiofsd has', async () => {
  assert.equal(await findVolumeProblem(VIRTIOFSD), undefined);
  assert.equal(
    await findVolumeProblem(`${VIRTIOFSD}/missing`),
    `virtiofsd (unpacked by set-up): ${VIRTIOFSD}/missing: no such file or directory`,
  );
});
