import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, open, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { it } from 'node:test';
import { Precopy } from '../src/memory/precopy.ts';

/** Writes numbers into a megabyte of its memory as fast as it can, until it is stopped. */
const WRITES = `$| = 1; my $m = "0" x (1 << 20); print "begun\\n";
  while (1) { $i++; substr($m, ($i * 4099) % ((1 << 20) - 8), 8) = sprintf("%08d", $i) }`;

it('has all of the memory of a process that wrote to it until it was stopped', async (context) => {
  const folder = await mkdtemp(join(tmpdir(), 'releap-pc-'));
  try {
    for (let round = 0; round < 10; round += 1) {
      const child = spawn('perl', ['-e', WRITES], { stdio: ['ignore', 'pipe', 'inherit'] });
      try {
        await once(child.stdout, 'data');
        const maps = await readFile(`/proc/${child.pid}/maps`, 'utf8');
        const anonymous = [...maps.matchAll(/^([0-9a-f]+)-([0-9a-f]+) rw-p 0+ 00:00 0 *$/gm)].map(
          ([, from = '', to = '']) => [Number.parseInt(from, 16), Number.parseInt(to, 16)] as const,
        );
        const [address, end] = anonymous.find(([from, to]) => to - from > 1 << 20) ?? [0, 0];
        assert.ok(child.pid !== undefined && address > 0);
        await using target = await open(join(folder, 'target'), 'w+');
        const bytes = end - address;
        await target.truncate(bytes);
        await using precopy = await Precopy.begin({ pid: child.pid, address, bytes }, target.fd);
        if (precopy === undefined) return context.skip('the kernel cannot track writes');
        assert.equal(await precopy.approach(), true);
        child.kill('SIGSTOP');
        await stopped(child.pid);
        await precopy.take();
        const memory = Buffer.alloc(bytes);
        await using content = await open(`/proc/${child.pid}/mem`, 'r');
        await content.read(memory, 0, bytes, address);
        assert.ok(memory.equals(await target.readFile()), 'a page is missing');
      } finally {
        child.kill('SIGKILL');
      }
    }
  } finally {
    await rm(folder, { recursive: true });
  }
});

it('says so when the process is not there', async () => {
  await using target = await open('/dev/null', 'r+');
  const missing = { pid: 4_194_304, address: 4096, bytes: 4096 };
  await assert.rejects(Precopy.begin(missing, target.fd), /memory of a running micro-VM could not be copied/);
});

async function stopped(pid: number): Promise<void> {
  while (!/^State:\tT/m.test(await readFile(`/proc/${pid}/status`, 'utf8')));
}
