/**
 * From a machine with Node, npm and `mount` to a sandbox, by the lines of the README. Most of its minutes are downloads: in
 * the nightly run, or alone with `RELEAP_TEST_BARE=trixie,bookworm`.
 */
import assert from 'node:assert/strict';
import type { ChildProcess } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { isNightly } from '@releap/testing/repetitions';
import { copyRepository, enterRoot, installDebian } from './support/debian-root.ts';
import { README_WALK } from './support/readme-walk.ts';
import { Uplink } from './support/uplink.ts';

const SUITES = process.env['RELEAP_TEST_BARE']?.split(',') ?? (isNightly() ? ['trixie', 'bookworm'] : []);
const MINUTES = 40;

/** Links of the service of a home, outside of its root folder: named by a hash of the home. */
function leftOf(home: string, uplink: Uplink): string[] {
  const tag = createHash('sha256').update(home).digest('hex').slice(0, 8);
  return uplink.links().filter((name) => name.includes(tag));
}

describe('a bare machine', {
  skip: SUITES.length === 0 && 'takes minutes: nightly, or with RELEAP_TEST_BARE',
}, () => {
  for (const suite of SUITES) {
    it(`with Debian ${suite} runs a sandbox after the lines of the README`, {
      timeout: MINUTES * 60_000,
    }, async () => {
      const folder = await mkdtemp(join(tmpdir(), 'releap-bare-'));
      const root = join(folder, 'root');
      const home = `/var/lib/releap-${suite}-${process.pid}`;
      using uplink = Uplink.make(`bare-${suite.slice(0, 4)}`);
      let walk: ChildProcess | undefined;
      try {
        await installDebian(root, suite, ['nodejs', 'npm', 'mount']);
        await copyRepository(root);
        await writeFile(join(root, 'walk.sh'), README_WALK);
        walk = enterRoot(root, ['sh', '/walk.sh', '/service.log'], {
          env: { RELEAP_HOME: home, RELEAP_PORT: '0' },
          namespace: uplink.namespace,
          stdio: ['ignore', 'pipe', 'inherit'],
        });
        let output = '';
        walk.stdout?.on('data', (chunk: Buffer) => {
          output = (output + chunk.toString()).slice(-20_000);
        });
        const [code] = (await once(walk, 'close')) as [number | null];
        assert.equal(code, 0, output);
        assert.match(output, /^Linux \S+ .* x86_64 GNU\/Linux$/m);
        assert.match(output, /VMM +QEMU (?:8\.[2-9]|9|1\d)/);
        assert.match(output, /ended in order\n$/);
        assert.deepEqual(leftOf(home, uplink), []);
      } finally {
        walk?.kill('SIGKILL');
        await rm(folder, { recursive: true, force: true });
      }
    });
  }
});
