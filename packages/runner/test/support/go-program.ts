/** Programs of a few lines of Go for guests, which have no tools: static, and built on the spot. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import type { TestRunner } from './sandboxes.ts';

/** @param name a folder beside this file @param target where the binary goes */
export async function buildGoProgram(name: string, target: string): Promise<void> {
  const source = join(import.meta.dirname, name, 'main.go');
  const args = ['build', '-ldflags', '-s -w', '-o', target, source];
  await promisify(execFile)(process.env['RELEAP_TEST_GO'] || 'go', args, {
    env: { ...process.env, CGO_ENABLED: '0', GOOS: 'linux', GOTOOLCHAIN: 'local', GO111MODULE: 'off' },
  });
}

/** Puts a program into a guest as `/NAME`. */
export async function installGoProgram(runner: TestRunner, vmId: string, name: string): Promise<void> {
  const folder = await temporaryFolder('releap-program-');
  try {
    const path = join(folder, name);
    await buildGoProgram(name, path);
    await feed(runner, vmId, `cat > /${name} && chmod 755 /${name}`, await readFile(path));
  } finally {
    await rm(folder, { recursive: true });
  }
}

/** Runs a shell command with this input. @returns what it writes */
export async function feed(
  runner: TestRunner,
  vmId: string,
  shell: string,
  input: Buffer | string,
): Promise<string> {
  const guest = await (runner.reconciler.get(vmId)?.live ?? assert.fail('it does not run')).guest();
  const child = guest.exec({ shell, stdin: true });
  let text = '';
  for (const stream of [child.stdout, child.stderr])
    stream.on('data', (chunk: Buffer) => {
      text += chunk.toString();
    });
  child.stdin.end(input);
  const { exitCode } = await runner.explained(vmId, child.exit);
  assert.equal(exitCode, 0, text);
  return text;
}
