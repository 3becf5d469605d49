import assert from 'node:assert/strict';
import { test } from 'node:test';
import { checkKernel } from '../src/doctor/machine.ts';

test('a kernel without mount_setattr is named as missing, with the version that has it', () => {
  for (const version of ['4.19.0-27-amd64', '5.11.22', '5.4.0-200-generic']) {
    const { status, detail } = checkKernel(version);
    assert.equal(status, 'missing');
    assert.match(detail, /Linux 5\.12 or newer/);
    assert.ok(detail.includes(version));
  }
  for (const version of ['5.12.0', '5.15.0-1', '6.1.0-28-amd64', '10.0.0'])
    assert.equal(checkKernel(version).status, 'ok', version);
});
