import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import type { Server, Socket } from 'node:net';
import { join } from 'node:path';
import { afterEach, beforeEach, it, mock } from 'node:test';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { eventually } from '@releap/testing/eventually';
import { identifyProcess } from '../src/vmm/process-identity.ts';
import { QemuVm } from '../src/vmm/qemu/vm.ts';
import { log } from './support/machines.ts';

/** A VMM that responds when the test tells it to. */
class SlowVmm {
  readonly #process = spawn('sleep', ['1000'], { stdio: 'ignore' });
  readonly #servers: Server[] = [];
  #control: Socket | undefined;
  readonly asked: { id: number; execute: string }[] = [];
  dir = '';

  async listen(): Promise<void> {
    this.dir = await temporaryFolder('releap-sv-');
    for (const name of ['qmp', 'console']) {
      const server = createServer((socket) => {
        socket.on('error', () => undefined);
        if (name === 'qmp') this.#control = socket;
        socket.on('data', (data) => {
          for (const line of data.toString().trim().split('\n')) this.#heard(JSON.parse(line));
        });
      });
      this.#servers.push(server);
      await new Promise<void>((resolve) => server.listen(join(this.dir, name), resolve));
    }
  }

  #heard(command: { id: number; execute: string }): void {
    if (command.execute === 'qmp_capabilities') this.answer(command.id);
    else this.asked.push(command);
  }

  get connected(): boolean {
    return this.#control !== undefined;
  }

  greet(): void {
    this.#control?.write('{"QMP": {}}\n');
  }

  answer(id: number): void {
    this.#control?.write(`${JSON.stringify({ id, return: {} })}\n`);
  }

  async adopt(): Promise<QemuVm> {
    const identity = identifyProcess(this.#process.pid ?? 0);
    return await QemuVm.adopt({ identity, dir: this.dir, startedIn: 'sleep', log });
  }

  async close(): Promise<void> {
    this.#process.kill('SIGKILL');
    for (const server of this.#servers) server.close();
    await rm(this.dir, { recursive: true });
  }
}

/** Longer than the disk of a host under heavy load takes to flush its writes. */
const FLUSH_MS = 15_000;

let vmm: SlowVmm;
beforeEach(async () => {
  vmm = new SlowVmm();
  await vmm.listen();
});
afterEach(async () => {
  mock.timers.reset();
  await vmm.close();
});

it('a VMM whose disk is slow is waited for when its guest is stopped, captured, and resumed', async () => {
  const adopting = vmm.adopt();
  await eventually('a connection', () => vmm.connected || undefined);
  vmm.greet();
  const vm = await adopting;
  const commands = [() => vm.stop(), () => vm.qmp.execute('blockdev-snapshot'), () => vm.continue()];
  for (const [at, told] of commands.entries()) {
    mock.timers.enable({ apis: ['setTimeout'] });
    const done = told();
    done.catch(() => undefined);
    mock.timers.tick(FLUSH_MS);
    mock.timers.reset();
    vmm.answer((await eventually('a command', () => vmm.asked[at])).id);
    await done;
  }
  assert.deepEqual(
    vmm.asked.map(({ execute }) => execute),
    ['stop', 'blockdev-snapshot', 'cont'],
  );
  vm.detach();
});

it('a VMM whose disk is slow is waited for when a new runner finds it again', async () => {
  mock.timers.enable({ apis: ['setTimeout'] });
  const adopting = vmm.adopt();
  adopting.catch(() => undefined);
  while (!vmm.connected) await new Promise((resolve) => setImmediate(resolve));
  mock.timers.tick(FLUSH_MS);
  mock.timers.reset();
  vmm.greet();
  (await adopting).detach();
});
