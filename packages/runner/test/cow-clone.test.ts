import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { it } from 'node:test';
import { CowClone } from '../src/memory/cow-clone.ts';

const STOP_AND_CONTINUE = `$| = 1; print "begun\\n";
  while (1) { kill(STOP => $ARGV[0]); select(undef, undef, undef, 0.0003 * rand); kill(CONT => $ARGV[0]); select(undef, undef, undef, 0.0006 * rand) }`;

it('copies a process that is stopped and continued meanwhile, and leaves it as it was', async () => {
  for (let round = 0; round < 20; round += 1) {
    const child = spawn('perl', ['-e', '$| = 1; print "begun\\n"; print "more\\n" while <STDIN>'], {
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    const other = spawn('perl', ['-e', STOP_AND_CONTINUE, String(child.pid)], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    try {
      await Promise.all([once(child.stdout, 'data'), once(other.stdout, 'data')]);
      const heap = /^([0-9a-f]+)-([0-9a-f]+) .*\[heap\]$/m.exec(
        await readFile(`/proc/${child.pid}/maps`, 'utf8'),
      );
      const [address = 0, end = 0] = heap?.slice(1).map((hex) => Number.parseInt(hex, 16)) ?? [];
      assert.ok(child.pid !== undefined && address > 0);
      await using copy = await CowClone.prepare({ pid: child.pid, address, bytes: end - address });
      assert.notEqual((await copy.take()).pid, child.pid);
      other.kill('SIGKILL');
      await once(other, 'exit');
      child.kill('SIGCONT');
      child.stdin.write('\n');
      assert.equal(String((await once(child.stdout, 'data'))[0]), 'more\n');
    } finally {
      other.kill('SIGKILL');
      child.kill('SIGKILL');
    }
  }
});
