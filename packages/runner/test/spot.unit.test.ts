import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { it } from 'node:test';
import { cpuShare } from '../src/reconcile/machine-starts.ts';
import { setOomScore } from '../src/vmm/jail.ts';
import { SPEC } from './support/sandbox-spec.ts';

it('a spot VMM weighs less than a guaranteed one of its size, and may use as much when no other needs it', () => {
  const guaranteed = cpuShare({ ...SPEC, spot: false });
  const spot = cpuShare({ ...SPEC, spot: true });
  assert.ok(spot.guaranteed < guaranteed.guaranteed);
  assert.equal(spot.max, guaranteed.max);
});

it('without memory the kernel ends a spot VMM before a guaranteed one, and that before the service', () => {
  const child = spawn('sleep', ['1000']);
  assert.ok(child.pid);
  const { pid } = child;
  const score = (): number => Number(readFileSync(`/proc/${pid}/oom_score_adj`, 'utf8'));
  try {
    setOomScore(pid, 'spot');
    const spot = score();
    setOomScore(pid, 'guaranteed');
    assert.ok(spot > score() && score() > 0);
  } finally {
    child.kill('SIGKILL');
  }
});
