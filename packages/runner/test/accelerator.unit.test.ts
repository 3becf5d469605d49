import assert from 'node:assert/strict';
import { it } from 'node:test';
import { isBelieved, type Verdict } from '../src/vmm/accelerator.ts';
import { bootId } from '../src/vmm/process-identity.ts';

const DEVICE = '10 2792 1';
const failed: Verdict = { accelerator: 'tcg', tried: true, device: DEVICE, bootId: bootId(), at: Date.now() };

it('a failed trial is believed for the device that it was made with, until the host is restarted or a day has passed', () => {
  assert.equal(isBelieved(failed, DEVICE), true);
  assert.equal(isBelieved({ ...failed, device: '10 2792 2' }, DEVICE), false);
  assert.equal(isBelieved(failed, ''), false);
  assert.equal(isBelieved({ ...failed, bootId: 'another' }, DEVICE), false);
  assert.equal(isBelieved({ ...failed, at: Date.now() - 25 * 60 * 60_000 }, DEVICE), false);
  assert.equal(isBelieved({ ...failed, tried: false }, DEVICE), false);
});

it('a trial that succeeded is believed, and so is a failed one of a version that did not note the device', () => {
  assert.equal(isBelieved({ accelerator: 'kvm' }, DEVICE), true);
  const { device: _, ...old } = failed;
  assert.equal(isBelieved(old, DEVICE), true);
});
