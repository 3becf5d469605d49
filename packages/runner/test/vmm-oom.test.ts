import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { it } from 'node:test';
import pino from 'pino';
import { identifyProcess } from '../src/vmm/process-identity.ts';
import { option } from '../src/vmm/qemu/command-line.ts';
import { QemuVm } from '../src/vmm/qemu/vm.ts';
import { fakeVmm } from './support/fake-qmp.ts';

const REASON = 'it used up its memory limit';

/** A VMM that was adopted, with its process. */
async function adopted(explained: string | undefined, stack: AsyncDisposableStack) {
  const { folder } = stack.use(await fakeVmm(() => ({})));
  const console = createServer((socket) => void socket.on('error', () => undefined).unref()).unref();
  stack.defer(() => void console.close());
  await new Promise<void>((resolve) => console.listen(join(folder, 'console'), resolve));
  const child: ChildProcess = spawn('sh', ['-c', 'read line', 'vmm', option(folder)], {
    stdio: ['pipe', 'ignore', 'ignore'],
  });
  await once(child, 'spawn');
  stack.defer(() => void child.kill('SIGKILL'));
  const vm = await QemuVm.adopt({
    identity: identifyProcess(child.pid ?? 0),
    dir: folder,
    startedIn: folder,
    explainKill: () => explained,
    log: pino({ level: 'silent' }),
  });
  return { vm, child };
}

for (const [what, explained, expected] of [
  ['that the kernel has killed for memory ends with that reason', REASON, REASON],
  ['that was killed otherwise has ended by itself', undefined, 'the micro-VM ended by itself'],
] as const)
  it(`a VMM ${what}`, async () => {
    await using stack = new AsyncDisposableStack();
    const { vm, child } = await adopted(explained, stack);
    const ended = new Promise((resolve) => vm.onExit(resolve));
    child.kill('SIGKILL');
    assert.equal(await ended, expected);
  });

it('a VMM that the runner ends has the reason of the runner', async () => {
  await using stack = new AsyncDisposableStack();
  const { vm } = await adopted(REASON, stack);
  const ended = new Promise((resolve) => vm.onExit(resolve));
  await vm.endGuest('the server of a volume has ended');
  assert.equal(await ended, 'the server of a volume has ended');
});
