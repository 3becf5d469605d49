import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, it } from 'node:test';
import { promisify } from 'node:util';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { unpackedVmm, vmmCommand } from '../src/vmm/qemu/vmm-store.ts';

const SETUP = new URL('../../../setup/initramfs.mjs', import.meta.url).href;
const REPO = join(import.meta.dirname, '../../..');
const BUILD = join(REPO, 'build');
const DEADLINE_MS = 600_000;

let folder: string;
let tests: string;
before(async () => {
  folder = await temporaryFolder('releap-pk-');
  tests = join(folder, 'precopy.test');
  await promisify(execFile)(
    process.env['RELEAP_TEST_GO'] || 'go',
    ['test', '-c', '-o', tests, './internal/precopy'],
    { cwd: join(REPO, 'host'), env: { ...process.env, CGO_ENABLED: '0', GOTOOLCHAIN: 'local' } },
  );
});
after(async () => await rm(folder, { recursive: true, force: true }));

/** Runs the tests of `hostd precopy` as the only process of a machine with this kernel. @returns their output */
async function runOn(kernelDir: string): Promise<string> {
  const vmm = await unpackedVmm(BUILD);
  assert.ok(vmm !== undefined);
  const initramfs = join(folder, 'initramfs');
  const { buildInitramfs } = (await import(SETUP)) as {
    buildInitramfs: (options: { kernelDir: string; agentPath: string; out: string }) => Promise<unknown>;
  };
  await buildInitramfs({ kernelDir, agentPath: tests, out: initramfs });
  const { program, args, env } = vmmCommand(vmm.folder);
  const machine = ['-machine', 'q35', '-accel', 'tcg', '-cpu', 'max,la57=off', '-smp', '2', '-m', '512M'];
  const quiet = ['-nodefaults', '-no-user-config', '-nographic', '-no-reboot', '-serial', 'stdio'];
  const kernel = ['-kernel', join(kernelDir, 'vmlinuz'), '-initrd', initramfs];
  const append = ['-append', 'console=ttyS0 quiet panic=-1 -- -test.v'];
  const { stdout } = await promisify(execFile)(
    program,
    [...args, ...machine, ...quiet, ...kernel, ...append],
    { env: { ...process.env, ...env }, timeout: DEADLINE_MS },
  );
  return stdout;
}

// On Debian 12 that of guests is 6.1, and that of guests with volumes is newer: older kernels cannot track writes.
for (const name of ['kernel', 'volume-kernel']) {
  const kernelDir = join(BUILD, name);
  const skip = existsSync(kernelDir) ? false : 'there is none';
  it(`copies of memory are complete on the ${name} of guests, by what it has to tell what was written`, {
    skip,
  }, async () => {
    const [major = 0, minor = 0] = (await readFile(join(kernelDir, 'version'), 'utf8'))
      .split('.')
      .map(Number);
    const said = await runOn(kernelDir);
    assert.match(said, /ended with 0/, said);
    const passed = [...said.matchAll(/^--- PASS: (\w+)/gm)].map(([, test]) => test);
    assert.ok(passed.includes('TestCopiesAllOfAStoppedProcessThatIsNotTracked'), said);
    const isTracked = passed.includes('TestCopiesWhatIsWrittenWhileTheProcessRuns');
    assert.equal(isTracked, major > 6 || (major === 6 && minor >= 7), said);
    assert.ok(isTracked || passed.includes('TestCopiesMarkedPagesOfAStoppedProcess'), said);
  });
}
